#!/usr/bin/env bash
# Stage "Inputs": finds errors that would make every shard fail, before any shard starts.
#
# Checks that this machine can run a sweep, that the baseline exists, that the reviewed files can be
# read, and that example inputs can be made (shows those of the first family or of BERT).
. "$(dirname "$0")/common.sh"

# First what takes a second; the doctor starts a worker.
case ${BASELINE:-auto} in
auto | none) ;;
*) compilewatch compare "$BASELINE" "$BASELINE" --output "$output" >/dev/null ||
  fail "BASELINE=$BASELINE: no such run here; see \`compilewatch runs\`, or use auto or none" ;;
esac
compilewatch doctor
if [ "${SOURCE:-}" != manifest ]; then
  model=${FAMILIES:-BertModel}
  compilewatch inputs "${model%%,*}"
fi
