#!/usr/bin/env bash
# Verifies the target neuron with the real compiler: scripts/verify_neuron.sh [FOLDER]
#
# For a machine with the Neuron SDK: a trn1, inf2 or trn2 instance, or any x86 host (which verifies
# everything except loading and running). All other tests of this repository that concern Neuron use
# mocks of its documented programs; attach the output and FOLDER to a report.
#
# FOLDER         where HLOs, NEFFs, logs and the sweep go (outputs/verify-neuron)
# NEURON_PYTHON  a Python that has torch_neuronx and neuronx-cc; by default the one of the environment
#                `neuron` (compilewatch env create neuron)
# TARGET         trn1, trn1n, inf2 or trn2; by default this machine's, else trn1
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-outputs/verify-neuron}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
scripts/setup.sh
compilewatch=$PWD/.venv/bin/compilewatch

if [ -z "${NEURON_PYTHON:-}" ]; then
  "$compilewatch" env create neuron
  NEURON_PYTHON=$(.venv/bin/python -c \
    "from compilewatch.environments import interpreter; print(interpreter('neuron').path)")
fi
export PATH=$(dirname "$NEURON_PYTHON"):/opt/aws/neuron/bin:$PATH
failed=()

check() { # NAME COMMAND...: prints the outcome and continues in any case
  local name=$1
  shift
  echo "== $name"
  if "$@"; then echo "ok: $name"; else
    echo "FAILED: $name"
    failed+=("$name")
  fi
}

compiler() {
  neuronx-cc --version
  neuronx-cc list-operators --framework XLA >"$folder/operators.txt"
  echo "$(wc -l <"$folder/operators.txt") operators: compare with src/compilewatch/data/neuron_operators.toml"
  neuron-ls || echo "no NeuronCores: loading and running will not be verified"
}

capture() { # Two HLOs, by plain torch_xla: a linear layer, and a product of complex numbers
  PJRT_DEVICE=CPU "$NEURON_PYTHON" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import torch
import torch_xla

device = torch_xla.device()
calls = {
    "linear": lambda x: torch.nn.Linear(8, 4).to(device)(x),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x) * torch.complex(x, x)),
}
for name, call in calls.items():
    with torch.no_grad():
        output = call(torch.ones(2, 8, device=device))
    context = torch_xla._XLAC.lowering.LoweringContext(name)
    context.build([output])
    Path(sys.argv[1], f"{name}.hlo_module.pb").write_bytes(context.hlo())
PYTHON
}

compiles() { "$compilewatch" neuron compile "$folder/linear.hlo_module.pb" ${TARGET:+--target "$TARGET"}; }

is_rejected() { # Complex numbers are documented not to compile (NCC_EVRF004): is the reason recognised?
  "$compilewatch" neuron compile "$folder/complex.hlo_module.pb" ${TARGET:+--target "$TARGET"} \
    --json >"$folder/complex.json" || true
  cat "$folder/complex.json"
  .venv/bin/python -c '
import json, sys
(found,) = json.load(open(sys.argv[1]))
failure = (found["detail"] or {}).get("failure") or {}
sys.exit(0 if failure.get("code") and failure["kind"] not in ("unknown", "internal") else 1)
' "$folder/complex.json"
}

sweep() {
  "$compilewatch" sweep --source library --models BertModel --targets neuron --depth reduced \
    --fresh --baseline none --output "$folder/runs" --json >"$folder/sweep.json" || return 1
  "$compilewatch" show BertModel --output "$folder/runs"
  .venv/bin/python -c '
import json, pathlib, sys
run = json.load(open(sys.argv[1]))["folder"]
result = json.loads(pathlib.Path(run, "results.jsonl").read_text())
print("verdict:", result["status"], "-", result["detail"])
sys.exit(0 if result["status"] in ("pass", "mismatch") or result["neuron"] else 1)
' "$folder/sweep.json"
}

profile() { # A NEFF runs and is recorded, and its figures are read
  local neff
  neff=$(find "$folder" -name graph.neff | head -1)
  [ -n "$neff" ] || return 1
  "$compilewatch" profile neuron capture "$neff" && "$compilewatch" profile neuron summarize "${neff%.neff}.ntff"
}

profile_steps() { # Training steps in named blocks; an SDK without TorchNeuron is named
  "$compilewatch" profile neuron capture BertModel --source library --steps 3 --to "$folder/profile"
}

check "the compiler starts" compiler
check "HLOs are captured" capture
check "an HLO compiles" compiles
check "a rejection is recognised" is_rejected
check "a model of the library has a verdict" sweep
check "a NEFF is profiled" profile
check "training steps are profiled" profile_steps

echo
if [ ${#failed[@]} -eq 0 ]; then
  echo "verified: the neuron target works here ($folder)"
else
  echo "NOT verified: ${#failed[@]} of 7 failed ($folder)"
  exit 1
fi
