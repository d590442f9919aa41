"""What measured values of a model say: points, costs of breaks, and the main findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from compilewatch.extras.profiles.infer import statistics
from compilewatch.extras.profiles.infer.records import (
    EAGER,
    BatchPoint,
    InferenceProfile,
    Samples,
    TargetProfile,
    Verdict,
    target_kind,
)
from compilewatch.records import Status

TRACED = (EAGER, "inductor")
"""The kinds of targets of which `torch.profiler` records operators."""

NOTABLE = 0.10
"""A share of a call that is worth naming as its bottleneck."""


def with_latency(
    point: BatchPoint, samples: Samples, *, tokens_per_sample: int | None, threads: int
) -> BatchPoint:
    """A point with the timing of its rounds and the rates that follow from the median."""
    latency = statistics.timing(samples.wall_seconds, samples.cpu_seconds)
    seconds, used = latency.median_seconds, latency.cpu_median_seconds
    rate = point.batch_size / seconds if seconds else None
    busy = used / seconds / threads if used and seconds else None
    return msgspec.structs.replace(
        point,
        latency=latency,
        samples_per_second=rate,
        tokens_per_second=rate * tokens_per_sample if rate and tokens_per_sample else None,
        utilization=min(1.0, busy) if busy is not None else None,
    )


def with_speedup(point: BatchPoint, samples: Samples, eager: Samples) -> BatchPoint:
    """A point compared with eager mode of the same rounds; unchanged where numbers differ."""
    numerics = point.numerics
    if numerics is None or (numerics.deterministic and not numerics.matches):
        return point
    judged = statistics.in_turns(samples.wall_seconds, eager.wall_seconds)
    if judged.ratio is None:
        return point
    point = msgspec.structs.replace(
        point, speedup=judged.ratio, speedup_low=judged.ratio_low, speedup_high=judged.ratio_high
    )
    if judged.verdict is not Verdict.SLOWER or point.latency is None:
        return point  # eager mode is not slower for certain, so compiling never pays
    own = point.latency.median_seconds
    return msgspec.structs.replace(
        point,
        break_even_calls_cold=statistics.break_even_calls(
            point.first_call_seconds, own * judged.ratio, own
        ),
        break_even_calls_warm=statistics.break_even_calls(
            point.warm_first_call_seconds, own * judged.ratio, own
        ),
    )


def trace_folder(target: str, targets: Sequence[str]) -> str:
    """The folder of a target's trace, relative to the profile.

    The files of the main target are in `profiler_traces` itself, the others below it.
    """
    main = main_traced(targets)
    return "profiler_traces" if target == main else f"profiler_traces/{target}"


def main_traced(targets: Sequence[str]) -> str | None:
    """The target whose trace and operators have the usual names: the first that is compiled."""
    traced = [target for target in targets if target_kind(target) in TRACED]
    return next((t for t in traced if target_kind(t) != EAGER), traced[0] if traced else None)


def best_batch(points: Iterable[BatchPoint]) -> int | None:
    """The measured batch size with the most samples a second; of equal ones the smallest."""
    rates = [(p.samples_per_second, -p.batch_size) for p in points if p.samples_per_second]
    return -max(rates)[1] if rates else None


def best_point(target: TargetProfile) -> BatchPoint | None:
    """The point of the best batch size of a target."""
    return next((p for p in target.points if p.batch_size == target.best_batch_size), None)


def fastest(profile: InferenceProfile) -> tuple[TargetProfile, BatchPoint] | None:
    """The target and batch size with the most samples a second whose numbers are right."""
    measured = (
        (target, point)
        for target, point in profile.points()
        if point.samples_per_second
        and (target_kind(target.target) == EAGER or point.speedup is not None)
    )
    return max(measured, key=lambda each: each[1].samples_per_second or 0.0, default=None)


def broken(profile: InferenceProfile) -> tuple[TargetProfile, BatchPoint] | None:
    """The first target with graph breaks whose costs are known, at its smallest batch size."""
    return next(((target, point) for target, point in profile.points() if point.breaks), None)


def bottleneck(profile: InferenceProfile) -> str:
    """The main bottleneck in one sentence, from what was measured of the fastest target."""
    chosen = fastest(profile)
    if chosen is None:
        return "nothing was measured"
    target, point = chosen
    where = f"{target.target} at batch {point.batch_size}"
    if point.utilization is not None and point.utilization < 1 - 2 * NOTABLE:
        return (
            f"the machine: of the time of {where}, the model had the CPU for "
            f"{point.utilization:.0%} only"
        )
    compiled = next((t for t in profile.targets if any(p.segments for p in t.points)), None)
    if compiled is not None:
        worst = max((p for p in compiled.points if p.segments), key=_break_share)
        if _break_share(worst) >= NOTABLE:
            cost = worst.breaks[0]
            return (
                f"graph breaks: {_break_share(worst):.0%} of a call of {compiled.target} at batch "
                f"{worst.batch_size}, most of it at {cost.file}:{cost.line}"
            )
    segments = point.segments
    if segments is not None and segments.graph_ratio < 1 - NOTABLE:
        return f"overhead around the compiled graphs: {1 - segments.graph_ratio:.0%} of {where}"
    return f"computing: {_scaling(target.points)}"


def _break_share(point: BatchPoint) -> float:
    return sum(cost.share for cost in point.breaks)


def _scaling(points: Sequence[BatchPoint]) -> str:
    """What the time per sample does as the batch grows."""
    measured = [p for p in points if p.status is Status.PASS and p.samples_per_second]
    if len(measured) < 2:
        return "the operators of the model take the time"
    first, last = measured[0], measured[-1]
    assert first.samples_per_second is not None
    assert last.samples_per_second is not None
    gain = last.samples_per_second / first.samples_per_second
    if gain > 1 + 5 * NOTABLE:
        return (
            f"small batches do not fill the machine; batch {last.batch_size} gives "
            f"{gain:.1f} times the throughput of batch {first.batch_size}"
        )
    if gain < 1 - NOTABLE:
        return (
            f"memory: batch {last.batch_size} gives only {gain:.0%} of the throughput of "
            f"batch {first.batch_size}"
        )
    return "the time of a call grows with its batch, so the machine is full at any batch size"
