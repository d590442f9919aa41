#!/usr/bin/env bash
# Stage "Neuron", on the Trainium agent: the same models at reduced size, into $PIPELINE_DIR/neuron.tar.gz.
# Ends after NEURON_HOURS (6), with the results available by then; begins with the models of FIRST.
#
# With TorchNeuron: Dynamo for the device and the target neuron, eval of all models and train of the
# NEURON_TRAIN (5) most used ones. Then torch.profiler records training steps of the slowest model into
# $PIPELINE_DIR/neuron-profile.tar.gz. With PyTorch/XLA, where scripts/trainium_agent.sh has created
# `neuron-xla`: the target neuron alone, in the modes of MODES.
. "$(dirname "$0")/common.sh"

command -v neuron-ls >/dev/null || [ -x /opt/aws/neuron/bin/neuron-ls ] ||
  fail "there is no Neuron SDK on this machine: run this stage on an agent with the label trainium"
limit=${NEURON_HOURS:-6}h
select_models
selection+=(--depth reduced --shard 1/1)
if [ -n "${FIRST:-}" ]; then selection+=(--first "$FIRST"); fi

if compilewatch env describe neuron-xla >/dev/null 2>&1; then
  compilewatch env create neuron-xla
  sweep_part "$build/neuron.tar.gz" "${selection[@]}" --targets neuron
  exit
fi

compilewatch env create neuron
status=0
sweep_part "$build/neuron.tar.gz" "${selection[@]}" --targets dynamo,neuron --environments neuron \
  --device neuron --modes eval,train --train-top "${NEURON_TRAIN:-5}" || status=$?
if [ $status -ge 128 ]; then exit $status; fi

# The slowest of the models that ran, by the time of a call on the device. Its profile is an addition: without
# it, the results are complete.
slowest=$(python -c 'import sys
from compilewatch.store import StoredRun
from pathlib import Path
results = StoredRun(Path(sys.argv[1])).results()
timed = [r for r in results if getattr(r.details, "latency_seconds", None)]
print(max(timed, key=lambda r: r.details.latency_seconds).request.model.name if timed else "")
' "$build/sweeps/latest/") || slowest=''
profile=$build/neuron-profile
rm -rf "$profile"
if [ -z "$slowest" ]; then
  say "nothing is profiled: no model ran on the device"
elif timeout 1h compilewatch profile neuron capture "$slowest" --depth reduced --to "$profile"; then
  pack "$profile" "$profile.tar.gz"
else
  say "$slowest could not be profiled: see above"
fi
exit $status
