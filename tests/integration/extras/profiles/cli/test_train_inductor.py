"""Training on Inductor, as a person runs it on an own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.team import run_here

MODEL = """
import torch


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer(values).relu()


def build() -> torch.nn.Module:
    return Tiny()


def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.ones(3, 4),)
"""


# Only Inductor generates code for a backward: forward, backward and losses of a compiled training.
# In `make test`, test_profile_train.py trains, and test_profile.py compiles with Inductor.
@pytest.mark.torch
@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("warm_launcher")
def test_eager_and_inductor_train_alike_on_a_larger_batch(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(MODEL)
    size = ("--steps", "6", "--warmup", "2", "--trace-steps", "1", "--batch-size", "5")
    variables = {"NO_COLOR": "1", "COMPILEWATCH_OUTPUT_DIR": "outputs"}
    arguments = ("profile", "train", "./tiny.py:build", *size, "--json")
    done = run_here(tmp_path, variables, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [each["target"] for each in found] == ["eager", "inductor"]
    compiled = found[1]
    losses = [each["metrics"]["last_loss"] for each in found]
    assert compiled["same_losses"] is True, losses
    assert compiled["speedup"] > 0
    for each in found:
        lines = (Path(each["folder"]) / "steps.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        assert [step["samples"] for step in steps] == [5] * 6
        assert (Path(each["folder"]) / "op_stats.csv").exists()
    figures = compiled["metrics"]
    assert figures["first_step_seconds"] > figures["step_seconds_median"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    operators = (Path(compiled["folder"]) / "op_stats.csv").read_text()
    assert "CompiledFunctionBackward" in operators
    assert "Torch-Compiled Region" in operators
