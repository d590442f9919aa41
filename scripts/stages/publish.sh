#!/usr/bin/env bash
# Stage "Publish": sends each run once to the services whose address is set (COMPILEWATCH_PUSHGATEWAY_URL,
# COMPILEWATCH_LOKI_URL, COMPILEWATCH_S3_URL, or compilewatch.toml).
#
# A run that lacks shards is not published: a publication replaces complete groups of metrics, and the
# models of the missing shards would look retired.
. "$(dirname "$0")/common.sh"

[ -s "$build/runs" ] || fail "there is no run to publish: run scripts/stages/merge.sh first"
rm -f "$build/publish.problem"
services=$(python -c 'from compilewatch.config import load_settings
from compilewatch.sinks import remote_sinks
print(*remote_sinks(load_settings()))')
if [ -z "$services" ]; then
  say "nothing is published, because no service is set (for example COMPILEWATCH_PUSHGATEWAY_URL)"
  exit 0
fi
status=0
while read -r run; do
  missing=$(field "$run" missing_shards)
  if [ -n "$missing" ]; then
    say "$run is not published, it lacks shards ($missing): their models would look retired"
  else
    # Its messages go to the log and, if it fails, the last one to the summary of the build.
    { compilewatch publish "$run" --output "$output" 2>&1 >&3 | tee -a "$build/publish.problem" >&2; } 3>&1 ||
      status=$?
  fi
done <"$build/runs"
if [ $status -eq 0 ]; then rm -f "$build/publish.problem"; fi
exit $status
