"""Profiles of inference: what a model costs at run time. Times are seconds, memory is bytes.

A number that was not measured is None, never zero.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from compilewatch import records

PROFILE_VERSION = 1
"""Version of the lines of `profiles.jsonl`."""

EAGER = "eager"
"""The target that every other target is compared with: the model without a compiler."""


def target_kind(target: str) -> str:
    """Return what a target of a profile is, without its environment: `inductor@torch-2.13`."""
    return target.partition("@")[0]


def eager_of(target: str, targets: Iterable[str]) -> str | None:
    """Return the eager mode that a target is compared with: of its own environment, if it is there.

    None if no eager mode is among the targets.
    """
    eager = [target for target in targets if target_kind(target) == EAGER]
    own = EAGER + target.removeprefix(target_kind(target))
    for name in (own, EAGER):
        if name in eager:
            return name
    return eager[0] if eager else None


class Machine(records.Record, frozen=True, kw_only=True):
    """The machine of a profile. Times of one machine say nothing about another."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    device: str = "cpu"


class Software(records.Record, frozen=True, kw_only=True):
    """The software that a target ran on; `digest` is that of the environment."""

    environment: str
    python: str
    torch: str
    transformers: str
    digest: str
    compilewatch: str = ""


class Timing(records.Record, frozen=True, kw_only=True):
    """Statistics of repeated measurements; the measured values are in a file of the profile.

    The confidence interval is that of the median, at 95 %. Percentiles are None where there are too
    few samples for them (64, 130 and 662). `cpu_median_seconds` is the CPU time of all threads.
    `stable` is False where the rounds differ so much that a comparison would mean nothing.
    """

    count: int
    rounds: int
    median_seconds: float
    mean_seconds: float
    stdev_seconds: float
    ci_low_seconds: float
    ci_high_seconds: float
    p90_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None
    cpu_median_seconds: float | None = None
    stable: bool = True


class Memory(records.Record, frozen=True, kw_only=True):
    """Memory of one call of one batch, in a process that does nothing else.

    `rss_peak_bytes` is the largest resident set, with the interpreter, torch and the model;
    `call_peak_bytes` is what the call needed beyond the model, on the device that it ran on.
    `device_peak_bytes` is the most that tensors took on a CUDA device, with those of the model;
    `device_used_bytes` is what all programs used of the device (NVML).
    """

    rss_peak_bytes: int | None = None
    call_peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_used_bytes: int | None = None


class Segments(records.Record, frozen=True, kw_only=True):
    """Where one call spends its time, exclusively: the parts sum to `call_seconds`.

    `graph_seconds`: compiled graphs. `guard_seconds`: looking for the compiled code of a frame.
    `eager_seconds`: operators outside of graphs. `python_seconds`: the rest, which is Python code.
    """

    calls: int
    call_seconds: float
    graph_seconds: float
    guard_seconds: float
    eager_seconds: float
    python_seconds: float

    @property
    def graph_ratio(self) -> float:
        return self.graph_seconds / self.call_seconds if self.call_seconds else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """The seconds by part, in the order in which they are shown."""
        return {
            "graph": self.graph_seconds,
            "operators": self.eager_seconds,
            "guard": self.guard_seconds,
            "python": self.python_seconds,
        }


class BreakCost(records.GraphBreak, frozen=True, kw_only=True):
    """A graph break with what it costs in each call, exclusively.

    `compile_ids` are the frames whose compiled code ends at this break. `share` is the part of the
    call. Time of the compiled graphs around a break is not part of its cost.
    """

    compile_ids: tuple[str, ...] = ()
    guard_seconds: float = 0.0
    python_seconds: float = 0.0
    eager_seconds: float = 0.0
    share: float = 0.0

    @property
    def seconds(self) -> float:
        return self.guard_seconds + self.python_seconds + self.eager_seconds


