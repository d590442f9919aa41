"""What measured values of a model say: statistics, findings, and comparisons of two profiles."""

import random
from typing import Any

import msgspec
import pytest

from compilewatch.extras.profiles import analysis
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


def test_a_percentile_appears_with_enough_samples() -> None:
    for percent, needed in ((90, 64), (95, 130), (99, 662)):
        few, enough = (analysis.timing([series(2, count)], []) for count in (needed - 1, needed))
        assert getattr(few, f"p{percent}_seconds") is None
        assert getattr(enough, f"p{percent}_seconds") is not None


def test_the_interval_of_the_median_holds() -> None:
    """300 series of 30 log-normal values, whose true median is 10 ms."""
    intervals = (analysis.median_interval(series(seed, 30)) for seed in range(300))
    assert sum(low <= 0.01 <= high for low, high in intervals) >= 280


def test_a_single_sample_is_a_timing_without_spread_and_none_is_no_timing() -> None:
    timing = analysis.timing([[0.5]], [[0.4]])
    assert (timing.median_seconds, timing.stdev_seconds, timing.count) == (0.5, 0.0, 1)
    assert (timing.ci_low_seconds, timing.ci_high_seconds) == (0.5, 0.5)
    with pytest.raises(ValueError, match="no samples"):
        analysis.timing([], [])


def test_ten_percent_more_are_found_and_nothing_is_slower_than_itself() -> None:
    for factor, least, most in ((1.0, 0, 2), (1.1, 95, 100)):
        claims = 0
        for seed in range(100):
            draw = random.Random(seed)
            shared = loads(draw)
            before, after = (noisy_rounds(draw, pace, shared) for pace in (1, factor))
            claims += analysis.in_turns(before, after).verdict is Verdict.SLOWER
        assert least <= claims <= most


def test_too_few_rounds_are_no_claim() -> None:
    judged = analysis.in_turns([[1.0]] * 7, [[2.0]] * 7)
    assert judged.verdict is Verdict.UNCLEAR
    assert judged.ratio == pytest.approx(2)
    assert "7 rounds" in judged.reason
    assert analysis.apart([[1.0]] * 4, [[2.0]] * 9).verdict is Verdict.UNCLEAR
    assert analysis.in_turns([[1.0]] * 10, [[1.0]] * 10).verdict is Verdict.SAME


def test_series_of_two_days_need_a_larger_change_and_a_calm_machine() -> None:
    draw = random.Random(3)
    calm = [1.0] * 10
    base = noisy_rounds(draw, 1, calm)
    for factor, verdict in ((1.05, Verdict.SAME), (1.2, Verdict.SLOWER), (0.8, Verdict.FASTER)):
        assert analysis.apart(base, noisy_rounds(draw, factor, calm)).verdict is verdict
    assert analysis.apart(base, noisy_rounds(draw, 1.5, loads(draw))).verdict is not Verdict.SAME
    judged = analysis.apart([[1.0], [1.5], [0.7], [1.6], [0.8], [1.9]], [[3.0]] * 6)
    assert judged.verdict is Verdict.UNCLEAR
    assert "busy" in judged.reason


def rounds(seconds: float, count: int = 10) -> Samples:
    values = tuple((seconds * (1 + n / 1000),) * 3 for n in range(count))
    return Samples(target="inductor", batch_size=4, wall_seconds=values, cpu_seconds=values)


def measured(seconds: float, **fields: Any) -> BatchPoint:
    fields = {"numerics": profiled.MATCHES} | fields
    point = BatchPoint(batch_size=4, status=Status.PASS, **fields)
    return analysis.with_latency(point, rounds(seconds), tokens_per_sample=32, threads=1)


