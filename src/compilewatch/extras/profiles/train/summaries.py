"""The figures of a profile, from its steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from compilewatch.extras.profiles.train.records import (
    STEPS_LISTED,
    Epoch,
    Spread,
    Stage,
    StageTimes,
    Step,
    TrainingMetrics,
)


def complete_steps(data: bytes) -> Iterator[Step]:
    """Yield the steps of `steps.jsonl`; raises msgspec.DecodeError for a damaged line."""
    for line in data.split(b"\n")[:-1]:
        yield msgspec.json.decode(line, type=Step)


def steady(steps: Sequence[Step], warm_up: int) -> list[Step]:
    """Return the steps that are neither warm-up nor traced; all, if there is none."""
    found = [step for step in steps if step.index >= warm_up and not step.traced]
    return found or list(steps)


def spread(values: Sequence[float]) -> Spread | None:
    """Summarise seconds; None without any."""
    if not values:
        return None
    return Spread(
        count=len(values),
        total=sum(values),
        mean=statistics.fmean(values),
        median=statistics.median(values),
        minimum=min(values),
        maximum=max(values),
        stdev=statistics.stdev(values) if len(values) > 1 else None,
    )


def stage_times(steps: Sequence[Step], warm_up: int) -> StageTimes:
    """Return the content of `stage_times.json`."""
    counted = steady(steps, warm_up)
    total = sum(step.wall_seconds for step in counted)
    found = {
        stage: spread([step.stages.get(stage, 0.0) for step in counted])
        for stage in Stage
        if any(stage in step.stages for step in counted)
    }
    stages = {stage: each for stage, each in found.items() if each is not None}
    return StageTimes(
        stages=stages,
        shares={stage: each.total / total for stage, each in stages.items() if total > 0},
        step=spread([step.wall_seconds for step in counted]),
        epochs=tuple(_epochs(steps)),
        steps=tuple(
            {"index": float(step.index), "wall_seconds": step.wall_seconds}
            | {stage.value: seconds for stage, seconds in step.stages.items()}
            for step in steps[:STEPS_LISTED]
        ),
    )


def _epochs(steps: Iterable[Step]) -> Iterator[Epoch]:
    seconds: dict[int, list[float]] = {}
    for step in steps:
        if step.epoch is not None:
            seconds.setdefault(step.epoch, []).append(step.wall_seconds)
    for epoch, values in seconds.items():
        yield Epoch(epoch=epoch, steps=len(values), seconds=sum(values))


def metrics(steps: Sequence[Step], warm_up: int) -> TrainingMetrics:
    """Return the content of `metrics.json`."""
    if not steps:
        return TrainingMetrics(steps=0, steady_steps=0)
    counted = steady(steps, warm_up)
    wall = sum(step.wall_seconds for step in counted)
    samples = [step.samples for step in counted if step.samples is not None]
    busy = [s.device_utilization for s in counted if s.device_utilization is not None]
    losses = [step.loss for step in steps if step.loss is not None]
    return TrainingMetrics(
        steps=len(steps),
        steady_steps=len(counted),
        wall_seconds=sum(step.wall_seconds for step in steps),
        overhead_seconds=sum(step.overhead_seconds for step in steps),
        first_step_seconds=steps[0].wall_seconds if steps[0].index == 0 else None,
        step_seconds_median=statistics.median(step.wall_seconds for step in counted),
        steps_per_second=len(counted) / wall if wall > 0 else None,
        samples_per_second=(
            sum(samples) / wall if wall > 0 and len(samples) == len(counted) else None
        ),
        cpu_ratio=sum(step.cpu_seconds for step in counted) / wall if wall > 0 else None,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        losses_not_finite=sum(not step.loss_finite for step in steps),
        peak_resident_bytes=_peak(step.resident_bytes for step in steps),
        peak_device_bytes=_peak(step.device_peak_bytes for step in steps),
        device_utilization=statistics.fmean(busy) if busy else None,
    )


def _peak(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def dominant_stage(times: StageTimes) -> Stage | None:
    """Return the stage with the largest share."""
    return max(times.shares, key=lambda stage: times.shares[stage], default=None)
