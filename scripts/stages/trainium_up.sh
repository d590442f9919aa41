#!/usr/bin/env bash
# Starts the Trainium instance and waits until it responds; ends with an error if it does not.
. "$(dirname "$0")/common.sh"
mkdir -p "$build"
# Jenkins connects to TRAINIUM_HOST, so the instance has to respond at that address.
case ${TRAINIUM_HOST:-} in '' | trainium.invalid) ;; *) export COMPILEWATCH_TRAINIUM_HOST=$TRAINIUM_HOST ;; esac
# Its messages go to the log and, if it fails, the last one to the summary of the build.
{ compilewatch trainium up --state "$build/trainium.json" 2>&1 >&3 | tee "$build/trainium.problem" >&2; } 3>&1
rm "$build/trainium.problem"
