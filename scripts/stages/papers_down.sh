#!/usr/bin/env bash
# Stops the Trainium instance if a run of papers that was killed has left it running.
. "$(dirname "$0")/common.sh"
if [ "${TRAINIUM:-}" = true ]; then compilewatch trainium down --state "$build/trainium.json"; fi
