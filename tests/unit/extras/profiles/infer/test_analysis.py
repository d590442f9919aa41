"""What measured values of a model say."""

from __future__ import annotations

import msgspec
import pytest

from compilewatch.extras.profiles.infer import analysis
from compilewatch.extras.profiles.infer.records import EAGER, BatchPoint, Samples
from compilewatch.records import Status
from tests import profiled


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
