#!/usr/bin/env bash
# Stage "Fix": searches and verifies fixes of the main run's graph breaks for FIX minutes, and writes its
# report and metrics again, which then show them. fixes.jsonl and the scripts are in the run's folder.
#
# Exit status: 0 if the search ended, also without a fix or because of the limit.
. "$(dirname "$0")/common.sh"

[ -s "$build/runs" ] || fail "there is no run to fix: run scripts/stages/merge.sh first"
if [ -z "${FIX:-}" ]; then
  say "no fixes are searched, because FIX is empty"
  exit 0
fi
run=$(head -n 1 "$build/runs")
status=0
# What is begun may take longer than the limit, by one search and one verification of each job: no more than that.
timeout --signal=INT $((FIX * 60 + 1800)) compilewatch fix --all-of "$run" --output "$output" \
  --max-seconds $((FIX * 60)) --max-model-seconds 300 || status=$?
case $status in
0 | 1) ;;
3 | 124) say "the limit of $FIX minutes has left models that were not searched" ;;
*) fail "fixes of $run could not be searched (status $status): see above" ;;
esac
compilewatch report "$run" --output "$output"
