#!/usr/bin/env bash
# Stage "Sweep": scripts/stages/sweep.sh I sweeps part I of $SHARDS into $PIPELINE_DIR/shards/I.tar.gz.
#
# The file contains the run folder, complete or, if the sweep ended early, with the results so far.
. "$(dirname "$0")/common.sh"

part=${1:?which part? scripts/stages/sweep.sh 1}
select_sweep
if [ -n "${ENVIRONMENTS:-}" ]; then selection+=(--environments "$ENVIRONMENTS"); fi
sweep_part "$build/shards/$part.tar.gz" "${selection[@]}" --shard "$part/$shards"
