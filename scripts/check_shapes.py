"""Compares what models compile for many sizes with what a script of plain PyTorch says.

    python -m scripts.check_shapes                       # the models below
    python -m scripts.check_shapes BertModel timm:resnet18

For each model and each of three traces, as called and with `dynamic=True`, it prints what differs:
the graphs that each call compiles, the frames that are compiled again, and the guards that failed.
The script counts with PyTorch's own counters and reads `TORCH_LOGS=recompiles`, on real tensors of
reduced width. The exit status is 1 if something differs. All models take 40 minutes of one core.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.api.choose import one_request
from compilewatch.environments import Environments
from compilewatch.errors import CompilewatchError
from compilewatch.extras.shapes.tracing import served_by_trace, shapes_of
from compilewatch.records import Depth, ShapeSeries
from compilewatch.worker.targets.dynamo import versions

SOURCES = Path(__file__).parent.parent / "src"

MODELS = (
    *("BertModel", "BertForSequenceClassification", "RobertaForMaskedLM", "DistilBertModel"),
    *("AlbertModel", "ElectraForPreTraining", "DebertaV2Model", "MPNetModel", "ModernBertModel"),
    *("XLNetModel", "FunnelModel", "LongformerModel", "ReformerModel", "GPT2LMHeadModel"),
    *("LlamaForCausalLM", "MistralModel", "Qwen2ForCausalLM", "GemmaModel", "MixtralModel"),
    *("MambaModel", "OPTModel", "GPTNeoXModel", "T5Model", "T5ForConditionalGeneration"),
    *("BartModel", "MarianMTModel", "ViTModel", "SwinModel", "ConvNextModel", "ResNetModel"),
    *("DetrModel", "SegformerModel", "WhisperForConditionalGeneration", "Wav2Vec2Model"),
    *("HubertModel", "CLIPModel", "SiglipModel", "LlavaForConditionalGeneration", "ASTModel"),
    *("PatchTSTModel", "timm:resnet18", "timm:vit_tiny_patch16_224", "diffusers:UNet2DModel"),
)


def differences(model: str) -> Iterator[str]:
    """What compilewatch and plain PyTorch say differently of a model. The first line is a sum."""
    source, _, name = model.rpartition(":")
    request, settings = one_request(
        name,
        target="dynamo",
        mode="eval",
        dynamic=None,
        inputs_file=None,
        flags={"source": source or None, "jobs": 1},
    )
    request = msgspec.structs.replace(request, depth=Depth.REDUCED)
    environments = Environments(settings.cache_folder)
    python = environments.interpreter(request.target.environment).path
    written = json.loads(ran(python, "plain_shapes.py", msgspec.json.encode(request)))
    plain = json.loads(ran(python, "-", written["script"].encode()).splitlines()[-1])
    compilations = recompilations = 0
    lines: list[str] = []
    for trace, calls in written["traces"].items():
        served = served_by_trace("\n".join(map(json.dumps, calls)), trace)
        report = shapes_of(request, settings, served)
        for dynamic, series in ((None, report.as_called), (True, report.dynamic)):
            compilations += series.compilations
            recompilations += len(series.recompilations)
            said = plain[f"{trace} {dynamic}"]
            lines += (f"  {trace}, dynamic={dynamic}: {line}" for line in compared(series, said))
    yield f"{model}: {compilations} graphs, {recompilations} recompilations, {len(lines)} differ"
    yield from lines


def compared(series: ShapeSeries, plain: dict[str, Any]) -> Iterator[str]:
    """What differs in one series of calls."""
    for number, (call, graphs, error) in enumerate(
        zip(series.calls, plain["graphs"], plain["errors"], strict=True), start=1
    ):
        if (call.compiled, bool(call.error)) != (graphs, bool(error)):
            yield f"call {number}: {call.compiled} graphs {call.error}, plain {graphs} {error}"
    ours = [(again.call, again.guards) for again in series.recompilations]
    theirs = [(call, tuple(guards_in(message))) for call, message in plain["messages"]]
    for number, guards in ours:
        if not any(number == other and same(guards, said) for other, said in theirs):
            yield f"only compilewatch, call {number}: {guards[0]}"
    for number, said in theirs:
        if not any(number == other and same(guards, said) for other, guards in ours):
            yield f"only plain PyTorch, call {number}: {said[0]}"
    if len(ours) != len(theirs):
        yield f"{len(ours)} recompilations, plain {len(theirs)}"


def same(guards: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return sorted(guards) == sorted(others)


def guards_in(message: str) -> list[str]:
    """The guards in a message of `TORCH_LOGS=recompiles`, as a recompilation has them."""
    return [versions.guard_text(text) for text in re.findall(r"- (\d+/\d+: .*)", message)]


def ran(python: str, script: str, content: bytes) -> str:
    """What a script prints, which reads this from standard input."""
    path = script if script == "-" else str(Path(__file__).with_name(script))
    variables = os.environ | {"PYTHONPATH": str(SOURCES), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, path], input=content, capture_output=True, env=variables)
    if done.returncode:
        raise CompilewatchError(done.stderr.decode().strip().splitlines()[-1])
    return done.stdout.decode()


def main(models: list[str]) -> int:
    different = 0
    for model in models or MODELS:
        began = time.monotonic()
        try:
            first, *lines = differences(model)
        except CompilewatchError as error:
            first, lines = f"{model}: not compared: {error}", [""]
        different += bool(lines)
        print(f"{first} ({time.monotonic() - began:.0f} s)", *lines, sep="\n", flush=True)
    print(f"{different} of {len(models or MODELS)} models differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
