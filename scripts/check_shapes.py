"""Compares what models compile for many sizes with what a script of plain PyTorch says.

    python -m scripts.check_shapes                       # the models below
    python -m scripts.check_shapes BertModel timm:resnet18

For each model and each of three traces, as called and with `dynamic=True`, it prints what differs:
the graphs that each call compiles, the frames that are compiled again, and the guards that failed.
The script counts the graphs that a backend gets and reads `TORCH_LOGS=recompiles`, on real tensors
of reduced width. PyTorch's own counter has more only where a graph computes with integers alone,
which no backend gets. The exit status is 1 if something differs.
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
from compilewatch.config import load_settings
from compilewatch.environments import WORKER_VARIABLES, Environments
from compilewatch.errors import CompilewatchError
from compilewatch.records import Depth, Request, ShapeSeries
from compilewatch.worker.targets.dynamo import versions

RECOMPILE_LIMIT = 8
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
    *("PatchTSTModel", "timm:resnet18", "timm:vit_tiny_patch16_224", "timm:convnext_tiny"),
    *("diffusers:UNet2DConditionModel", "diffusers:AutoencoderKL"),
)


RUNNER = """
import contextlib, json, os, sys
import torch, torch._dynamo
with contextlib.suppress(ImportError):
    import transformers
torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.ones(1, 1))  # imports all
torch._dynamo.reset()
for line in sys.stdin:
    if os.fork() == 0:
        exec(compile(json.loads(line), "plain.py", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    if os.wait()[1]:
        print("null", flush=True)
"""
"""Runs scripts in forks of a process that has imported torch, and nothing of compilewatch."""


class Programs:
    """The two processes of an environment that answer for its models, line by line."""

    def __init__(self, python: str) -> None:
        script = str(Path(__file__).with_name("plain_shapes.py"))
        variables = os.environ | WORKER_VARIABLES | {"HF_HUB_OFFLINE": "1"}
        self._started = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            for command, environment in (
                ([python, script], variables | {"PYTHONPATH": str(SOURCES)}),
                ([python, "-c", RUNNER], variables),
            )
        ]

    def answer(self, number: int, line: bytes) -> Any:
        """What one of them says, the first line of JSON that it prints."""
        program = self._started[number]
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(line + b"\n")
        program.stdin.flush()
        for printed in program.stdout:
            if printed.startswith((b"{", b"null")):
                return json.loads(printed)
        raise CompilewatchError("a process that answers for models has ended")


def differences(request: Request, programs: Programs) -> Iterator[str]:
    """What compilewatch and plain PyTorch say differently of a model. The first line is a sum."""
    name = request.model.name
    ours = programs.answer(0, msgspec.json.encode(request))
    if ours["error"]:
        yield from (f"{name}: not compared: {ours['error']}", "")
        return
    plain = programs.answer(1, json.dumps(ours["script"]).encode())
    if plain is None:
        yield from (f"{name}: not compared: the script failed", "")
        return
    every = msgspec.convert(ours["series"], dict[str, ShapeSeries])
    lines = [
        f"  {trace}: {line}"
        for trace, series in every.items()
        for line in compared(series, plain[trace])
    ]
    graphs = sum(series.compilations for series in every.values())
    again = sum(len(series.recompilations) for series in every.values())
    limits = sum(series.limit is not None for series in every.values())
    alone = sum(sum(one["counted"]) - sum(one["graphs"]) for one in plain.values())
    failed = sum(bool(call.error) for series in every.values() for call in series.calls)
    yield (
        f"{name}: {graphs} graphs, {again} recompilations, {limits} at the limit, "
        f"{failed} calls fail, {alone} graphs of integers: {len(lines)} differ"
    )
    yield from lines


def compared(series: ShapeSeries, plain: dict[str, Any]) -> Iterator[str]:
    """What differs in one series of calls."""
    for number, (call, graphs, error) in enumerate(
        zip(series.calls, plain["graphs"], plain["errors"], strict=True), start=1
    ):
        if (call.compiled, bool(call.error)) != (graphs, bool(error)):
            yield f"call {number}: {call.compiled} graphs {call.error}, plain {graphs} {error}"
    ours = [(again.call, again.guards) for again in series.recompilations]
    logged = [(call, tuple(guards_in(message))) for call, message in plain["messages"]]
    # The ninth version of a frame is logged, but not compiled.
    theirs = [(call, guards) for call, guards in logged if len(guards) < RECOMPILE_LIMIT]
    if (series.limit is not None) != (len(theirs) < len(logged)):
        yield f"at the limit: {series.limit}, plain {len(logged) - len(theirs)}"
    for number, guards in ours:
        if not any(number == other and same(guards, said) for other, said in theirs):
            yield f"only compilewatch, call {number}: {guards[0]}"
    for number, said in theirs:
        if not any(number == other and same(guards, said) for other, guards in ours):
            yield f"only plain PyTorch, call {number}: {said[0]}"
    if len(ours) != len(theirs):
        yield f"{len(ours)} recompilations, plain {len(theirs)}"


_PRODUCT = re.compile(r"(\*.* == )\d+")
"""The product of a size and the width of a model, which is less in the script."""


def same(guards: tuple[str, ...], others: tuple[str, ...]) -> bool:
    widths = [[_PRODUCT.sub(r"\1#", text) for text in texts] for texts in (guards, others)]
    return sorted(widths[0]) == sorted(widths[1])


def guards_in(message: str) -> list[str]:
    """The guards in a message of `TORCH_LOGS=recompiles`, as a recompilation has them."""
    return [versions.guard_text(text) for text in re.findall(r"- (\d+/\d+: .*)", message)]


def request_of(name: str) -> Request:
    source, _, model = name.rpartition(":")
    request, _ = one_request(
        model,
        target="dynamo",
        mode="eval",
        dynamic=None,
        inputs_file=None,
        flags={"source": source or None, "jobs": 1},
    )
    return msgspec.structs.replace(request, depth=Depth.REDUCED)


def main(models: list[str]) -> int:
    environments = Environments(load_settings().cache_folder)
    programs: dict[str, Programs] = {}
    different = 0
    for model in models or MODELS:
        began = time.monotonic()
        request = request_of(model)
        python = environments.interpreter(request.target.environment).path
        if python not in programs:
            programs[python] = Programs(python)
        first, *lines = differences(request, programs[python])
        different += bool(lines)
        print(f"{first} ({time.monotonic() - began:.0f} s)", *lines, sep="\n", flush=True)
    print(f"{different} of {len(models or MODELS)} models differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
