#!/usr/bin/env bash
# Stage "Publish": hands each run to the services that are set (COMPILEWATCH_PUSHGATEWAY_URL,
# COMPILEWATCH_LOKI_URL, COMPILEWATCH_S3_URL, or compilewatch.toml), once.
#
# A run that lacks shards is not published: a group of metrics is replaced whole, and the models of
# the missing shards would look retired.
. "$(dirname "$0")/common.sh"

[ -s "$build/runs" ] || fail "there is no run to publish: run scripts/stages/merge.sh first"
services=$(python -c 'from compilewatch.config.settings import load_settings
from compilewatch.sinks import remote_sinks
print(*remote_sinks(load_settings()))')
if [ -z "$services" ]; then
  say "nothing is published, no service is set: COMPILEWATCH_PUSHGATEWAY_URL, for one"
  exit 0
fi
status=0
while read -r run; do
  missing=$(field "$run" '", ".join(run["settings"].get("missing_shards", []))')
  if [ -n "$missing" ]; then
    say "$run is not published, it lacks shards ($missing): their models would look retired"
  else
    compilewatch publish "$run" --output "$output" || status=$?
  fi
done <"$build/runs"
exit $status
