"""The profiler with torch, in training scripts as people write and kill them."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler._trace_validator import validate_trace

from compilewatch.extras.profiles.check import check_profiles, read_training
from compilewatch.extras.profiles.records import OperatorStat, operator_stats
from compilewatch.extras.profiles.training import OPERATORS_FILE, TRACE_FILE, Stage
from compilewatch.profiling import Profiler

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[4] / "inputs" / "examples" / "train.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run the example as a script in this process, with one thread: two wait for each other."""

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
        runpy.run_path(str(EXAMPLE), run_name="__main__")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run
    torch.set_num_threads(threads)


def train(profiler: Profiler, steps: int = 8) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiler:
        for batch in profiler.data(torch.randn(32, 64) for _ in range(steps)):
            with profiler.stage("forward"):
                output = model(batch)
            with profiler.stage("loss"):
                loss = output.square().mean()
            with profiler.stage("backward"):
                loss.backward()
            with profiler.stage("optimizer"):
                optimizer.step()
            profiler.step(loss=loss, samples=len(batch))


# Two trainings: only there are the losses of a complete script compared, to the bit.
def test_the_example_has_the_same_losses_with_the_profiler_on_and_off(
    tmp_path: Path, example: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    for profiler in ("on", "off"):
        size = ("--epochs", "2", "--steps-per-epoch", "5", "--out", str(tmp_path))
        example("--profiler", profiler, *size)
        losses[profiler] = re.findall(r"epoch \d: loss (\S+)", capsys.readouterr().out)
    assert len(losses["on"]) == 2
    assert losses["on"] == losses["off"]
    (checked,) = check_profiles(tmp_path)
    assert checked.training is not None
    assert checked.state == "finished"
    assert [step.epoch for step in checked.training.steps] == [0] * 5 + [1] * 5
    assert set(checked.training.steps[0].stages) == set(Stage)


def test_the_trace_is_valid_and_its_operators_are_those_of_key_averages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts exactly, times to the microsecond, and both cover the traced steps."""
    averages: dict[str, Any] = {}

    def table(rows: Any) -> tuple[OperatorStat, ...]:
        averages.update({row.key: row for row in rows})
        return operator_stats(rows)

    monkeypatch.setattr("compilewatch.extras.profiles.profiler.operator_stats", table)
    profiler = Profiler(tmp_path)
    train(profiler)
    assert profiler.folder is not None
    assert profiler.problems == []
    assert validate_trace(str(profiler.folder / TRACE_FILE)) == (True, [])
    events = json.loads((profiler.folder / TRACE_FILE).read_bytes())["traceEvents"]
    assert sum(event.get("name") == "backward" for event in events) >= 3
    found = read_training(profiler.folder)
    traced = [step for step in found.steps if step.traced]
    assert [step.index for step in traced] == [2, 3, 4]
    rows = {row.name: row for row in found.operators or ()}
    assert rows.keys() == averages.keys()
    for name, event in averages.items():
        row, total = rows[name], (event.self_cpu_time_total, event.cpu_time_total)
        assert (row.calls, row.cpu_memory_bytes) == (event.count, event.cpu_memory_usage)
        assert (row.self_cpu_time_us, row.cpu_time_total_us) == pytest.approx(total, abs=1)
    own = sum(row.self_cpu_time_us for row in rows.values()) / 1e6
    assert own >= 0.99 * sum(step.wall_seconds for step in traced)
    calls = [rows[name].calls for name in ("training step", "forward", "aten::addmm")]
    assert calls == [3, 3, 6]


def test_a_second_profiler_of_torch_and_a_short_training_stop_nothing(tmp_path: Path) -> None:
    beside, short = Profiler(tmp_path), Profiler(tmp_path)
    with torch.profiler.profile():
        train(beside)
    train(short, steps=3)  # it ends in the traced steps
    assert beside.folder is not None
    assert short.folder is not None
    assert len(read_training(beside.folder).steps) == 8
    assert (short.folder / OPERATORS_FILE).exists()
    assert read_training(short.folder).state == "finished"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 kB, less than the trace of a few steps."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


# Kineto writes its file itself: only a real full disk shows what it leaves behind.
def test_a_trace_that_does_not_fit_costs_no_step(small: Path) -> None:
    profiler = Profiler(small)
    train(profiler, steps=40)
    assert profiler.folder is not None
    found = read_training(profiler.folder)
    assert [step.index for step in found.steps] == list(range(40))
    assert not found.has_trace
    assert ["trace cannot be written" in problem for problem in profiler.problems] == [True]
