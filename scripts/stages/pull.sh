#!/usr/bin/env bash
# Stage "Pull": with SOURCE=hub, requests the most used models from the Hub and pins them.
#
# If the Hub fails midway or cannot be reached, the previous list is used, if there is one.
. "$(dirname "$0")/common.sh"

if [ "${SOURCE:-}" != hub ]; then
  say "nothing to pull: SOURCE is ${SOURCE:-not set}"
  exit 0
fi
arguments=()
if [[ ${TOP:-} =~ ^[0-9]+$ ]]; then arguments+=(--top "$TOP"); fi
if [[ ${TASKS:-} == *,* ]]; then
  fail "TASKS=$TASKS: the Hub's list can be pulled for one task at a time; start a build for each"
fi
if [ -n "${TASKS:-}" ]; then arguments+=(--task "$TASKS"); fi
status=0
compilewatch pull "${arguments[@]}" || status=$?
if [ $status -ne 0 ] && [ -f "${COMPILEWATCH_PULLED_DIR:-inputs/pulled}/models.toml" ]; then
  say "the Hub's response was incomplete ($status): the sweep uses the list as it is now"
elif [ $status -ne 0 ]; then
  fail "nothing was pulled and there is no earlier list: check the network or set SOURCE=library"
fi
