"""A compiler that a child starts ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.contract.targets import deadlines_of
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    Deadlines,
    FactoryBuild,
    ModelSpec,
    Phase,
    Request,
    Status,
    Target,
    Tier,
)
from tests.doubles import has_ended, neuron_variables

# `neuron/test_neuronx_cc.py` has the same endings of a compiler without a worker.
pytestmark = [pytest.mark.torch, pytest.mark.matrix]

MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("double_call", torch.tensor(list(b"hang")))

    def forward(self, x):
        return self.linear(x)


def inputs():
    return {"x": torch.ones(2, 4)}
"""


def test_a_compiler_that_hangs_is_a_timeout_and_ends_with_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(MODULE)
    build = FactoryBuild(factory="nets:Net", path=str(tmp_path), inputs="nets:inputs")
    request = Request(
        model=ModelSpec(source="manifest", name="hang", build=build),
        target=Target(name="neuron"),
        key="key-hang",
        # Long enough for the compiler to be started, which is what is to be ended.
        deadlines=deadlines_of("neuron", Deadlines(neuron_compile_seconds=4.0)),
    )
    for name, value in neuron_variables(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    with LocalLauncher(jobs=1) as launcher:
        (done,) = launcher.run([request], tmp_path)
    result = done.result
    assert (result.status, result.phase) == (Status.TIMEOUT, Phase.COMPILE)
    assert [attempt.tier for attempt in result.attempts] == [Tier.FAKE]
    assert result.detail == "compile did not finish within 4 s"
    assert has_ended(int((done.artifacts / "graph.trn1" / "hanging").read_text()))
