#!/usr/bin/env bash
# Compares verdicts for a declared CUDA device with those of a real one, on a machine that has one.
#
#   scripts/verify_cuda.sh [MODELS]
#
# MODELS is a list such as BertModel,MixtralForCausalLM (default: a sample of all modalities). Each
# model is evaluated at reduced depth in eval and train mode: with fake tensors of the declared device,
# and with real tensors on the GPU. Then a profile of BERT on the GPU is checked: its times against
# CUDA events, its memory, NVML's utilisation (of nvidia-ml-py) and the kernels in its trace. PYTHON
# names the interpreter (default: .venv/bin/python, else python3); its torch must be a CUDA build. Exit
# status: 0 if all verdicts agree and the profile is right, 1 if not, 2 without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

sample=BertModel,GPT2LMHeadModel,LlamaForCausalLM,MixtralForCausalLM,Qwen2MoeForCausalLM,T5Model
sample+=,ViTModel,ResNetModel,CLIPModel,Wav2Vec2Model,LongformerModel,LongT5Model,SwinModel,DetrModel
sample+=,MambaModel,XLNetModel,BigBirdModel,ReformerModel,FunnelModel,SwitchTransformersModel
sample+=,Qwen2VLForConditionalGeneration,LlavaForConditionalGeneration,WhisperModel,EncodecModel
models=${1:-$sample}

python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    [ -x .venv/bin/python ] && python=.venv/bin/python
fi
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}

device=$("$python" - <<'PY'
import sys

import torch

from compilewatch.contract.targets import canonical, devices

if not torch.cuda.is_available():
    sys.exit("verify_cuda: this machine has no CUDA device, or its torch is not a CUDA build")
name = torch.cuda.get_device_name()
capability = torch.cuda.get_device_capability()
exact = [row for row in devices() if row.product == name]
alike = [row for row in devices() if row.capability == capability]
if not exact and not alike:
    sys.exit(f"verify_cuda: no device like {name} {capability}: add it to contract/devices.toml")
print(canonical(f"cuda:{(exact or alike)[0].name}"))
PY
) || exit 2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for tier in auto real; do
    "$python" -c "from compilewatch.cli import main; main()" sweep --source library --models "$models" --depth reduced \
        --modes eval,train --device "$device" --tier "$tier" --fresh --output "$folder/$tier" >/dev/null
done

status=0
"$python" - "$folder" "$device" <<'PY' || status=1
import sys
from pathlib import Path

import torch

from compilewatch.contract.targets import target_label
from compilewatch.store import Store

folder, device = Path(sys.argv[1]), sys.argv[2]


def results(tier):
    stored = Store(folder / tier).open("latest").results()
    return {(r.request.model.name, target_label(r.request.target)): r for r in stored}


def said(result):
    breaks = sorted({f"{b.gb_id or b.code} {b.file.rpartition('/')[2]}:{b.line}" for b in result.breaks})
    accepted = result.fullgraph.accepted if result.fullgraph is not None else None
    return result.status.value, accepted, breaks


declared, real = results("auto"), results("real")
agree, differ, without = 0, [], []
for key in declared.keys() | real.keys():
    a, b = declared.get(key), real.get(key)
    if a is None or b is None or not (a.is_verdict and b.is_verdict):
        without.append((key, a, b))
        continue
    (status, accepted, breaks), (status_b, accepted_b, breaks_b) = said(a), said(b)
    same = (status, accepted) == (status_b, accepted_b) and (a.probed or breaks == breaks_b)
    agree += same
    if not same:
        differ.append((key, (status, accepted, breaks), (status_b, accepted_b, breaks_b)))
name = torch.cuda.get_device_name()
print(f"{name}, torch {torch.__version__}, declared as {device}: {agree} of "
      f"{agree + len(differ)} verdicts agree (status, fullgraph, breaks)")
for key, a, b in differ:
    print(f"  differs: {' '.join(key)}\n    declared: {a}\n    real:     {b}")
for key, a, b in without:
    words = [f"{r.status.value} in {r.phase.value}: {r.detail[:100]}" if r else "no result" for r in (a, b)]
    print(f"  no verdict: {' '.join(key)}\n    declared: {words[0]}\n    real:     {words[1]}")
sys.exit(1 if differ else 0)
PY

"$python" -c "from compilewatch.cli import main; main()" profile infer BertModel --size reduced \
    --device cuda --batch-sizes 1,8 --max-length 64 --trace --output "$folder/profile" || status=1

"$python" - "$folder/profile" <<'PY' || status=1
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from compilewatch.extras.profiles.store import open_profile
from compilewatch.extras.profiles.worker import measuring

stored = open_profile(Path(sys.argv[1]), "latest")
profile, wrong = stored.profile, []
for target in profile.targets:
    for point in target.points:
        where = f"{target.target} at batch {point.batch_size}"
        if point.latency is None:
            wrong.append(f"{where}: {point.status.value}: {point.detail}")
            continue
        memory, busy = point.memory, point.device_utilization
        if not memory or not memory.device_peak_bytes or memory.device_peak_bytes < profile.model_bytes:
            wrong.append(f"{where}: the peak on the device is less than the model: {memory}")
        if busy is None or not 0 < busy <= 1:
            wrong.append(f"{where}: utilisation {busy} ({'; '.join(profile.notes)})")
        print(f"{where}: {point.latency.median_seconds * 1e3:.3f} ms, {memory}, utilisation {busy}")
events = json.loads((stored.folder / "profiler_traces" / "trace.json").read_text())["traceEvents"]
kernels = sum(event.get("cat") == "kernel" for event in events)
if not kernels:
    wrong.append("the trace has no kernel")

matrix = torch.randn(4096, 4096, device="cuda")


def work():
    return matrix @ matrix @ matrix


call = measuring.finished(work)
for _ in range(3):
    call()
ratios = []
for _ in range(20):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    began = time.perf_counter()
    call()
    ratios.append((time.perf_counter() - began) * 1e3 / first.elapsed_time(last))
ratio = statistics.median(ratios)
if not 0.95 <= ratio <= 1.10:
    wrong.append(f"a call takes {ratio:.3f} of the time between CUDA events")
print(f"{profile.machine.device}: {kernels} kernels in the trace, clock / CUDA events {ratio:.3f}")
for sentence in wrong:
    print(f"  wrong: {sentence}")
sys.exit(1 if wrong else 0)
PY
exit "$status"
