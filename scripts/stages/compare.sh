#!/usr/bin/env bash
# Stage "Compare": what changed since each run's baseline, into $PIPELINE_DIR/compare/RUN.json.
#
# Exit status: 1 if there is a regression and FAIL_ON_REGRESSION is true, 0 if not, 2 if the
# comparison itself failed.
. "$(dirname "$0")/common.sh"

[ -s "$build/runs" ] || fail "there is no run to compare: run scripts/stages/merge.sh first"
mkdir -p "$build/compare"
rm -f "$build/regressed"
while read -r run; do
  base=$(field "$run" baseline)
  if [ -z "$base" ]; then
    say "$run has no baseline: it is the first run of its selection, or BASELINE is none"
    continue
  fi
  status=0
  compilewatch compare "$base" "$run" --output "$output" || status=$?
  if [ $status -ne 0 ] && [ $status -ne 3 ]; then exit $status; fi # 3: results are missing
  status=0
  compilewatch compare "$base" "$run" --output "$output" --fail-on regression --json \
    >"$build/compare/$run.json" || status=$?
  if [ $status -eq 1 ]; then
    say "$run has regressions compared with $base"
    touch "$build/regressed"
  elif [ $status -ne 0 ] && [ $status -ne 3 ]; then
    fail "$run could not be compared with $base"
  fi
done <"$build/runs"
if [ -f "$build/regressed" ] && [ "${FAIL_ON_REGRESSION:-true}" = true ]; then exit 1; fi
