"""`compilewatch profile train` and `profile check`, as a person runs them on an own model."""

import json
from pathlib import Path
from typing import Any

import pytest

from compilewatch.extras.profiles.training import Stage
from tests.team import Compilewatch

MODEL = """
import torch


class build(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, values):
        return super().forward(values).relu()

class silent(build):
    def forward(self, values):
        return values.detach()

class dies(build):
    calls = 0

    def forward(self, values):
        self.calls += 1
        if self.calls > 4:
            import os

            os._exit(9)
        return super().forward(values)

def inputs():
    return (torch.ones(3, 4),)
"""


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(MODEL)


def steps_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (Path(found["folder"]) / "steps.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# The complete way: a worker, a forked child, its files, and the check of them.
def test_an_own_model_is_trained_and_its_profile_is_checked(compilewatch: Compilewatch) -> None:
    size = ("--steps", "12", "--warmup", "2", "--trace-steps", "2", "--json")
    done = compilewatch("profile", "train", "./tiny.py:build", "--target", "eager", *size)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    steps = steps_of(found)
    assert [step["traced"] for step in steps] == [False] * 2 + [True] * 2 + [False] * 8
    for step in steps:
        assert sum(step["stages"].values()) == pytest.approx(step["wall_seconds"], rel=0.01)
        assert set(step["stages"]) == set(Stage)
    checked = compilewatch("profile", "check", "--analysis", "--report")
    assert checked.returncode in (0, 1)  # A busy machine gives findings.
    assert "finished, training, 12 steps" in checked.stdout
    assert "dominates" in checked.stdout
    assert (Path(found["folder"]) / "check_report.md").read_text().startswith("# Check of")


def test_a_model_without_a_gradient_or_that_dies_is_that_models_result(
    compilewatch: Compilewatch,
) -> None:
    models = ("./tiny.py:silent", "./tiny.py:dies", "--target", "eager", "--steps", "20", "--json")
    done = compilewatch("profile", "train", *models)
    assert done.returncode == 3
    silent, dies = json.loads(done.stdout)
    assert "has no output with a gradient" in silent["detail"]
    assert dies["status"] == "crashed"
    assert dies["findings"][0]["code"] == "incomplete"
    checked = compilewatch("profile", "check")
    assert checked.returncode == 1
    assert "its process ended without a summary, after 4 steps" in checked.stdout


def test_wrong_input_is_one_line(compilewatch: Compilewatch) -> None:
    neuron = "cannot train on 'neuron'; known: eager, inductor, inductor:BACKEND, xla"
    for arguments, said in (
        ("train ./tiny.py:build --target eager,neuron", neuron),
        ("check", "outputs contains no profile: `compilewatch profile train` makes one"),
        ("check .", "contains no profile: no steps.jsonl and no baseline_metrics.json"),
        ("check nowhere", "there is no folder nowhere"),
    ):
        done = compilewatch("profile", *arguments.split())
        assert done.returncode == 2
        assert done.stderr.strip().endswith(said)


# Only the environment with torch_xla writes the blocks of XLA's own profiler.
@pytest.mark.xla
def test_on_xla_each_named_block_appears_once_a_step(compilewatch: Compilewatch) -> None:
    size = ("--steps", "6", "--warmup", "1", "--trace-steps", "5")
    done = compilewatch("profile", "train", "./tiny.py:build", "--target", "xla", *size, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert "model_build 5, loss_backward 5, optimizer_step 5" in found["detail"]
    assert len(steps_of(found)) == 6


# Only Inductor generates code for a backward: forward, backward and losses of a compiled training.
@pytest.mark.torch
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_eager_and_inductor_train_alike_on_a_larger_batch(compilewatch: Compilewatch) -> None:
    size = ("--steps", "6", "--warmup", "2", "--trace-steps", "1", "--batch-size", "5")
    done = compilewatch("profile", "train", "./tiny.py:build", *size, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    eager, compiled = json.loads(done.stdout)
    assert (eager["target"], compiled["target"]) == ("eager", "inductor")
    losses = [profile["metrics"]["last_loss"] for profile in (eager, compiled)]
    assert compiled["same_losses"] is True, losses
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert compiled["speedup"] > 0
    assert [step["samples"] for step in steps_of(eager) + steps_of(compiled)] == [5] * 12
    figures = compiled["metrics"]
    assert figures["first_step_seconds"] > figures["step_seconds_median"]
    operators = (Path(compiled["folder"]) / "op_stats.csv").read_text()
    assert "CompiledFunctionBackward" in operators
    assert "Torch-Compiled Region" in operators
