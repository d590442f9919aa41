#!/usr/bin/env bash
# Stage "Inputs": finds errors that would make every shard fail, before any shard starts.
#
# First reads all parameters, the one place that does, in seconds: each error is one line that names the
# parameter. Then creates the environments that are to be used, and checks that this machine can run a sweep,
# that the reviewed files can be read, and that example inputs can be made (of the first family or of BERT).
. "$(dirname "$0")/common.sh"

tries_sweep() { # ARGUMENTS...: everything that a sweep does before its first model
  compilewatch sweep "$@" --shard "1/$shards" --dry-run
}

[[ $shards =~ ^[1-9][0-9]*$ ]] || fail "SHARDS=$shards is not a number of parts: use 1 or more"
[[ ${TOP:-all} =~ ^(all|[1-9][0-9]*)$ ]] || fail "TOP=$TOP is not a number of models: use 1 or more, or all"
[[ ${PROFILE:-1} =~ ^[1-9][0-9]*$ ]] ||
  fail "PROFILE=$PROFILE is not a number of models: use 1 or more, or leave it empty"
[[ ${FIX:-1} =~ ^[1-9][0-9]*$ ]] ||
  fail "FIX=$FIX is not a number of minutes: use 1 or more, or leave it empty"
[[ ${ENVIRONMENTS:-default} =~ ^[a-z][a-z0-9.+-]*(,[a-z][a-z0-9.+-]*)*$ ]] ||
  fail "ENVIRONMENTS=$ENVIRONMENTS is not a list of environments: use names such as default,torch-2.9.0"
if [ "${SOURCE:-}" = hub ] && [[ ${TASKS:-} == *,* ]]; then
  fail "TASKS=$TASKS: the Hub's list can be pulled for one task at a time; start a build for each"
fi
case ${BASELINE:-auto} in
auto | none) ;;
*) compilewatch compare "$BASELINE" "$BASELINE" --output "$output" >/dev/null ||
  fail "BASELINE=$BASELINE: no such run here; see \`compilewatch runs\`, or use auto or none" ;;
esac
# The Hub's models are known when its list is pulled, which is the next stage.
select_sweep
if [ "${SOURCE:-}" = hub ]; then selection+=(--source library --families bert); fi
tries_sweep "${selection[@]}"

create_environments
if [ -n "${ENVIRONMENTS:-}" ]; then tries_sweep "${selection[@]}" --environments "$ENVIRONMENTS"; fi
compilewatch doctor
if [ "${SOURCE:-}" != manifest ]; then
  model=${FAMILIES:-BertModel}
  compilewatch inputs "${model%%,*}"
fi
