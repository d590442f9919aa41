"""The profiler with torch, in training scripts as people write and kill them."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler._trace_validator import validate_trace

from compilewatch.extras.profiles.check import check_profiles, read_training, tail
from compilewatch.extras.profiles.profiler import operators_csv
from compilewatch.extras.profiles.training import OPERATORS_FILE, STEPS_FILE, TRACE_FILE, Stage
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


def test_the_table_of_operators_is_that_of_key_averages() -> None:
    """Against the same recording: counts exactly, times to the microsecond."""
    with torch.profiler.profile(profile_memory=True) as recorded:
        torch.randn(64, 64).mm(torch.randn(64, 64)).sum()
    table = csv.DictReader(operators_csv(recorded.key_averages()).splitlines())
    rows = {row["name"]: row for row in table}
    averages = {event.key: event for event in recorded.key_averages()}
    assert rows.keys() == averages.keys()
    for name, event in averages.items():
        assert int(rows[name]["calls"]) == event.count
        assert int(rows[name]["cpu_memory_bytes"]) == event.cpu_memory_usage
        times = (event.self_cpu_time_total, event.cpu_time_total)
        for column, total in zip(("self_cpu_time_us", "cpu_time_total_us"), times, strict=True):
            assert float(rows[name][column]) == pytest.approx(total, abs=1)


def test_the_trace_is_valid_and_the_operators_cover_the_traced_steps(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    train(profiler)
    assert profiler.folder is not None
    assert profiler.problems == []
    assert validate_trace(str(profiler.folder / TRACE_FILE)) == (True, [])
    found = read_training(profiler.folder)
    traced = [step for step in found.steps if step.traced]
    assert [step.index for step in traced] == [2, 3, 4]
    assert found.operators is not None
    own = sum(row.self_cpu_time_us for row in found.operators) / 1e6
    assert own >= 0.99 * sum(step.wall_seconds for step in traced)
    calls = {row.name: row.calls for row in found.operators}
    assert (calls["training step"], calls["forward"], calls["aten::addmm"]) == (3, 3, 6)
    events = json.loads((profiler.folder / TRACE_FILE).read_bytes())["traceEvents"]
    assert sum(event.get("name") == "backward" for event in events) >= 3


def test_a_second_profiler_of_torch_does_not_stop_the_training(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with torch.profiler.profile():
        train(profiler)
    assert profiler.folder is not None
    assert len(read_training(profiler.folder).steps) == 8


def test_a_training_that_ends_in_the_traced_steps_keeps_its_trace(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    train(profiler, steps=3)
    assert profiler.folder is not None
    assert (profiler.folder / OPERATORS_FILE).exists()
    assert read_training(profiler.folder).state == "finished"


SERVER = """
import os
import sys
import torch
from compilewatch.profiling import Profiler

def train(folder, steps):
    values = torch.ones(64, 64, requires_grad=True)
    with Profiler(folder, trace_steps=2) as profiler:
        for _ in range(steps):
            with profiler.stage("forward"):
                loss = (values @ values).mean()
            with profiler.stage("backward"):
                loss.backward()
            profiler.step(loss=loss)

for line in sys.stdin:
    folder, steps = line.split()
    pid = os.fork()
    if pid == 0:
        train(folder, int(steps))
        os._exit(0)
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""
"""Imports torch once; trains in a fork for each line that it reads."""


KILLS = 20


# Each kill hits a real process somewhere else: before, in and after the trace, and at the end.
@pytest.mark.timeout(600)
@pytest.mark.matrix
def test_kills_leave_profiles_that_are_incomplete_and_never_misread(tmp_path: Path) -> None:
    random.seed(0)
    states = []
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for number in range(KILLS):
            folder = tmp_path / str(number)
            server.stdin.write(f"{folder} {1000000 if number % 4 else 30}\n")
            server.stdin.flush()
            pid = int(server.stdout.readline())
            try:
                written = _wait_for_steps(folder, at_least=random.randrange(1, 30))
                time.sleep(random.random() / 50)
            finally:
                with suppress(ProcessLookupError):  # a short training may have ended already
                    os.kill(pid, signal.SIGKILL)
            states.append(_checked_after_kill(folder, written))
        server.stdin.close()
    assert states.count("incomplete") >= KILLS * 3 // 4
    assert set(states) <= {"incomplete", "finished"}


def _checked_after_kill(folder: Path, written: int) -> str:
    """Check the profile of a killed process, and return its state once the process has ended."""
    for _ in range(500):
        (checked,) = check_profiles(folder)
        if checked.state != "running":
            break
        time.sleep(0.01)
    assert checked.broken is None
    assert checked.training is not None
    steps = checked.training.steps
    assert len(steps) >= written
    assert [step.index for step in steps] == list(range(len(steps)))
    if checked.state == "incomplete":
        assert checked.exit_status == 1
        assert "its process ended without a summary" in checked.findings[0].found
    return checked.state


def _wait_for_steps(root: Path, *, at_least: int) -> int:
    """Return how many steps another process has written, once there are enough."""
    for _ in range(3000):
        for path in root.glob(f"*/{STEPS_FILE}"):
            if len(found := tail(path.parent)) >= at_least:
                return len(found)
        time.sleep(0.01)
    raise AssertionError(f"fewer than {at_least} steps in {root}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB, less than the trace of a few steps."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


# Kineto writes its file itself: only a real full disk shows what it leaves behind.
def test_a_trace_that_does_not_fit_costs_no_step(small: Path) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(40)))
    with Profiler(small) as profiler:
        for _ in range(40):
            with profiler.stage("forward"):
                loss = layers(torch.ones(2, 8)).sum()
            with profiler.stage("backward"):
                loss.backward()
            profiler.step(loss=loss)
    assert profiler.folder is not None
    found = read_training(profiler.folder)
    assert [step.index for step in found.steps] == list(range(40))
    assert not found.has_trace
    assert ["trace cannot be written" in problem for problem in profiler.problems] == [True]
