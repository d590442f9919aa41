#!/usr/bin/env bash
# Stage "Inputs": what would make every shard fail is found here, before any of them starts.
#
# This machine can run a sweep, the baseline exists, the reviewed files can be read, and example
# inputs can be made (those of the first family or of BERT are shown).
. "$(dirname "$0")/common.sh"

compilewatch doctor
case ${BASELINE:-auto} in
auto | none) ;;
*) compilewatch compare "$BASELINE" "$BASELINE" --output "$output" >/dev/null ||
  fail "BASELINE=$BASELINE: no such run here; see \`compilewatch runs\`, or use auto or none" ;;
esac
if [ "${SOURCE:-}" != manifest ]; then
  model=${FAMILIES:-BertModel}
  compilewatch inputs "${model%%,*}"
fi
