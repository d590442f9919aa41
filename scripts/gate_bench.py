"""Measures the gate: false alarms, what a check costs, and a session of reduced models."""

from __future__ import annotations

import contextlib
import importlib
import io
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

REPETITIONS = 50
TURNS = 7

FAMILIES = (
    *("albert", "bert", "bert-generation", "camembert", "cohere", "data2vec-text", "electra"),
    *("ernie", "gemma", "gemma2", "gpt_neox", "granite", "llama", "mistral", "mpnet", "olmo"),
    *("persimmon", "phi", "qwen2", "qwen3", "rembert", "roberta", "roformer", "stablelm"),
    "starcoder2",
)
"""Families of Transformers whose configurations have the fields of `SMALL`."""

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "embedding_size": 64,
    "vocab_size": 128,
    "pad_token_id": 0,
}

SESSION = """
import pytest
import torch
from transformers import AutoConfig, AutoModel

@pytest.mark.parametrize("family", {families!r})
def test_reduced(compile_check, family):
    layers = {{"num_hidden_layers": 2}} if family == "gemma2" else {{}}  # one of each kind
    model = AutoModel.from_config(AutoConfig.for_model(family, **{small!r} | layers)).eval()
    compile_check(model, torch.ones(2, 8, dtype=torch.long), own="transformers")
"""


def gate_false_alarms(output: Path) -> dict[str, Any]:
    """Fifty repetitions of the suite of twenty models with its baseline: no failure."""
    import torch

    from tests.gating import SOURCE, baseline_of, checked, imported

    root = output / "gate"
    models = [model() for model in imported(root, SOURCE).MODELS]
    inputs = [(torch.ones(4, 16),)] * len(models)
    with contextlib.redirect_stdout(io.StringIO()):  # some models print
        baseline = baseline_of(checked(root, models, inputs, ()))
    failures, started = 0, time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(REPETITIONS):
            failures += sum(each.failed for each in checked(root, models, inputs, baseline))
    return {
        "checks": REPETITIONS * len(models),
        "failures": failures,
        "wall_seconds": round(time.monotonic() - started, 1),
        "within": failures == 0,
    }


def gate_cost(output: Path) -> dict[str, Any]:
    """A check and `torch.compile(backend="eager")` with one call, interleaved, ten models: 1.5.

    CPU time, the least of seven turns of each, since other processes only add to it.
    """
    import torch

    from tests.gating import SOURCE, checked, imported

    root = output / "gate"
    suite = imported(root, SOURCE)
    ids = torch.ones(2, 8, dtype=torch.long)
    cases: list[tuple[Any, Any]] = [
        (getattr(suite, name)(), torch.ones(4, 16))
        for name in ("Mlp", "Stacked", "Attention", "Conv", "Gated")
    ]
    cases += [(_reduced(f), ids) for f in ("bert", "llama", "electra", "gpt_neox", "qwen3")]

    def plain(model: Any, x: Any) -> None:
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend="eager")(x)

    def check(model: Any, x: Any) -> None:
        checked(root, [model], [(x,)], ())

    least = {
        type(model).__name__: _least_seconds(partial(plain, model, x), partial(check, model, x))
        for model, x in cases
    }
    compiled, gate = (sum(times) for times in zip(*least.values(), strict=True))
    return {
        "torch_compile_seconds": round(compiled, 3),
        "check_seconds": round(gate, 3),
        "ratios": {name: round(b / a, 2) for name, (a, b) in least.items()},
        "ratio": round(gate / compiled, 3),
        "ratio_limit": 1.5,
        "within": gate / compiled <= 1.5,
    }


def gate_session(output: Path) -> dict[str, Any]:
    """One session of pytest with 25 reduced models of Transformers: 60 seconds."""
    root = output / "gate-session"
    root.mkdir()
    (root / "test_reduced.py").write_text(SESSION.format(families=FAMILIES, small=SMALL))
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--compilewatch-update"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "models": len(FAMILIES),
        "processor_seconds": round(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
        ),
        "said": done.stdout.strip().splitlines()[-1],
        "wall_seconds": round(wall, 1),
        "limit_seconds": 60,
        "within": done.returncode == 0 and wall <= 60,
    }


def gate_start(output: Path) -> dict[str, Any]:
    """What the plug-in adds to the start of pytest, CPU time without its tests: 20 ms.

    A difference of two complete sessions would be lost in their own variation.
    """
    code = (
        "import time, pytest; start = time.process_time(); "
        "import compilewatch.extras.gate.plugin as plugin; "
        "plugin.pytest_addoption(pytest.Parser(_ispytest=True)); "
        "print(time.process_time() - start)"
    )
    command = [sys.executable, "-c", code]
    seconds = [
        float(subprocess.run(command, cwd=output, capture_output=True, check=True).stdout)
        for _ in range(TURNS)
    ]
    added = min(seconds) * 1000
    return {"added_milliseconds": round(added, 1), "limit_milliseconds": 20, "within": added <= 20}


def _reduced(family: str) -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(family, **SMALL)
    return transformers.AutoModel.from_config(config).eval()


def _least_seconds(*functions: Callable[[], object]) -> tuple[float, ...]:
    """The least CPU time of each function over turns, in alternating order."""
    taken: list[list[float]] = [[] for _ in functions]
    pairs = list(zip(functions, taken, strict=True))
    for turn in range(TURNS):
        for function, into in pairs if turn % 2 else reversed(pairs):
            started = time.process_time()
            function()
            into.append(time.process_time() - started)
    return tuple(map(min, taken))
