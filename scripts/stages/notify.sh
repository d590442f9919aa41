#!/usr/bin/env bash
# Sends notifications of regressions, recoveries and failures of the monitor by e-mail or webhook;
# scripts/notify.py documents the variables.
. "$(dirname "$0")/common.sh"
if ! begun; then rm -rf "$build/compare"; fi
mkdir -p "$build"
python scripts/notify.py "$build"
