"""Measures the gate: false alarms, what a check costs, and a session of reduced models."""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from scripts.timing import Figures, cpu_of_children, in_turns, limited, seconds_of

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


def gate_false_alarms(output: Path) -> Figures:
    """Fifty repetitions of the suite of twenty models with its baseline: no failure."""
    import torch

    from tests.gating import SOURCE, baseline_of, checked, imported

    root = output / "gate"
    models = [model() for model in imported(root, SOURCE).MODELS]
    inputs = [(torch.ones(4, 16),)] * len(models)
    failures, started = 0, time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):  # some models print
        baseline = baseline_of(checked(root, models, inputs, ()))
        for _ in range(REPETITIONS):
            failures += sum(check.failed for check in checked(root, models, inputs, baseline))
    figures = {"checks": REPETITIONS * len(models), "failures": failures}
    wall = round(time.monotonic() - started, 1)
    return limited(figures | {"wall_seconds": wall}, failures=0)


def gate_cost(output: Path) -> Figures:
    """A check and `torch.compile(backend="eager")` with one call, interleaved, ten models: 1.5.

    CPU time, the least of seven turns of each, since other processes only add to it.
    """
    import torch

    from tests.gating import SOURCE, checked, imported

    root = output / "gate"
    suite = imported(root, SOURCE)
    ids = torch.ones(2, 8, dtype=torch.long)
    transformers = importlib.import_module("transformers")

    def reduced(family: str) -> Any:
        config = transformers.AutoConfig.for_model(family, **SMALL)
        return transformers.AutoModel.from_config(config).eval()

    cases: list[tuple[Any, Any]] = [
        (getattr(suite, name)(), torch.ones(4, 16))
        for name in ("Mlp", "Stacked", "Attention", "Conv", "Gated")
    ]
    cases += [(reduced(f), ids) for f in ("bert", "llama", "electra", "gpt_neox", "qwen3")]

    def plain(model: Any, x: Any) -> None:
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend="eager")(x)

    def check(model: Any, x: Any) -> None:
        checked(root, [model], [(x,)], ())

    least = {}
    for model, x in cases:
        calls = (partial(plain, model, x), partial(check, model, x))
        measures = [partial(seconds_of, call, time.process_time) for call in calls]
        least[type(model).__name__] = tuple(map(min, in_turns(measures, TURNS)))
    compiled, gate = (sum(times) for times in zip(*least.values(), strict=True))
    figures = {
        "torch_compile_seconds": round(compiled, 3),
        "check_seconds": round(gate, 3),
        "ratios": {name: round(b / a, 2) for name, (a, b) in least.items()},
        "ratio": round(gate / compiled, 3),
    }
    return limited(figures, ratio=1.5)


def gate_session(output: Path) -> Figures:
    """One session of pytest with 25 reduced models of Transformers: 60 seconds."""
    root = output / "gate-session"
    root.mkdir()
    (root / "test_reduced.py").write_text(SESSION.format(families=FAMILIES, small=SMALL))
    started, before = time.monotonic(), cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--compilewatch-update"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    figures = {
        "models": len(FAMILIES),
        "wall_seconds": round(time.monotonic() - started, 1),
        "processor_seconds": round(cpu_of_children() - before, 1),
        "said": done.stdout.strip().splitlines()[-1],
        "within": done.returncode == 0,
    }
    return limited(figures, wall_seconds=60)


def gate_start(output: Path) -> Figures:
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
    added = {"added_milliseconds": round(min(seconds) * 1000, 1)}
    return limited(added, added_milliseconds=20)
