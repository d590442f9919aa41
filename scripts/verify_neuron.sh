#!/usr/bin/env bash
# Verifies the target neuron with the real product: scripts/verify_neuron.sh [FOLDER]
#
# For a machine with the Neuron SDK: TorchNeuron on Trn2 or Trn3, torch-neuronx 2.9 on Trn1 or Inf2,
# or either without a device, which verifies everything except loading and running. All other tests
# of this repository that concern Neuron use doubles of its documented programs and modules; attach
# the output and FOLDER to a report.
#
# FOLDER         where NEFFs, logs and the sweep go (outputs/verify-neuron)
# NEURON_PYTHON  a Python that has torch_neuronx and neuronx-cc; by default the one of the environment
#                `neuron-xla` if there is one, else of `neuron` (compilewatch env create neuron)
# TARGET         trn1, trn1n, inf2, trn2 or trn3; by default this machine's
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-outputs/verify-neuron}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
scripts/setup.sh
compilewatch=$PWD/.venv/bin/compilewatch

if [ -z "${NEURON_PYTHON:-}" ]; then
  environment=neuron
  if "$compilewatch" env describe neuron-xla >/dev/null 2>&1; then environment=neuron-xla; fi
  "$compilewatch" env create "$environment"
  NEURON_PYTHON=$(.venv/bin/python -c \
    "from compilewatch.environments import interpreter; print(interpreter('$environment').path)")
fi
export PATH=$(dirname "$NEURON_PYTHON"):/opt/aws/neuron/bin:$PATH TORCH_DEVICE_BACKEND_AUTOLOAD=0
version=$("$NEURON_PYTHON" -c "from importlib.metadata import version; print(version('torch-neuronx'))")
failed=() number=0

check() { # NAME COMMAND...: prints the outcome and continues in any case
  local name=$1
  shift
  number=$((number + 1))
  echo "== $name"
  if "$@"; then echo "ok: $name"; else
    echo "FAILED: $name"
    failed+=("$name")
  fi
}

names() { # Every name of TorchNeuron that is used, while one small graph is compiled
  PYTHONPATH=src "$NEURON_PYTHON" - "$folder/names" <<'PYTHON'
import importlib
import os
import sys
from pathlib import Path

import torch

from compilewatch.records import FactoryBuild, ModelSpec, Request, Target
from compilewatch.worker.targets.neuron import native

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
model = ModelSpec(source="verify", name="names", build=FactoryBuild(factory="names", path="."))
problem = native.prepare(Request(model=model, target=Target(name="neuron"), key=""), folder)
if problem is not None:
    sys.exit(problem)
product = native.Product()
compiled = torch.compile(lambda x: x * 2 + 1, backend="neuron", dynamic=False)
result = compiled(torch.ones(4, device="neuron"))
product.call("synchronize")
print(product.module.__version__, result.cpu(), *product.graphs(), sep="\n")
for name in native.FUNCTIONS:
    product.call(name)
package = Path(product.module.__file__).parent
texts = [path.read_bytes() for path in package.rglob("*") if path.suffix in (".py", ".so")]
variables = {n: source for n, (_, source) in (native.VARIABLES | native.WITHOUT_DEVICE).items()}
lacking = set(product.missing)
lacking |= {n for n in native.FOLDERS if not Path(os.environ[native.FOLDER], n).is_dir()}
try:
    profiling = importlib.import_module("torch_neuronx.profiling")
except ImportError:
    profiling = None
lacking |= {n for n in native.PROFILING if not hasattr(profiling, n)}
lacking |= {n for n in variables if not any(n.encode() in text for text in texts)}
lists = (native.FUNCTIONS, native.FIELDS, native.FOLDERS, native.PROFILING)
for name, source in [*variables.items(), *(row for names in lists for row in names.items())]:
    # Variables of the runtime and of the compiler are read outside of the package.
    elsewhere = name.startswith("NEURON_") and name in lacking
    print("not seen" if elsewhere else "DIFFERS " if name in lacking else "ok      ", name, f"({source})")
sys.exit(any(not name.startswith("NEURON_") for name in lacking))
PYTHON
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

sweep() { # MODES
  "$compilewatch" sweep --source library --models BertModel --targets neuron --modes "$1" \
    --depth reduced --fresh --baseline none --output "$folder/runs" \
    --json >"$folder/sweep.json" || return 1
  "$compilewatch" show BertModel --output "$folder/runs"
  .venv/bin/python -c '
import json, pathlib, sys
run = json.load(open(sys.argv[1]))["folder"]
results = [json.loads(line) for line in pathlib.Path(run, "results.jsonl").read_text().splitlines()]
for result in results:
    print("verdict:", result["status"], "-", result["detail"])
sys.exit(any(result["status"] not in ("pass", "graph_break", "mismatch") for result in results))
' "$folder/sweep.json"
}

profile() { # A NEFF runs and is recorded, and its figures are read
  local neff
  neff=$(find "$folder" -name '*.neff' | head -1)
  [ -n "$neff" ] || return 1
  "$compilewatch" profile neuron capture "$neff" && "$compilewatch" profile neuron summarize "${neff%.neff}.ntff"
}

profile_steps() { # Training steps in named blocks; an SDK without TorchNeuron is named
  "$compilewatch" profile neuron capture BertModel --source library --steps 3 --to "$folder/profile"
}

case $version in
1.* | 2.?.* | 2.1[0-2].*)
  check "the compiler starts" compiler
  check "HLOs are captured" capture
  check "an HLO compiles" compiles
  check "a rejection is recognised" is_rejected
  check "a model of the library has a verdict" sweep eval
  ;;
*)
  check "TorchNeuron has the names that are used" names
  check "the compiler starts" compiler
  check "a model of the library has a verdict, in eval and train mode" sweep eval,train
  ;;
esac
check "a NEFF is profiled" profile
check "training steps are profiled" profile_steps

echo
if [ ${#failed[@]} -eq 0 ]; then
  echo "verified: the neuron target works here with torch-neuronx $version ($folder)"
else
  echo "NOT verified: ${#failed[@]} of $number failed, torch-neuronx $version ($folder)"
  exit 1
fi
