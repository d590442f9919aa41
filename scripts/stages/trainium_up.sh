#!/usr/bin/env bash
# Starts the Trainium instance and waits until it responds; ends with an error if it does not.
. "$(dirname "$0")/common.sh"
mkdir -p "$build"
# Jenkins connects to TRAINIUM_HOST, so the instance has to respond at that address.
case ${TRAINIUM_HOST:-} in '' | trainium.invalid) ;; *) export COMPILEWATCH_TRAINIUM_HOST=$TRAINIUM_HOST ;; esac
compilewatch trainium up --state "$build/trainium.json"
