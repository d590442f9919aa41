"""What measured values of a model say: statistics, findings, and comparisons of two profiles."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy
import pytest

from compilewatch.extras.profiles import analysis
from compilewatch.extras.profiles.analysis import compare_profiles
from compilewatch.extras.profiles.records import (
    EAGER,
    BatchPoint,
    InferenceOptions,
    ProfileComparison,
    Samples,
    Verdict,
)
from compilewatch.records import Status
from tests import profiled


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
    found = analysis.timing([values[:350], values[350:]], [values])
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
    assert getattr(analysis.timing([few], []), name) is None
    assert getattr(analysis.timing([enough], []), name) is not None


def test_the_interval_of_the_median_holds() -> None:
    """1,000 series of 30 log-normal values, whose true median is 10 ms."""
    held = 0
    for seed in range(1000):
        low, high = analysis.median_interval(series(seed, 30))
        held += low <= 0.01 <= high
    assert held >= 930


def test_no_samples_are_no_timing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        analysis.timing([], [])


def test_a_single_sample_is_a_timing_without_spread() -> None:
    found = analysis.timing([[0.5]], [[0.4]])
    assert (found.median_seconds, found.stdev_seconds, found.count) == (0.5, 0.0, 1)
    assert (found.ci_low_seconds, found.ci_high_seconds) == (0.5, 0.5)


def test_rounds_that_differ_are_unstable() -> None:
    assert analysis.is_stable([[1.0, 1.01], [1.02, 1.0], [0.99, 1.0]])
    assert not analysis.is_stable([[1.0, 1.0], [1.4, 1.4], [0.8, 0.8]])


def test_a_thing_is_not_slower_than_itself() -> None:
    claims = 0
    for seed in range(200):
        draw = random.Random(seed)
        shared = loads(draw)
        found = analysis.in_turns(noisy_rounds(draw, 1, shared), noisy_rounds(draw, 1, shared))
        claims += found.verdict is Verdict.SLOWER
    assert claims <= 4


def test_ten_percent_more_are_found() -> None:
    found = []
    for seed in range(200):
        draw = random.Random(seed)
        shared = loads(draw)
        judged = analysis.in_turns(noisy_rounds(draw, 1, shared), noisy_rounds(draw, 1.1, shared))
        found.append(judged.verdict is Verdict.SLOWER)
    assert sum(found) >= 190


def test_too_few_rounds_are_no_claim() -> None:
    rounds = [[1.0]] * 7
    found = analysis.in_turns(rounds, [[2.0]] * 7)
    assert found.verdict is Verdict.UNCLEAR
    assert found.ratio == pytest.approx(2)
    assert "7 rounds" in found.reason
    assert analysis.apart([[1.0]] * 4, [[2.0]] * 9).verdict is Verdict.UNCLEAR


def test_series_of_two_days_need_a_larger_change() -> None:
    draw = random.Random(3)
    calm = [1.0] * 10
    base = noisy_rounds(draw, 1, calm)
    assert analysis.apart(base, noisy_rounds(draw, 1.05, calm)).verdict is Verdict.SAME
    assert analysis.apart(base, noisy_rounds(draw, 1.2, calm)).verdict is Verdict.SLOWER
    assert analysis.apart(base, noisy_rounds(draw, 0.8, calm)).verdict is Verdict.FASTER
    assert analysis.apart(base, noisy_rounds(draw, 1.5, loads(draw))).verdict is not Verdict.SAME


def test_an_unstable_machine_makes_no_claim() -> None:
    busy = [[1.0], [1.5], [0.7], [1.6], [0.8], [1.9]]
    found = analysis.apart(busy, [[3.0]] * 6)
    assert found.verdict is Verdict.UNCLEAR
    assert "busy" in found.reason


def test_equal_rounds_are_the_same() -> None:
    assert analysis.in_turns([[1.0]] * 10, [[1.0]] * 10).verdict is Verdict.SAME


def test_relative_rounds_cancel_a_shared_load() -> None:
    found = analysis.relative([[2.0], [4.0]], [[1.0], [2.0]])
    assert found == [[2.0], [2.0]]


def rounds(seconds: float, count: int = 10) -> Samples:
    values = tuple((seconds * (1 + n / 1000),) * 3 for n in range(count))
    return Samples(target="inductor", batch_size=4, wall_seconds=values, cpu_seconds=values)


def point(**fields: object) -> BatchPoint:
    made = BatchPoint(batch_size=4, status=Status.PASS, numerics=profiled.MATCHES)
    return msgspec.structs.replace(made, **fields)


def measured(seconds: float, **fields: object) -> BatchPoint:
    return analysis.with_latency(point(**fields), rounds(seconds), tokens_per_sample=32, threads=1)


def test_rates_follow_from_the_median() -> None:
    found = measured(0.1)
    assert found.latency is not None
    assert found.samples_per_second == pytest.approx(4 / found.latency.median_seconds)
    assert found.tokens_per_second == pytest.approx(32 * 4 / found.latency.median_seconds)
    assert found.utilization == pytest.approx(1)


def test_a_speed_up_is_eager_divided_by_compiled() -> None:
    found = analysis.with_speedup(measured(0.1, first_call_seconds=10.0), rounds(0.1), rounds(0.2))
    assert found.speedup == pytest.approx(2)
    assert found.break_even_calls_cold == pytest.approx(100, rel=0.01)
    assert found.break_even_calls_warm is None  # was not measured


def test_there_is_no_speed_up_where_numbers_differ() -> None:
    wrong = msgspec.structs.replace(profiled.MATCHES, matches=False)
    assert analysis.with_speedup(measured(0.1, numerics=wrong), rounds(0.1), rounds(0.2)) == (
        measured(0.1, numerics=wrong)
    )
    unknown = measured(0.1, numerics=None)
    assert analysis.with_speedup(unknown, rounds(0.1), rounds(0.2)).speedup is None


def test_compiling_never_pays_where_it_is_not_faster() -> None:
    found = analysis.with_speedup(measured(0.2, first_call_seconds=10.0), rounds(0.2), rounds(0.1))
    assert found.speedup == pytest.approx(0.5)
    assert found.break_even_calls_cold is None


def test_the_best_batch_has_the_most_throughput() -> None:
    points = [
        point(batch_size=1, samples_per_second=5.0),
        point(batch_size=8, samples_per_second=9.0),
        point(batch_size=16, samples_per_second=9.0),
        point(batch_size=32, status=Status.OOM),
    ]
    assert analysis.best_batch(points) == 8
    assert analysis.best_batch([]) is None


def test_the_fastest_target_has_the_right_numbers() -> None:
    made, _ = profiled.profile()
    found = analysis.fastest(made)
    assert found is not None
    assert (found[0].target, found[1].batch_size) == ("inductor", 8)
    wrong = msgspec.structs.replace(
        made.targets[1],
        points=tuple(msgspec.structs.replace(p, speedup=None) for p in made.targets[1].points),
    )
    found = analysis.fastest(msgspec.structs.replace(made, targets=(made.targets[0], wrong)))
    assert found is not None
    assert found[0].target == EAGER


def test_graph_breaks_are_named_as_the_bottleneck_with_their_line() -> None:
    made, _ = profiled.profile()
    assert analysis.bottleneck(made) == (
        "graph breaks: 12% of a call of inductor at batch 1, most of it at net.py:8"
    )


def test_a_machine_that_waits_is_the_bottleneck() -> None:
    made, _ = profiled.profile()
    points = tuple(msgspec.structs.replace(p, utilization=0.4) for p in made.targets[1].points)
    target = msgspec.structs.replace(made.targets[1], points=points)
    busy = msgspec.structs.replace(made, targets=(made.targets[0], target))
    assert analysis.bottleneck(busy).startswith("the machine: ")


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
