#!/usr/bin/env bash
# Stage "Merge": joins what the shards left in $PIPELINE_DIR/shards into one run, and takes over that
# of Neuron as a run of its own. Which runs these are stands in $PIPELINE_DIR/runs, the main one first.
. "$(dirname "$0")/common.sh"
shopt -s nullglob

rm -f "$build/runs"
adopt "$build"/shards/*.tar.gz
if [ -f "$build/neuron.tar.gz" ]; then
  BASELINE=auto adopt "$build/neuron.tar.gz"
fi
