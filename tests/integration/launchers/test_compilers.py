"""Compilers that a child starts: what they do becomes its result, and they end with it."""

from __future__ import annotations

import msgspec
import pytest

from compilewatch.contract.targets import deadlines_of
from compilewatch.launchers import Completed
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    Deadlines,
    FactoryBuild,
    ModelSpec,
    NeuronDetail,
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
    def __init__(self, behaviour):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("double_call", torch.tensor(list(behaviour.encode())))

    def forward(self, x):
        return self.linear(x)


def inputs():
    return {"x": torch.ones(2, 4)}


def ok():
    return Net("ok")


def hang():
    return Net("hang")


def kill():
    return Net("kill")
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Completed]:
    """Three models through the neuron target on doubles, by what the compiler does."""
    folder = tmp_path_factory.mktemp("compilers")
    (folder / "nets.py").write_text(MODULE)
    asked = [
        Request(
            model=ModelSpec(
                source="manifest",
                name=name,
                build=FactoryBuild(factory=f"nets:{name}", path=str(folder), inputs="nets:inputs"),
            ),
            target=Target(name="neuron"),
            key=f"key-{name}",
            deadlines=deadlines,
        )
        for name, deadlines in (
            ("ok", Deadlines()),
            ("kill", Deadlines()),
            # Long enough for the compiler to be started, which is what is to be ended.
            ("hang", deadlines_of("neuron", Deadlines(neuron_compile_seconds=4.0))),
        )
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in neuron_variables(folder / "cache").items():
            patch.setenv(name, value)
        with LocalLauncher(jobs=2) as launcher:
            found = list(launcher.run(asked, folder))
    return {each.result.request.model.name: each for each in found}


def test_an_executable_is_kept_with_its_detail(answers: dict[str, Completed]) -> None:
    result, artifacts = answers["ok"].result, answers["ok"].artifacts
    assert (result.status, result.phase, result.tier) == (Status.PASS, Phase.DONE, Tier.REAL)
    assert [attempt.tier for attempt in result.attempts] == [Tier.FAKE]
    assert artifacts is not None
    assert (artifacts / "graph.trn1" / "graph.neff").stat().st_size > 1024
    kept = (artifacts / "graph.trn1" / "neuron.json").read_bytes()
    assert msgspec.json.decode(kept, type=NeuronDetail) == result.details


def test_a_compiler_that_is_killed_is_an_oom_of_the_compile_phase(
    answers: dict[str, Completed],
) -> None:
    result = answers["kill"].result
    assert (result.status, result.phase) == (Status.OOM, Phase.COMPILE)
    assert isinstance(result.details, NeuronDetail)
    assert result.details.failure is not None
    assert result.details.failure.kind == "host_memory"


def test_a_compiler_that_hangs_is_a_timeout_and_ends_with_the_child(
    answers: dict[str, Completed],
) -> None:
    result, artifacts = answers["hang"].result, answers["hang"].artifacts
    assert (result.status, result.phase) == (Status.TIMEOUT, Phase.COMPILE)
    assert result.detail == "compile did not finish within 4 s"
    assert artifacts is not None
    assert has_ended(int((artifacts / "graph.trn1" / "hanging").read_text()))
