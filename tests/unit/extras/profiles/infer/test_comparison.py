"""Comparisons of two stored profiles."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compilewatch.extras.profiles.infer.analysis import compare_profiles
from compilewatch.extras.profiles.infer.records import InferenceOptions, ProfileComparison, Verdict
from tests import profiled


def compared(factor: float, **after: Any) -> ProfileComparison:
    return compare_profiles(*profiled.profile(), *profiled.profile(factor, seed=1, **after))


def test_nothing_is_slower_than_itself() -> None:
    found = compared(1.0)
    assert not found.obstacle
    assert len(found.points) == 6
    assert {point.judgement.verdict for point in found.points} == {Verdict.SAME}
    assert found.differences == ()


def test_what_is_slower_is_named_and_the_rest_is_not() -> None:
    found = compared(1.3)
    assert {(p.target, p.batch_size) for p in found.of(Verdict.SLOWER)} == {
        ("inductor", size) for size in profiled.SIZES
    }
    slower = found.of(Verdict.SLOWER)[0]
    assert slower.judgement.ratio == pytest.approx(1.3, rel=0.05)
    assert slower.relative == pytest.approx(1.3, rel=0.05)
    assert slower.measure == "CPU time"


def test_versions_that_differ_are_named() -> None:
    newer = msgspec.structs.replace(profiled.SOFTWARE, torch="2.16.0", digest="d2")
    found = compared(1.0, software=newer)
    assert "inductor: torch 2.15.0 -> 2.16.0" in found.differences
    same = msgspec.structs.replace(profiled.SOFTWARE, digest="d2")
    assert "eager: other packages of the environment" in compared(1.0, software=same).differences


def test_times_of_two_machines_are_not_compared() -> None:
    other = msgspec.structs.replace(profiled.MACHINE, cpu="Another CPU")
    found = compared(2.0, machine=other)
    assert found.points == ()
    assert "different machines" in found.obstacle
    assert "machine: cpu Test CPU -> Another CPU" in found.differences


@pytest.mark.parametrize(("name", "value"), [("dtype", "bfloat16"), ("threads", 2)])
def test_times_of_two_settings_are_not_compared(name: str, value: Any) -> None:
    options = msgspec.structs.replace(InferenceOptions(batch_sizes=profiled.SIZES), **{name: value})
    assert f"--{name}" in compared(2.0, options=options).obstacle


def test_lost_raw_values_are_an_obstacle() -> None:
    before, _ = profiled.profile()
    found = compare_profiles(before, (), *profiled.profile())
    assert "raw values" in found.obstacle
