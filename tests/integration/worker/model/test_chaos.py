from __future__ import annotations

import pytest
import torch

from compilewatch.records import ChaosBuild, Phase
from compilewatch.sources.chaos import BEHAVIOURS, ChaosSource
from compilewatch.worker.model import chaos

pytestmark = pytest.mark.torch


def test_the_source_offers_every_behaviour_that_there_is() -> None:
    assert sorted(chaos.BEHAVIOURS) == list(BEHAVIOURS)


def test_specs_are_unique_and_build_what_they_are_named_after() -> None:
    models = ChaosSource().models()
    assert len({model.name for model in models}) == len(models) == len(BEHAVIOURS)
    for model in models:
        assert isinstance(model.build, ChaosBuild)
        assert model.name == f"chaos/{model.build.behaviour}"


def test_the_well_behaved_one_computes() -> None:
    module = chaos.build("ok")
    assert module(**chaos.example_kwargs()).shape == (2, 4)


def test_a_behaviour_strikes_in_its_own_phase_only(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []
    monkeypatch.setitem(chaos.BEHAVIOURS, "probe", (Phase.INPUTS, lambda: struck.append("!")))
    chaos.build("probe")(**chaos.example_kwargs())
    chaos.misbehave("probe", Phase.SETUP)
    assert struck == []
    chaos.misbehave("probe", Phase.INPUTS)
    assert struck == ["!"]


def test_compile_chaos_spares_the_eager_call(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []
    monkeypatch.setitem(chaos.BEHAVIOURS, "probe", (Phase.COMPILE, lambda: struck.append("!")))
    module = chaos.build("probe")
    module(torch.ones(2, 4))
    assert struck == []
    module(torch.ones(2, 4))
    assert struck == ["!"]