class Verdict(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNCLEAR = "unclear"


class SpeedJudgement(records.Record, frozen=True, kw_only=True):
    """What two series of rounds say about each other.

    `ratio` is the time after divided by the time before, with its interval at 95 %. `unclear` means
    that no claim is possible, and `reason` says why.
    """

    verdict: Verdict = Verdict.UNCLEAR
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p_value: float | None = None
    reason: str = ""


class BatchPoint(records.Record, frozen=True, kw_only=True):
    """One target at one batch size.

    `status` is `pass` where it was measured; `phase` and `detail` say where it ended otherwise.
    `speedup` is the time of eager mode divided by this time, from interleaved rounds; it is None
    where the numbers do not match. `tokens_per_second` is None for inputs without tokens.
    `break_even_calls` says after how many calls the compilation has paid, with empty and with
    filled caches; None where it never does. `utilization` is the share of the time in which the
    threads computed; `device_utilization` that in which a CUDA device ran a kernel (NVML).
    `against_first` compares a target in a second environment with the same one in the first
    environment, from interleaved rounds.
    """

    batch_size: int
    status: records.Status
    phase: records.Phase = records.Phase.PROFILE
    detail: str = ""
    latency: Timing | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    memory: Memory | None = None
    utilization: float | None = None
    device_utilization: float | None = None
    load_seconds: float | None = None
    first_call_seconds: float | None = None
    warm_first_call_seconds: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    break_even_calls_cold: float | None = None
    break_even_calls_warm: float | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    against_first: SpeedJudgement | None = None
    numerics: records.Numerics | None = None
    segments: Segments | None = None
    breaks: tuple[BreakCost, ...] = ()

    @property
    def break_share(self) -> float:
        """The part of a call that its graph breaks cost."""
        return sum(cost.share for cost in self.breaks)

    @property
    def per_sample_seconds(self) -> float | None:
        return self.latency.median_seconds / self.batch_size if self.latency else None

    @property
    def calls_per_second(self) -> float | None:
        median = self.latency.median_seconds if self.latency else None
        return 1 / median if median else None


class TextGeneration(records.Record, frozen=True, kw_only=True):
    """Generating text: one call over the prompt, then one call for each further token."""

    batch_size: int
    prefill: Timing
    decode: Timing
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


class OperatorStat(records.Record, frozen=True, kw_only=True):
    """One row of `op_stats.csv`, of `torch.profiler`'s `key_averages()`; times in microseconds."""

    name: str
    calls: int
    self_cpu_time_us: float
    cpu_time_total_us: float
    self_device_time_us: float
    device_time_total_us: float
    self_cpu_memory_bytes: float
    cpu_memory_bytes: float


def operator_stats(averages: Iterable[Any]) -> tuple[OperatorStat, ...]:
    """The rows of `key_averages()`, most time of their own first."""
    return tuple(
        OperatorStat(
            name=row.key,
            calls=row.count,
            self_cpu_time_us=row.self_cpu_time_total,
            cpu_time_total_us=row.cpu_time_total,
            self_device_time_us=row.self_device_time_total,
            device_time_total_us=row.device_time_total,
            self_cpu_memory_bytes=row.self_cpu_memory_usage,
            cpu_memory_bytes=row.cpu_memory_usage,
        )
        for row in sorted(averages, key=lambda row: (-row.self_cpu_time_total, row.key))
    )


def operators_csv(operators: Iterable[OperatorStat]) -> bytes:
    """The content of `op_stats.csv`."""
    rows = map(msgspec.structs.astuple, operators)
    return csv_bytes(OperatorStat.__struct_fields__, rows)


def csv_bytes(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


class TargetProfile(records.Record, frozen=True, kw_only=True):
    """One target of a profile, with all batch sizes."""

    target: str
    software: Software
    points: tuple[BatchPoint, ...] = ()
    best_batch_size: int | None = None
    generation: TextGeneration | None = None
    accuracy: records.Accuracy | None = None
    traced_operators: tuple[OperatorStat, ...] = ()


class InferenceOptions(records.Record, frozen=True, kw_only=True):
    """How a profile was measured.

    A target may name its environment: `inductor@torch-2.13`. `device` is `cpu` or `cuda`.
    """

    targets: tuple[str, ...] = (EAGER, "inductor")
    batch_sizes: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
    dtype: str = "float32"
    threads: int = 1
    max_length: int = 128
    size: str = "full"
    device: str = "cpu"
    warmup: int = 3
    runs: int = 10
    rounds: int = 10
    max_seconds: float = 20.0


class InferenceProfile(
    records.Record, frozen=True, kw_only=True, tag_field="kind", tag="inference"
):
    """One model, its cost at run time, on one machine.

    `place` is the folder of the files, relative to that of `profiles.jsonl`. `load` is the system's
    load before the first call.
    """

    id: str
    model: str
    machine: Machine
    options: InferenceOptions
    targets: tuple[TargetProfile, ...]
    schema_version: int = PROFILE_VERSION
    started_at: str = ""
    finished_at: str = ""
    family: str = "unknown"
    task: str = "unknown"
    downloads: int | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    model_bytes: int | None = None
    inputs: tuple[records.TensorSummary, ...] = ()
    inputs_strategy: str = ""
    tokens_per_sample: int | None = None
    load: float | None = None
    place: str = "."
    notes: tuple[str, ...] = ()

    def points(self) -> Iterator[tuple[TargetProfile, BatchPoint]]:
        """Yield every target with each of its batch sizes."""
        for target in self.targets:
            for point in target.points:
                yield target, point

    def target(self, name: str) -> TargetProfile | None:
        """Return one of its targets by name, None if it was not profiled."""
        return next((target for target in self.targets if target.target == name), None)


class Samples(records.Record, frozen=True, kw_only=True):
    """The measured values of one target at one batch size, by round, in the order of time."""

    target: str
    batch_size: int
    wall_seconds: tuple[tuple[float, ...], ...]
    cpu_seconds: tuple[tuple[float, ...], ...]


class PointChange(records.Record, frozen=True, kw_only=True):
    """One target at one batch size, in two profiles.

    `measure` says which time was compared. `relative` is the change relative to eager mode, each
    measured alternately with it: where it is near 1, eager mode changed as much.
    """

    target: str
    batch_size: int
    judgement: SpeedJudgement
    measure: str
    before_seconds: float | None = None
    after_seconds: float | None = None
    relative: float | None = None
    memory_before_bytes: int | None = None
    memory_after_bytes: int | None = None


class ProfileComparison(records.Record, frozen=True, kw_only=True):
    """Two profiles of one model. `obstacle` says why no times were compared, if so."""

    model: str
    before: str
    after: str
    differences: tuple[str, ...]
    points: tuple[PointChange, ...]
    obstacle: str = ""

    def of(self, verdict: Verdict) -> tuple[PointChange, ...]:
        return tuple(point for point in self.points if point.judgement.verdict is verdict)
