#!/usr/bin/env bash
# Starts the Trainium instance and waits until it answers; ends with an error where it does not.
. "$(dirname "$0")/common.sh"
mkdir -p "$build"
compilewatch trainium up --state "$build/trainium.json"
