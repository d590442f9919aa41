#!/usr/bin/env bash
# Stage "Pull": with SOURCE=hub, asks the Hub for its most used models and pins them.
#
# Where the Hub fails midway or cannot be reached, the list of before is good enough, if there is one.
. "$(dirname "$0")/common.sh"

if [ "${SOURCE:-}" != hub ]; then
  say "nothing to pull: SOURCE is ${SOURCE:-not set}"
  exit 0
fi
arguments=()
if [[ ${TOP:-} =~ ^[0-9]+$ ]]; then arguments+=(--top "$TOP"); fi
if [[ ${TASKS:-} == *,* ]]; then
  fail "TASKS=$TASKS: the Hub is asked for one task at a time; start a build for each"
fi
if [ -n "${TASKS:-}" ]; then arguments+=(--task "$TASKS"); fi
status=0
compilewatch pull "${arguments[@]}" || status=$?
if [ $status -ne 0 ] && [ -f "${COMPILEWATCH_PULLED_DIR:-inputs/pulled}/models.toml" ]; then
  say "the Hub did not answer in full ($status): the sweep takes the list as it is now"
elif [ $status -ne 0 ]; then
  fail "nothing was pulled and there is no earlier list: mend the network or set SOURCE=library"
fi
