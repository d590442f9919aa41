#!/usr/bin/env bash
# Stops the Trainium instance if trainium_up.sh started it; else does nothing.
. "$(dirname "$0")/common.sh"
if [ -f "$build/trainium.json" ]; then compilewatch trainium down --state "$build/trainium.json"; fi
