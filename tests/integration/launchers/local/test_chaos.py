from __future__ import annotations

import pytest
import torch

from compilewatch.records import Phase
from tests import chaos

pytestmark = pytest.mark.torch


def test_a_behaviour_strikes_in_its_own_phase_only(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []
    monkeypatch.setitem(chaos.BEHAVIOURS, "probe", (Phase.INPUTS, lambda: struck.append("!")))
    chaos.build("probe")(torch.ones(2, 4))
    assert struck == []
    assert chaos.inputs("probe")["x"].shape == (2, 4)
    assert struck == ["!"]


def test_compile_chaos_spares_the_eager_call(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []
    monkeypatch.setitem(chaos.BEHAVIOURS, "probe", (Phase.COMPILE, lambda: struck.append("!")))
    module = chaos.build("probe")
    module(torch.ones(2, 4))
    assert struck == []
    module(torch.ones(2, 4))
    assert struck == ["!"]
