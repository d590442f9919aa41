"""The files of a training profile: `config.json`, `steps.jsonl`, and those written at its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

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

OPERATOR_COLUMNS = (
    "name",
    "calls",
    "self_cpu_time_us",
    "cpu_time_total_us",
    "self_device_time_us",
    "device_time_total_us",
    "self_cpu_memory_bytes",
    "cpu_memory_bytes",
)
"""The columns of `op_stats.csv`: the fields of `torch.profiler`'s `key_averages()`."""


class Stage(StrEnum):
    """The parts of a training step. `other` is the rest of the step, which no stage covers."""

    DATA = "data"
    ZERO_GRAD = "zero_grad"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class TrainingOptions(Record, frozen=True, kw_only=True):
    """How a worker trains a model for a profile; it is the field `training` of a request.

    `out` is the absolute folder in which the profile's folder is created. Unless `compiled`, the
    model trains in eager mode, whatever the target. `batch_size` repeats or drops rows of the
    example inputs; None leaves them as they are.
    """

    out: str
    steps: int = 20
    compiled: bool = True
    warm_up: int = 3
    trace_steps: int = 3
    batch_size: int | None = None
    learning_rate: float = 1e-4


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
    kind: str = "training"
    torch: str | None = None
    threads: int | None = None
    device: str = "cpu"
    synchronized: bool = False
    model: str | None = None
    target: str | None = None
    warm_up_steps: int = 0
    traced_from: int | None = None
    traced_steps: int = 0
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


class Epoch(Record, frozen=True, kw_only=True):
    """All steps with one number of an epoch."""

    epoch: int
    steps: int
    seconds: float


class StageTimes(Record, frozen=True, kw_only=True):
    """`stage_times.json`: seconds by stage, of the steady steps and of each single step.

    Steady steps are neither warm-up nor traced; where there is none, all steps count. `steps` lists
    `index`, `wall_seconds` and one entry for each stage, at most `STEPS_LISTED` of them.
    """

    stages: dict[Stage, Spread]
    shares: dict[Stage, float]
    step: Spread | None
    epochs: tuple[Epoch, ...]
    steps: tuple[dict[str, float], ...]
    schema_version: int = TRAINING_VERSION
    unit: str = "seconds"


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


class WrittenFile(Record, frozen=True, kw_only=True):
    """Size and SHA-256 of a file when the profile ended."""

    bytes: int
    sha256: str


class TrainingSummary(Record, frozen=True, kw_only=True):
    """`profiler_summary.json`, written last: a profile without it is incomplete.

    `state` is `finished`, or `failed` if the training ended with the exception that `error` names.
    `problems` are sentences about what the profiler could not do; `steps_lost` could not be
    written. `files` covers the other files.
    """

    id: str
    state: str
    finished_at: str
    steps: int
    files: dict[str, WrittenFile]
    schema_version: int = TRAINING_VERSION
    kind: str = "training"
    error: str | None = None
    steps_lost: int = 0
    dominant_stage: Stage | None = None
    problems: tuple[str, ...] = ()


STEPS_LISTED = 10_000
"""The most single steps in `stage_times.json`; `steps.jsonl` has all."""


class FindingCode(StrEnum):
    """What `profile check` may find in a readable profile."""

    RUNNING = "running"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    NO_STEPS = "no_steps"
    FEW_STEPS = "few_steps"
    STEPS_LOST = "steps_lost"
    NO_TRACE = "no_trace"
    LOSS_NOT_FINITE = "loss_not_finite"
    DATA_BOUND = "data_bound"
    OPTIMIZER_BOUND = "optimizer_bound"
    NOT_COVERED = "not_covered"
    UNSTABLE = "unstable"
    WAITING = "waiting"
    MEMORY_GROWS = "memory_grows"
    OVERHEAD = "overhead"
    FILE_MISSING = "file_missing"


class ProfileFinding(Record, frozen=True, kw_only=True):
    """One thing that deserves attention: what was found, and what to do."""

    code: FindingCode
    found: str
    advice: str


class OperatorStat(Record, frozen=True, kw_only=True):
    """One row of `op_stats.csv`; times are in microseconds."""

    name: str
    calls: int
    self_cpu_time_us: float
    cpu_time_total_us: float
    self_device_time_us: float
    device_time_total_us: float
    self_cpu_memory_bytes: float
    cpu_memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class TrainingProfile:
    """A training profile in its current state.

    `state` is `running`, `incomplete` (its process ended without a summary), `finished` or
    `failed` (the training raised). `torn` says whether an incomplete last line was left out.
    `stage_times` and `metrics` are None until the profile ends.
    """

    path: Path
    state: str
    config: TrainingConfig
    steps: tuple[Step, ...]
    torn: bool = False
    summary: TrainingSummary | None = None
    stage_times: StageTimes | None = None
    metrics: TrainingMetrics | None = None
    operators: tuple[OperatorStat, ...] | None = None
    has_trace: bool = False
