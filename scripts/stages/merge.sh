#!/usr/bin/env bash
# Stage "Merge": joins the runs of the shards in $PIPELINE_DIR/shards into one run, and imports the run of
# Neuron, if there is one, as a separate one. $PIPELINE_DIR/runs lists the ids of these runs, the main one
# first. With the argument `neuron`, only imports that of Neuron.
. "$(dirname "$0")/common.sh"
shopt -s nullglob

if [ "${1:-}" != neuron ]; then
  rm -f "$build/runs" "$build/neuron.merged"
  adopt "$build"/shards/*.tar.gz
fi
if [ -f "$build/neuron.tar.gz" ] && [ ! -f "$build/neuron.merged" ]; then
  BASELINE=auto adopt "$build/neuron.tar.gz"
  touch "$build/neuron.merged"
fi
