#!/usr/bin/env bash
# Tells of regressions, recoveries and failures of the monitor, by e-mail or webhook as configured:
# see scripts/notify.py for the variables.
. "$(dirname "$0")/common.sh"
if ! begun; then rm -rf "$build/compare"; fi
mkdir -p "$build"
python scripts/notify.py "$build"
