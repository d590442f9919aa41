"""The reduction with a double of timm's builder; integration tests have the real one."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from compilewatch.worker.model.timm_depth import BUILDER, one_block_of_each_kind

EXPAND, PLAIN, ATTEND = {"kind": "a", "s": 2}, {"kind": "a", "s": 1}, {"kind": "m"}


class Config:
    model_type = "with_tower"

    def __init__(self, architecture: str | None) -> None:
        self.architecture = architecture

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


class Parent(Config):
    def __init__(self, tower: Config) -> None:
        super().__init__(None)
        self.vision_config = tower


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with the function of timm's builder that repeats blocks; the multiplier is last."""
    made: Any = types.ModuleType(BUILDER)
    made._scale_stage_depth = lambda blocks, repeats, *_: [
        dict(block) for block, n in zip(blocks, repeats, strict=True) for _ in range(n)
    ]
    timm = types.ModuleType("timm")
    timm.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.models", types.ModuleType("timm.models"))
    monkeypatch.setitem(sys.modules, BUILDER, made)
    return made


def stage(builder: Any) -> list[dict[str, Any]]:
    """A stage as timm describes it: one block that shrinks, then two kinds in turns."""
    blocks = [EXPAND, PLAIN, ATTEND, PLAIN, ATTEND]
    return list(builder._scale_stage_depth(blocks, [1, 2, 1, 3, 1], 1.0))


@pytest.mark.parametrize("config", [Config("mobilenet"), Parent(Config("mobilenet"))])
def test_a_stage_has_its_kinds_in_their_order(config: Config, builder: types.ModuleType) -> None:
    assert len(stage(builder)) == 8
    with one_block_of_each_kind(config):
        assert stage(builder) == [EXPAND, PLAIN, ATTEND]
    assert len(stage(builder)) == 8


def test_the_builder_is_restored_after_an_error(builder: types.ModuleType) -> None:
    with pytest.raises(ValueError, match="wrong size"), one_block_of_each_kind(Config("mobilenet")):
        raise ValueError("wrong size")
    assert len(stage(builder)) == 8


def test_nothing_changes_for_other_models(builder: types.ModuleType) -> None:
    with one_block_of_each_kind(Config(None)):
        assert len(stage(builder)) == 8


def test_nothing_happens_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(KeyError), one_block_of_each_kind(Config("mobilenet")):
        raise KeyError
