"""Training profiles: the records of their files, and what they show.

The profiler of training scripts imports this module, so it imports little.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from compilewatch.extras.profiles.records import OperatorStat
from compilewatch.records import Record

TRAINING_VERSION = 1
"""Version of all files of a training profile."""

CONFIG_FILE = "config.json"
STEPS_FILE = "steps.jsonl"
METRICS_FILE = "metrics.json"
STAGES_FILE = "stage_times.json"
SUMMARY_FILE = "profiler_summary.json"
OPERATORS_FILE = "op_stats.csv"
TRACE_FILE = "trace.json"


class Stage(StrEnum):
    """The parts of a training step. `other` is the rest of the step, which no stage covers."""

    DATA = "data"
    ZERO_GRAD = "zero_grad"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class TrainingConfig(Record, frozen=True, kw_only=True):
    """`config.json`, written first: what is profiled, in which process, on what.

    `model`, `target` and `settings` are what the caller said. `synchronized` says whether the
    stages of an asynchronous device end when its work has ended. `threads` is torch's number of
    threads, None before torch is imported.
    """

    id: str
    started_at: str
    pid: int
    python: str
    cores: int
    machine: str
    schema_version: int = TRAINING_VERSION
    torch: str | None = None
    threads: int | None = None
    device: str = "cpu"
    synchronized: bool = False
    model: str | None = None
    target: str | None = None
    warm_up_steps: int = 0
    traced_from: int | None = None
    settings: dict[str, str | int | float | bool | None] = {}


class Step(Record, frozen=True, kw_only=True):
    """One line of `steps.jsonl`. `stages` are exclusive seconds and add up to `wall_seconds`.

    `index` counts from 0. `at_seconds` is when the step began, since the profile began.
    `overhead_seconds` is what the profiler itself took after the step, which is part of no step.
    `loss_finite` is False if the loss was infinite or not a number; `loss` is then None.
    `resident_bytes` is the memory of the process at the end of the step, `device_peak_bytes` the
    most that tensors took on a CUDA device so far; `device_utilization` is the share of the newest
    sample period in which it ran a kernel (NVML), at most once a second. `traced` steps ran under
    `torch.profiler`, which slows them down.
    """

    index: int
    at_seconds: float
    wall_seconds: float
    cpu_seconds: float
    stages: dict[Stage, float]
    schema_version: int = TRAINING_VERSION
    overhead_seconds: float = 0.0
    epoch: int | None = None
    samples: int | None = None
    loss: float | None = None
    loss_finite: bool = True
    resident_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_utilization: float | None = None
    traced: bool = False


class Spread(Record, frozen=True, kw_only=True):
    """Seconds of `count` steps. `stdev` is None for fewer than two."""

    count: int
    total: float
    mean: float
    median: float
    minimum: float
    maximum: float
    stdev: float | None = None


class StageTimes(Record, frozen=True, kw_only=True):
    """`stage_times.json`: seconds by stage, of the steady steps.

    Steady steps are neither warm-up nor traced; where there is none, all steps count.
    """

    stages: dict[Stage, Spread]
    shares: dict[Stage, float]
    step: Spread | None
    schema_version: int = TRAINING_VERSION


class TrainingMetrics(Record, frozen=True, kw_only=True):
    """`metrics.json`: the figures that people compare. None: not measured."""

    steps: int
    steady_steps: int
    schema_version: int = TRAINING_VERSION
    wall_seconds: float = 0.0
    overhead_seconds: float = 0.0
    first_step_seconds: float | None = None
    step_seconds_median: float | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    cpu_ratio: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    losses_not_finite: int = 0
    peak_resident_bytes: int | None = None
    peak_device_bytes: int | None = None
    device_utilization: float | None = None


class TrainingSummary(Record, frozen=True, kw_only=True):
    """`profiler_summary.json`, written last: a profile without it is incomplete.

    `state` is `finished`, or `failed` if the training ended with the exception that `error` names.
    `problems` are sentences about what the profiler could not do; `steps_lost` could not be
    written.
    """

    id: str
    state: Literal["finished", "failed"]
    finished_at: str
    steps: int
    schema_version: int = TRAINING_VERSION
    error: str | None = None
    steps_lost: int = 0
    problems: tuple[str, ...] = ()


class ProfileFinding(Record, frozen=True, kw_only=True):
    """One thing that deserves attention: what was found, and what to do. See `FINDING_ADVICE`."""

    code: str
    found: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class TrainingProfile:
    """A training profile in its current state.

    `state` is `running`, `incomplete` (its process ended without a summary), `finished` or
    `failed` (the training raised). `torn` says whether an incomplete last line was left out.
    """

    path: Path
    state: str
    config: TrainingConfig
    steps: tuple[Step, ...]
    torn: bool = False
    summary: TrainingSummary | None = None
    operators: tuple[OperatorStat, ...] | None = None
    has_trace: bool = False

    @cached_property
    def times(self) -> StageTimes:
        """The stage times, from the steps: those of a running profile, too."""
        return stage_times(self.steps, self.config.warm_up_steps)

    @cached_property
    def metrics(self) -> TrainingMetrics:
        return metrics(self.steps, self.config.warm_up_steps)


# --- what a profile shows -------------------------------------------------------------------------

LEAST_STEPS = 5
"""Steady steps below which shares and spreads say little."""

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

STAGE_LIMITS = {
    Stage.DATA: (0.2, "data_bound"),
    Stage.OPTIMIZER: (0.3, "optimizer_bound"),
    Stage.OTHER: (0.2, "not_covered"),
}
"""The shares of a step beyond which a stage is a finding."""

FINDING_ADVICE = {
    "running": "check it again when the training has ended",
    "incomplete": "the steps can be used; run the training again for the other files",
    "failed": "correct the training script",
    "no_steps": "call profiler.step() at the end of each step",
    "few_steps": "run at least {least} steps",
    "steps_lost": "free space on the disk, and see `problems` in profiler_summary.json",
    "no_trace": "see `problems` in profiler_summary.json",
    "loss_not_finite": "lower the learning rate, clip gradients, or look for a division by zero",
    **{code: ADVICE[stage] for stage, (_, code) in STAGE_LIMITS.items()},
    "unstable": "run on an idle machine, pin threads, or pad batches to equal shapes",
    "waiting": "look for input and output, locks and other processes on this machine",
    "memory_grows": "keep no tensors with gradients, such as losses in a list: use loss.item()",
    "overhead": "no step contains this time; trace fewer steps for a shorter training",
}
"""What to do, by the code of a finding in a profile that can be read."""


def findings(profile: TrainingProfile) -> tuple[ProfileFinding, ...]:
    """Return everything that deserves attention, what concerns the profile itself first."""
    least = profile.config.warm_up_steps + LEAST_STEPS + 3
    return tuple(
        ProfileFinding(code=code, found=text, advice=FINDING_ADVICE[code].format(least=least))
        for code, text in (*_about_profile(profile), *_about_steps(profile))
    )


def top_operators(profile: TrainingProfile, count: int = 10) -> tuple[OperatorStat, ...]:
    """Return the operators with the most time of their own, without steps and stages."""
    rows = [row for row in profile.operators or () if row.name not in ANNOTATIONS]
    rows.sort(key=lambda row: -(row.self_cpu_time_us + row.self_device_time_us))
    return tuple(rows[:count])


def explanation(profile: TrainingProfile) -> Iterator[str]:
    """Yield sentences that say what dominates."""
    times, first = profile.times, profile.metrics.first_step_seconds
    if times.step is None or not times.shares:
        yield "No step was recorded, so there is nothing to explain."
        return
    stage = max(times.shares, key=lambda stage: times.shares[stage])
    yield (
        f"{stage} dominates: {times.shares[stage]:.0%} of {times.step.count} steady steps, "
        f"{times.stages[stage].median * 1e3:.3g} ms in the median step of "
        f"{times.step.median * 1e3:.3g} ms. To make it faster: {ADVICE[stage]}."
    )
    if first is not None and first > 2 * times.step.median:
        yield (
            f"The first step took {first:.3g} s, {first - times.step.median:.3g} s more than a "
            "median step: compilation, caches and allocations. Averages leave it out."
        )
    rows = top_operators(profile, 3)
    total = sum(row.self_cpu_time_us for row in profile.operators or ())
    if rows and total > 0:
        names = ", ".join(f"{row.name} {row.self_cpu_time_us / total:.0%}" for row in rows)
        yield f"Operators with the most time of their own in the traced steps: {names}."


def _about_profile(profile: TrainingProfile) -> Iterator[tuple[str, str]]:
    steps, summary = len(profile.steps), profile.summary
    if profile.state == "running":
        yield "running", f"it is still being written: {steps} steps so far"
    if profile.state == "incomplete":
        torn = "; the last line was cut off" if profile.torn else ""
        yield "incomplete", f"its process ended without a summary, after {steps} steps{torn}"
    if summary is not None and summary.error is not None:
        yield "failed", f"the training ended with {summary.error}"
    if profile.state != "running" and not steps:
        yield "no_steps", "no step was recorded"
    lost = profile.steps[-1].index + 1 - steps if steps else 0
    if lost := max(lost, summary.steps_lost if summary is not None else 0):
        yield "steps_lost", f"{lost} steps could not be written"
    planned, ended = profile.config.traced_from, profile.state in ("finished", "failed")
    if planned is not None and ended and steps > planned and not profile.has_trace:
        yield "no_trace", "the planned trace is missing"


def _about_steps(profile: TrainingProfile) -> Iterator[tuple[str, str]]:
    figures, counted = profile.metrics, steady(profile.steps, profile.config.warm_up_steps)
    if lost := figures.losses_not_finite:
        yield "loss_not_finite", f"the loss was infinite or not a number in {lost} steps"
    if len(counted) < LEAST_STEPS:
        if counted:
            text = f"only {len(counted)} steady steps, too few for shares and spreads"
            yield "few_steps", text
        return
    for stage, (limit, code) in STAGE_LIMITS.items():
        share = profile.times.shares.get(stage, 0.0)
        if share > limit:
            what = "no stage covers" if stage is Stage.OTHER else f"the stage {stage} takes"
            yield code, f"{what} {share:.0%} of a step"
    low, middle, high = statistics.quantiles((s.wall_seconds for s in counted), n=4)
    if middle > 0 and (wide := (high - low) / middle) > SPREAD:
        what = f"step times vary: the middle half of them spreads over {wide:.2g} times the median"
        yield "unstable", what
    ratio = figures.cpu_ratio
    if profile.config.device == "cpu" and ratio is not None and ratio < CPU_RATIO:
        yield "waiting", f"the process used the CPU for only {ratio:.0%} of the time"
    overhead, wall = figures.overhead_seconds, figures.wall_seconds
    if overhead > OVERHEAD_SHARE * wall:
        took = f"the profiler itself took {overhead:.3g} s between steps, for {wall:.3g} s of steps"
        yield "overhead", took
    used = [step.resident_bytes for step in counted if step.resident_bytes is not None]
    if quarter := len(used) // 4 if len(used) >= 20 else 0:
        parts = (used[:quarter], used[quarter:-quarter], used[-quarter:])
        before, between, after = (statistics.median(part) for part in parts)
        if after > (1 + GROWTH) * before and before < between < after:
            text = f"memory grows: {before / 1e6:,.0f} MB to {after / 1e6:,.0f} MB"
            yield "memory_grows", text


# --- files that are computed from the steps -------------------------------------------------------


def steady(steps: Sequence[Step], warm_up: int) -> list[Step]:
    """Return the steps that are neither warm-up nor traced; all, if there is none."""
    counted = [step for step in steps if step.index >= warm_up and not step.traced]
    return counted or list(steps)


def spread(values: Sequence[float]) -> Spread:
    """Summarise seconds, of at least one step."""
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
    stages = {
        stage: spread([step.stages.get(stage, 0.0) for step in counted])
        for stage in Stage
        if any(stage in step.stages for step in counted)
    }
    return StageTimes(
        stages=stages,
        shares={stage: spread_of.total / total for stage, spread_of in stages.items() if total > 0},
        step=spread([step.wall_seconds for step in counted]) if counted else None,
    )


def metrics(steps: Sequence[Step], warm_up: int) -> TrainingMetrics:
    """Return the content of `metrics.json`."""
    if not steps:
        return TrainingMetrics(steps=0, steady_steps=0)
    counted = steady(steps, warm_up)
    wall = sum(step.wall_seconds for step in counted)

    def known(name: str, of: Sequence[Step] = steps) -> list[Any]:
        values = (getattr(step, name) for step in of)
        return [value for value in values if value is not None]

    samples, busy = known("samples", counted), known("device_utilization", counted)
    losses = known("loss")
    return TrainingMetrics(
        steps=len(steps),
        steady_steps=len(counted),
        wall_seconds=sum(step.wall_seconds for step in steps),
        overhead_seconds=sum(step.overhead_seconds for step in steps),
        first_step_seconds=steps[0].wall_seconds if steps[0].index == 0 else None,
        step_seconds_median=statistics.median(step.wall_seconds for step in counted),
        steps_per_second=len(counted) / wall if wall > 0 else None,
        samples_per_second=sum(samples) / wall
        if wall > 0 and len(samples) == len(counted)
        else None,
        cpu_ratio=sum(step.cpu_seconds for step in counted) / wall if wall > 0 else None,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        losses_not_finite=sum(not step.loss_finite for step in steps),
        peak_resident_bytes=max(known("resident_bytes"), default=None),
        peak_device_bytes=max(known("device_peak_bytes"), default=None),
        device_utilization=statistics.fmean(busy) if busy else None,
    )
