#!/usr/bin/env bash
# Stage "Merge": joins the runs of the shards in $PIPELINE_DIR/shards into one run, and imports the run of
# Neuron as a separate one. $PIPELINE_DIR/runs lists the ids of these runs, the main one first.
. "$(dirname "$0")/common.sh"
shopt -s nullglob

rm -f "$build/runs"
adopt "$build"/shards/*.tar.gz
if [ -f "$build/neuron.tar.gz" ]; then
  BASELINE=auto adopt "$build/neuron.tar.gz"
fi
