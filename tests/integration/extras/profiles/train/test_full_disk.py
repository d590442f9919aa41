"""The profiler on a file system that fills up, as seen by the training."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compilewatch.extras.profiles.train.store import read_training
from compilewatch.profiling import Profiler

pytestmark = pytest.mark.torch


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
