"""Profiles as they are stored, without measuring anything."""

import random
from dataclasses import replace

import msgspec

from compilewatch.extras.profiles import analysis
from compilewatch.extras.profiles.analysis import compare_profiles
from compilewatch.extras.profiles.of_run import RunProfiles
from compilewatch.extras.profiles.records import (
    EAGER,
    BatchPoint,
    BreakCost,
    InferenceOptions,
    InferenceProfile,
    Machine,
    Memory,
    OperatorStat,
    Samples,
    Segments,
    Software,
    TargetProfile,
)
from compilewatch.records import Accuracy, Numerics, RunView, Status

SIZES = (1, 4, 8)
MACHINE = Machine(cpu="Test CPU", cores=2, memory_bytes=8 * 2**30, system="Linux x86_64")
SOFTWARE = Software(
    environment="default", python="3.11.2", torch="2.15.0", transformers="5.23.0", digest="d1"
)
MATCHES = Numerics(
    deterministic=True,
    matches=True,
    max_abs_error=0.0,
    max_rel_error=0.0,
    atol=1e-4,
    rtol=1e-4,
    reference="eager",
)
COST = BreakCost(
    fingerprint="0123456789ab",
    code="GB0124",
    file="net.py",
    line=8,
    function="forward",
    reason="Unsupported Tensor.item() call with capture_scalar_outputs=False",
    source_start=7,
    source=("x = self.a(x)", "scale = x.sum().item()", "return x * scale"),
    compile_ids=("0/0",),
    guard_seconds=0.0002,
    python_seconds=0.0007,
    eager_seconds=0.0001,
    share=0.125,
)
SEGMENTS = Segments(
    calls=5,
    call_seconds=0.008,
    graph_seconds=0.007,
    guard_seconds=0.0002,
    eager_seconds=0.0001,
    python_seconds=0.0007,
)


def operator_stat(name: str, calls: int, microseconds: float) -> OperatorStat:
    """An operator that took as much time of its own, and as much again in others."""
    return OperatorStat(
        name=name,
        calls=calls,
        self_cpu_time_us=microseconds,
        cpu_time_total_us=2 * microseconds,
        self_device_time_us=0.0,
        device_time_total_us=0.0,
        self_cpu_memory_bytes=0,
        cpu_memory_bytes=0,
    )


def samples_of(target: str, size: int, seconds: float, seed: int = 0) -> Samples:
    """Ten rounds of ten calls around `seconds`; CPU time is a little less than wall time."""
    draw = random.Random(f"{target} {size} {seed}")
    wall = tuple(
        tuple(seconds * draw.lognormvariate(0, 0.02) for _ in range(10)) for _ in range(10)
    )
    cpu = tuple(tuple(value * 0.98 for value in values) for values in wall)
    return Samples(target=target, batch_size=size, wall_seconds=wall, cpu_seconds=cpu)


def profile(
    factor: float = 1.0,
    *,
    seed: int = 0,
    machine: Machine = MACHINE,
    software: Software = SOFTWARE,
    options: InferenceOptions | None = None,
    name: str = "profile-20261122-100000-0001",
) -> tuple[InferenceProfile, tuple[Samples, ...]]:
    """A profile of eager mode and Inductor, whose times are `factor` times the usual ones."""
    samples: list[Samples] = []
    targets = []
    scores = Accuracy(samples=10, labels=3, accuracy=0.9, f1_macro=0.8, f1_weighted=0.85)
    operator = operator_stat("aten::mm", 3, 10_000.0)
    for target, pace in ((EAGER, 0.010), ("inductor", 0.008 * factor)):
        series = [samples_of(target, size, pace * size**0.8, seed) for size in SIZES]
        samples += series
        points = [_point(target, of.batch_size, of) for of in series]
        targets.append(
            TargetProfile(
                target=target,
                software=software,
                points=tuple(points),
                best_batch_size=analysis.best_batch(points),
                accuracy=scores if target == EAGER else None,
                traced_operators=(operator,),
            )
        )
    found = InferenceProfile(
        id=name,
        model="Net<script>",
        machine=machine,
        options=options or InferenceOptions(batch_sizes=SIZES),
        targets=tuple(targets),
        started_at="2026-11-22T10:00:00.000+00:00",
        finished_at="2026-11-22T10:01:00.000+00:00",
        parameters=1_000_000,
        model_bytes=4_000_000,
        inputs_strategy="text",
        tokens_per_sample=32,
    )
    return found, tuple(samples)


def changed(made: InferenceProfile, target: str, **fields: object) -> InferenceProfile:
    """The profile with these fields in every point of a target."""
    targets = tuple(
        msgspec.structs.replace(
            t, points=tuple(msgspec.structs.replace(p, **fields) for p in t.points)
        )
        if t.target == target
        else t
        for t in made.targets
    )
    return msgspec.structs.replace(made, targets=targets)


def with_everything(view: RunView) -> RunView:
    """The run with a profile that has every figure, and that is slower than the baseline."""
    after, samples = profile(1.3, seed=1)
    target = after.targets[1]
    latency = target.points[-1].latency
    assert latency is not None
    best = msgspec.structs.replace(
        target.points[-1],
        break_even_calls_cold=100.0,
        break_even_calls_warm=10.0,
        latency=msgspec.structs.replace(latency, p99_seconds=0.1),
    )
    target = msgspec.structs.replace(target, points=(*target.points[:-1], best))
    after = msgspec.structs.replace(after, targets=(after.targets[0], target), downloads=1000)
    change = compare_profiles(profile(), (after, samples))
    part = RunProfiles(profiles=(after,), changes=(change,))
    return replace(view, parts={"profiles": part})


def _point(target: str, size: int, samples: Samples) -> BatchPoint:
    compiled = target != EAGER
    point = BatchPoint(
        batch_size=size,
        status=Status.PASS,
        memory=Memory(rss_peak_bytes=500_000_000 + size, call_peak_bytes=size * 1000),
        first_call_seconds=5.0,
        numerics=MATCHES if compiled else None,
        segments=SEGMENTS if compiled else None,
        breaks=(COST,) if compiled else (),
        speedup=1.25 if compiled else None,
    )
    return analysis.with_latency(point, samples, tokens_per_sample=32, threads=1)