def test_rates_and_the_speed_up_follow_from_the_median() -> None:
    found = measured(0.1, first_call_seconds=10.0)
    assert found.latency is not None
    assert found.samples_per_second == pytest.approx(4 / found.latency.median_seconds)
    assert found.tokens_per_second == pytest.approx(32 * 4 / found.latency.median_seconds)
    assert found.utilization == pytest.approx(1)
    found = analysis.with_speedup(found, rounds(0.1), rounds(0.2))
    assert found.speedup == pytest.approx(2)
    assert found.break_even_calls_cold == pytest.approx(100, rel=0.01)
    assert found.break_even_calls_warm is None  # was not measured
    slower = analysis.with_speedup(measured(0.2, first_call_seconds=10.0), rounds(0.2), rounds(0.1))
    assert slower.speedup == pytest.approx(0.5)
    assert slower.break_even_calls_cold is None  # compiling never pays


def test_there_is_no_speed_up_where_numbers_differ_or_are_unknown() -> None:
    for numerics in (msgspec.structs.replace(profiled.MATCHES, matches=False), None):
        point = measured(0.1, numerics=numerics)
        assert analysis.with_speedup(point, rounds(0.1), rounds(0.2)) == point


def test_the_best_batch_has_the_most_throughput_and_the_right_numbers() -> None:
    rates = {1: 5.0, 8: 9.0, 16: 9.0, 32: None}
    points = [
        BatchPoint(batch_size=size, status=Status.PASS, samples_per_second=rate)
        for size, rate in rates.items()
    ]
    assert analysis.best_batch(points) == 8
    assert analysis.best_batch([]) is None
    made, _ = profiled.profile()
    found = analysis.fastest(profiled.changed(made, "inductor", speedup=None))
    assert found is not None
    assert found[0].target == EAGER


def test_graph_breaks_are_named_as_the_bottleneck_with_their_line() -> None:
    made, _ = profiled.profile()
    assert analysis.bottleneck(made) == (
        "graph breaks: 12% of a call of inductor at batch 1, most of it at net.py:8"
    )
    # A machine that waits hides everything else.
    busy = profiled.changed(made, "inductor", utilization=0.4)
    assert analysis.bottleneck(busy).startswith("the machine: ")


def compared(factor: float, **after: Any) -> ProfileComparison:
    return analysis.compare_profiles(profiled.profile(), profiled.profile(factor, seed=1, **after))


def test_what_is_slower_is_named_and_the_rest_is_not() -> None:
    same = compared(1.0)
    assert (same.obstacle, same.differences, len(same.points)) == ("", (), 6)
    assert {point.judgement.verdict for point in same.points} == {Verdict.SAME}
    slower = compared(1.3).of(Verdict.SLOWER)
    assert {(p.target, p.batch_size) for p in slower} == {("inductor", n) for n in profiled.SIZES}
    assert slower[0].judgement.ratio == pytest.approx(1.3, rel=0.05)
    assert slower[0].relative == pytest.approx(1.3, rel=0.05)
    assert slower[0].measure == "CPU time"


def test_versions_that_differ_are_named_and_two_machines_or_settings_are_not_compared() -> None:
    newer = msgspec.structs.replace(profiled.SOFTWARE, torch="2.16.0", digest="d2")
    assert "inductor: torch 2.15.0 -> 2.16.0" in compared(1.0, software=newer).differences
    same = msgspec.structs.replace(profiled.SOFTWARE, digest="d2")
    assert "eager: other packages of the environment" in compared(1.0, software=same).differences
    found = compared(2.0, machine=msgspec.structs.replace(profiled.MACHINE, cpu="Another CPU"))
    assert found.points == ()
    assert "different machines" in found.obstacle
    assert "machine: cpu Test CPU -> Another CPU" in found.differences
    options = InferenceOptions(batch_sizes=profiled.SIZES, threads=2)
    assert "--threads" in compared(2.0, options=options).obstacle
    before, _ = profiled.profile()
    lost = analysis.compare_profiles((before, ()), profiled.profile())
    assert "raw values" in lost.obstacle
