"""A tower that timm builds by its name, in an environment that has timm."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.config.settings import load_settings
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    ClassBuild,
    Depth,
    ModelSpec,
    Request,
    Result,
    Status,
    Target,
    Tier,
)

# Only timm itself shows that its builder is called as worker/model/timm_depth.py expects.
pytestmark = [pytest.mark.torch, pytest.mark.vision, pytest.mark.matrix]

ENVIRONMENT = "vision"


def evaluated(name: str, scratch: Path) -> Result:
    asked = Request(
        model=ModelSpec(source="library", name=name, build=ClassBuild(class_name=name)),
        target=Target(environment=ENVIRONMENT),
        key=name,
        tier=Tier.FAKE,
        depth=Depth.REDUCED,
        keep_artifacts=False,
    )
    cache = load_settings().cache_folder
    with LocalLauncher(1, (ENVIRONMENT,), cache=cache) as launcher:
        (attempt,) = launcher.run([asked], scratch)
    return attempt.result


def test_reduced_depth_keeps_one_block_of_each_kind(tmp_path: Path) -> None:
    result = evaluated("Gemma3nModel", tmp_path)
    assert result.status is Status.GRAPH_BREAK, result.detail
    assert {(each.code, each.function) for each in result.breaks} == {
        ("GB0124", "torch_compilable_check")
    }
    # With all 84 blocks of the tower: 2,056 million parameters and 2,602 operations.
    assert result.parameters is not None
    assert result.parameters < 1_900_000_000
    assert result.ops is not None
    assert result.ops < 1_500


def test_reduced_depth_keeps_two_of_a_transformers_blocks(tmp_path: Path) -> None:
    result = evaluated("PeVideoModel", tmp_path)
    # At its first call, Transformers installs hooks for outputs behind a lock.
    assert result.status is Status.GRAPH_BREAK, result.detail
    # With all 24 blocks of the tower: 498 million parameters and 1,188 operations.
    assert result.parameters is not None
    assert result.parameters < 250_000_000
    assert result.ops is not None
    assert result.ops < 400
