"""What a training profile shows: where the time goes, what deserves attention, what to do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from compilewatch.extras.profiles.train.records import (
    STEPS_LISTED,
    Epoch,
    FindingCode,
    OperatorStat,
    ProfileFinding,
    Spread,
    Stage,
    StageTimes,
    Step,
    TrainingMetrics,
    TrainingProfile,
)

LEAST_STEPS = 5
"""Steady steps below which shares and spreads say little."""

DATA_SHARE = 0.2
OPTIMIZER_SHARE = 0.3
OTHER_SHARE = 0.2
OVERHEAD_SHARE = 0.1
"""Of the time of the steps; the files and the trace are written between steps."""

SPREAD = 0.25
"""Interquartile range over median beyond which torch.utils.benchmark warns of wide spread."""

GROWTH = 0.1
"""Growth of memory from the first to the last quarter of the steady steps."""

CPU_RATIO = 0.5
"""CPU time over wall time below which a training on the CPU mostly waits."""

ANNOTATIONS = frozenset({"training step", *Stage})
"""Rows of `op_stats.csv` that are parts of the step and not operators."""

ADVICE: dict[Stage, str] = {
    Stage.DATA: "load batches in parallel (DataLoader num_workers, prefetch_factor, pin_memory)",
    Stage.ZERO_GRAD: "use zero_grad(set_to_none=True), the default",
    Stage.FORWARD: "compile the model (torch.compile), and look for graph breaks with "
    "`compilewatch explain`",
    Stage.LOSS: "compile the loss together with the model",
    Stage.BACKWARD: "backward usually takes twice as long as forward; compile the model, use "
    "bfloat16, or checkpoint fewer layers",
    Stage.OPTIMIZER: "use a fused or foreach optimizer, or compile optimizer.step",
    Stage.OTHER: "put the rest of the loop into stages: logging, .item(), evaluation, checkpoints",
}


def times_of(profile: TrainingProfile) -> StageTimes:
    """Return the stage times, computed from the steps: those of a running profile, too."""
    return stage_times(profile.steps, profile.config.warm_up_steps)


def metrics_of(profile: TrainingProfile) -> TrainingMetrics:
    """Return the metrics, computed from the steps."""
    return metrics(profile.steps, profile.config.warm_up_steps)


def findings(profile: TrainingProfile) -> tuple[ProfileFinding, ...]:
    """Return everything that deserves attention, what concerns the profile itself first."""
    found = [*_about_profile(profile)]
    counted = steady(profile.steps, profile.config.warm_up_steps)
    if profile.steps:
        found += _about_time(profile, counted)
        found += _about_memory(counted)
    return tuple(found)


def top_operators(profile: TrainingProfile, count: int = 10) -> tuple[OperatorStat, ...]:
    """Return the operators with the most time of their own, without steps and stages."""
    rows = [row for row in profile.operators or () if row.name not in ANNOTATIONS]
    rows.sort(key=lambda row: -(row.self_cpu_time_us + row.self_device_time_us))
    return tuple(rows[:count])


def explanation(profile: TrainingProfile) -> tuple[str, ...]:
    """Return sentences that say what dominates."""
    return tuple(_explained(profile))


def _explained(profile: TrainingProfile) -> Iterator[str]:
    times, figures = times_of(profile), metrics_of(profile)
    stage = dominant_stage(times)
    if stage is None or times.step is None:
        yield "No step was recorded, so there is nothing to explain."
        return
    share = times.shares[stage]
    yield (
        f"{stage} dominates: {share:.0%} of {times.step.count} steady steps, "
        f"{times.stages[stage].median * 1e3:.3g} ms in the median step of "
        f"{times.step.median * 1e3:.3g} ms. To make it faster: {ADVICE[stage]}."
    )
    first = figures.first_step_seconds
    if first is not None and first > 2 * times.step.median:
        cost = first - times.step.median
        yield (
            f"The first step took {first:.3g} s, {cost:.3g} s more than a median step: "
            "compilation, caches and allocations. Averages leave it out."
        )
    rows = top_operators(profile, 3)
    total = sum(row.self_cpu_time_us for row in profile.operators or ())
    if rows and total > 0:
        said = ", ".join(f"{row.name} {row.self_cpu_time_us / total:.0%}" for row in rows)
        yield f"Operators with the most time of their own in the traced steps: {said}."


def _about_profile(profile: TrainingProfile) -> Iterator[ProfileFinding]:
    steps = len(profile.steps)
    if profile.state == "running":
        yield ProfileFinding(
            code=FindingCode.RUNNING,
            found=f"it is still being written: {steps} steps so far",
            advice="check it again when the training has ended",
        )
    if profile.state == "incomplete":
        torn = "; the last line was cut off" if profile.torn else ""
        yield ProfileFinding(
            code=FindingCode.INCOMPLETE,
            found=f"its process ended without a summary, after {steps} steps{torn}",
            advice="the steps can be used; run the training again for the other files",
        )
    if profile.summary is not None and profile.summary.error is not None:
        yield ProfileFinding(
            code=FindingCode.FAILED,
            found=f"the training ended with {profile.summary.error}",
            advice="correct the training script",
        )
    if profile.state != "running" and not steps:
        yield ProfileFinding(
            code=FindingCode.NO_STEPS,
            found="no step was recorded",
            advice="call profiler.step() at the end of each step",
        )
    lost = profile.steps[-1].index + 1 - steps if steps else 0
    lost = max(lost, profile.summary.steps_lost if profile.summary is not None else 0)
    if lost > 0:
        yield ProfileFinding(
            code=FindingCode.STEPS_LOST,
            found=f"{lost} steps could not be written",
            advice="free space on the disk, and see `problems` in profiler_summary.json",
        )
    planned = profile.config.traced_from
    ended = profile.state in ("finished", "failed")
    if planned is not None and ended and steps > planned and not profile.has_trace:
        yield ProfileFinding(
            code=FindingCode.NO_TRACE,
            found="the planned trace is missing",
            advice="see `problems` in profiler_summary.json",
        )


def _about_time(profile: TrainingProfile, counted: Sequence[Step]) -> Iterator[ProfileFinding]:
    times, figures = times_of(profile), metrics_of(profile)
    if figures.losses_not_finite:
        yield ProfileFinding(
            code=FindingCode.LOSS_NOT_FINITE,
            found=f"the loss was infinite or not a number in {figures.losses_not_finite} steps",
            advice="lower the learning rate, clip gradients, or look for a division by zero",
        )
    if len(counted) < LEAST_STEPS:
        yield ProfileFinding(
            code=FindingCode.FEW_STEPS,
            found=f"only {len(counted)} steady steps, too few for shares and spreads",
            advice=f"run at least {profile.config.warm_up_steps + LEAST_STEPS + 3} steps",
        )
        return
    for stage, limit, code in (
        (Stage.DATA, DATA_SHARE, FindingCode.DATA_BOUND),
        (Stage.OPTIMIZER, OPTIMIZER_SHARE, FindingCode.OPTIMIZER_BOUND),
        (Stage.OTHER, OTHER_SHARE, FindingCode.NOT_COVERED),
    ):
        share = times.shares.get(stage, 0.0)
        if share > limit:
            what = "no stage covers" if stage is Stage.OTHER else f"the stage {stage} takes"
            yield ProfileFinding(
                code=code, found=f"{what} {share:.0%} of a step", advice=ADVICE[stage]
            )
    low, middle, high = statistics.quantiles((s.wall_seconds for s in counted), n=4)
    if middle > 0 and (high - low) / middle > SPREAD:
        yield ProfileFinding(
            code=FindingCode.UNSTABLE,
            found="step times vary: the middle half of them spreads over "
            f"{(high - low) / middle:.2g} times the median",
            advice="run on an idle machine, pin threads, or pad batches to equal shapes",
        )
    ratio = figures.cpu_ratio
    if profile.config.device == "cpu" and ratio is not None and ratio < CPU_RATIO:
        yield ProfileFinding(
            code=FindingCode.WAITING,
            found=f"the process used the CPU for only {ratio:.0%} of the time",
            advice="look for input and output, locks and other processes on this machine",
        )
    if figures.overhead_seconds > OVERHEAD_SHARE * figures.wall_seconds:
        yield ProfileFinding(
            code=FindingCode.OVERHEAD,
            found=f"the profiler itself took {figures.overhead_seconds:.3g} s between steps, for "
            f"{figures.wall_seconds:.3g} s of steps",
            advice="no step contains this time; trace fewer steps for a shorter training",
        )


def _about_memory(counted: Sequence[Step]) -> Iterator[ProfileFinding]:
    used = [step.resident_bytes for step in counted if step.resident_bytes is not None]
    quarter = len(used) // 4
    if quarter < 5:
        return
    before, after = statistics.median(used[:quarter]), statistics.median(used[-quarter:])
    middle = statistics.median(used[quarter:-quarter])
    if after > (1 + GROWTH) * before and before < middle < after:
        yield ProfileFinding(
            code=FindingCode.MEMORY_GROWS,
            found=f"memory grows: {before / 1e6:,.0f} MB to {after / 1e6:,.0f} MB",
            advice="keep no tensors with gradients, such as losses in a list: use loss.item()",
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
