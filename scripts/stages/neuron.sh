#!/usr/bin/env bash
# Stage "Neuron", on the Trainium agent: the same models on the target neuron, at reduced size, into
# $PIPELINE_DIR/neuron.tar.gz. Ends after NEURON_HOURS (6), with the results available by then.
. "$(dirname "$0")/common.sh"

command -v neuron-ls >/dev/null || [ -x /opt/aws/neuron/bin/neuron-ls ] ||
  fail "there is no Neuron SDK on this machine: run this stage on an agent with the label trainium"
compilewatch env create neuron
select_models
limit=${NEURON_HOURS:-6}h
sweep_part "$build/neuron.tar.gz" "${selection[@]}" --targets neuron --depth reduced --shard 1/1
