"""Statistics of measured times: against NumPy, against known distributions, and on edge cases."""

from __future__ import annotations

import random

import numpy
import pytest

from compilewatch.extras.profiles.infer import statistics
from compilewatch.extras.profiles.infer.records import Verdict


def series(seed: int, count: int) -> list[float]:
    """Log-normal times around 10 ms, as latencies are."""
    draw = random.Random(seed)
    return [0.01 * draw.lognormvariate(0, 0.2) for _ in range(count)]


def noisy_rounds(draw: random.Random, factor: float, loads: list[float]) -> list[list[float]]:
    """Rounds of ten CPU times under a load that lasts longer than a round."""
    return [[factor * load * draw.lognormvariate(0, 0.03) for _ in range(10)] for load in loads]


def loads(draw: random.Random) -> list[float]:
    """A load for each of ten rounds, which drifts by up to a third."""
    found, load = [], 1.0
    for _ in range(10):
        load = min(1.35, max(0.75, load * draw.lognormvariate(0, 0.06)))
        found.append(load)
    return found


def test_a_timing_has_the_figures_of_numpy() -> None:
    values = series(1, 700)
    found = statistics.timing([values[:350], values[350:]], [values])
    assert found.count == 700
    assert found.rounds == 2
    for percent in (90, 95, 99):
        given = getattr(found, f"p{percent}_seconds")
        assert given == pytest.approx(numpy.percentile(values, percent), abs=1e-12)
    assert found.median_seconds == pytest.approx(numpy.median(values), abs=1e-12)
    assert found.mean_seconds == pytest.approx(numpy.mean(values), abs=1e-12)
    assert found.stdev_seconds == pytest.approx(numpy.std(values, ddof=1), abs=1e-12)
    assert found.ci_low_seconds < found.median_seconds < found.ci_high_seconds


@pytest.mark.parametrize(("percent", "needed"), [(90, 64), (95, 130), (99, 662)])
def test_a_percentile_appears_with_enough_samples(percent: int, needed: int) -> None:
    name = f"p{percent}_seconds"
    few, enough = series(2, needed - 1), series(2, needed)
    assert getattr(statistics.timing([few], []), name) is None
    assert getattr(statistics.timing([enough], []), name) is not None


def test_the_interval_of_the_median_holds() -> None:
    """1,000 series of 30 log-normal values, whose true median is 10 ms."""
    held = 0
    for seed in range(1000):
        low, high = statistics.median_interval(series(seed, 30))
        held += low <= 0.01 <= high
    assert held >= 930


def test_no_samples_are_no_timing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        statistics.timing([], [])


def test_a_single_sample_is_a_timing_without_spread() -> None:
    found = statistics.timing([[0.5]], [[0.4]])
    assert (found.median_seconds, found.stdev_seconds, found.count) == (0.5, 0.0, 1)
    assert (found.ci_low_seconds, found.ci_high_seconds) == (0.5, 0.5)


def test_rounds_that_differ_are_unstable() -> None:
    assert statistics.is_stable([[1.0, 1.01], [1.02, 1.0], [0.99, 1.0]])
    assert not statistics.is_stable([[1.0, 1.0], [1.4, 1.4], [0.8, 0.8]])


def test_a_thing_is_not_slower_than_itself() -> None:
    claims = 0
    for seed in range(200):
        draw = random.Random(seed)
        shared = loads(draw)
        found = statistics.in_turns(noisy_rounds(draw, 1, shared), noisy_rounds(draw, 1, shared))
        claims += found.verdict is Verdict.SLOWER
    assert claims <= 4


def test_ten_percent_more_are_found() -> None:
    found = []
    for seed in range(200):
        draw = random.Random(seed)
        shared = loads(draw)
        judged = statistics.in_turns(noisy_rounds(draw, 1, shared), noisy_rounds(draw, 1.1, shared))
        found.append(judged.verdict is Verdict.SLOWER)
    assert sum(found) >= 190


def test_too_few_rounds_are_no_claim() -> None:
    rounds = [[1.0]] * 7
    found = statistics.in_turns(rounds, [[2.0]] * 7)
    assert found.verdict is Verdict.UNCLEAR
    assert found.ratio == pytest.approx(2)
    assert "7 rounds" in found.reason
    assert statistics.apart([[1.0]] * 4, [[2.0]] * 9).verdict is Verdict.UNCLEAR


def test_series_of_two_days_need_a_larger_change() -> None:
    draw = random.Random(3)
    calm = [1.0] * 10
    base = noisy_rounds(draw, 1, calm)
    assert statistics.apart(base, noisy_rounds(draw, 1.05, calm)).verdict is Verdict.SAME
    assert statistics.apart(base, noisy_rounds(draw, 1.2, calm)).verdict is Verdict.SLOWER
    assert statistics.apart(base, noisy_rounds(draw, 0.8, calm)).verdict is Verdict.FASTER
    assert statistics.apart(base, noisy_rounds(draw, 1.5, loads(draw))).verdict is not Verdict.SAME


def test_an_unstable_machine_makes_no_claim() -> None:
    busy = [[1.0], [1.5], [0.7], [1.6], [0.8], [1.9]]
    found = statistics.apart(busy, [[3.0]] * 6)
    assert found.verdict is Verdict.UNCLEAR
    assert "busy" in found.reason


def test_equal_rounds_are_the_same() -> None:
    assert statistics.in_turns([[1.0]] * 10, [[1.0]] * 10).verdict is Verdict.SAME


@pytest.mark.parametrize(
    ("compiling", "eager", "compiled", "calls"),
    [(10.0, 0.5, 0.3, 50.0), (10.0, 0.3, 0.5, None), (10.0, 0.3, 0.3, None), (None, 2, 1, None)],
)
def test_break_even(
    compiling: float | None, eager: float, compiled: float, calls: float | None
) -> None:
    assert statistics.break_even_calls(compiling, eager, compiled) == pytest.approx(calls)


def test_relative_rounds_cancel_a_shared_load() -> None:
    found = statistics.relative([[2.0], [4.0]], [[1.0], [2.0]])
    assert found == [[2.0], [2.0]]
