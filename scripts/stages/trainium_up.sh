#!/usr/bin/env bash
# Starts the Trainium instance and waits until it answers; ends with an error where it does not.
. "$(dirname "$0")/common.sh"
mkdir -p "$build"
# Jenkins reaches it at TRAINIUM_HOST: that is where it has to answer.
case ${TRAINIUM_HOST:-} in '' | trainium.invalid) ;; *) export COMPILEWATCH_TRAINIUM_HOST=$TRAINIUM_HOST ;; esac
compilewatch trainium up --state "$build/trainium.json"
