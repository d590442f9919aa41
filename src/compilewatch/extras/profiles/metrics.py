"""The metrics of a run's inference profiles, with a number of series that does not grow with it.

Single models have series only where a dashboard can show them: every batch size of up to
`DETAILED_MODELS` models, or else the best batch size of the `SHOWN_MODELS` most used ones. The
other models are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from compilewatch.extras.profiles import records
from compilewatch.sinks.prometheus import RUN, Definition, registry

if TYPE_CHECKING:
    from compilewatch.extras.profiles.of_run import RunProfiles
    from compilewatch.sinks.pushgateway import Gateway

PROFILE_SOURCE = "profile"
"""The source of models that were profiled on their own, with one group for each model."""

DETAILED_MODELS = 10
SHOWN_MODELS = 40

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""

PROFILED = ("model", "family", "target")

DEFINITIONS = tuple(
    Definition(name, text, labels, RUN)
    for name, text, labels in (
        (
            "compilewatch_latency_seconds",
            "Time of one call of a profiled model; the quantile 0.99 is absent without 662 "
            "samples.",
            (*PROFILED, "batch_size", "quantile"),
        ),
        (
            "compilewatch_throughput_samples_per_second",
            "Samples per second of a profiled model, from the median of its calls.",
            (*PROFILED, "batch_size"),
        ),
        (
            "compilewatch_profile_memory_bytes",
            "Peak resident memory of a process that makes one call of a profiled model.",
            (*PROFILED, "batch_size"),
        ),
        (
            "compilewatch_profile_speedup_ratio",
            "Latency in eager mode divided by that of the target, from interleaved rounds; absent "
            "where the numbers differ.",
            (*PROFILED, "batch_size"),
        ),
        (
            "compilewatch_break_cost_ratio",
            "Share of a call that the graph breaks of a profiled model cost, at its smallest batch "
            "size; 0 without graph breaks.",
            PROFILED,
        ),
        (
            "compilewatch_break_cost_downloads",
            "The same share times the downloads of the model: it ranks what is worth fixing.",
            PROFILED,
        ),
        (
            "compilewatch_break_even_calls",
            "Calls after which compiling has paid, with empty (cold) and filled (warm) caches; "
            "absent where it never does.",
            (*PROFILED, "cache"),
        ),
        (
            "compilewatch_profiles",
            "Profiled models by target: stable, unstable (the rounds differ by more than 10 %), or "
            "failed.",
            ("target", "stability"),
        ),
        (
            "compilewatch_profile_changes",
            "Batch sizes of profiled models by verdict against the baseline, beyond noise; absent "
            "without a baseline.",
            ("target", "verdict"),
        ),
        (
            "compilewatch_profile_slower_ratio",
            "CPU time divided by that of the baseline, of a model that is slower beyond noise.",
            PROFILED,
        ),
    )
)

LABELS: dict[str, str] = {
    "batch_size": "the rows of a batch, a number",
    "quantile": "`0.5` or `0.99`",
    "stability": "`stable`, `unstable`, `failed`",
    "verdict": "`slower`, `faster`, `same`, `unclear`",
}


def samples(part: RunProfiles) -> Iterator[Sample]:
    """Yield the samples of all profiles of a run; nothing for a run without profiles."""
    yield from of_profiles(part.profiles)
    shown = {profile.model: profile.family for profile in _ranked(part.profiles)[:SHOWN_MODELS]}
    counts: Counter[tuple[str, str]] = Counter()
    for compared in part.changes:
        worst: dict[str, float] = {}
        for point in compared.points:
            slower, judged = (point.target, records.Verdict.SLOWER.value), point.judgement
            counts[point.target, judged.verdict.value] += 1
            counts[slower] += 0  # A measured zero is exported: an alert must see it fall to that.
            if judged.verdict is records.Verdict.SLOWER and compared.model in shown:
                worst[point.target] = max(judged.ratio or 1.0, worst.get(point.target, 0.0))
        for target, ratio in worst.items():
            who = (compared.model, shown[compared.model], target)
            yield "compilewatch_profile_slower_ratio", who, ratio
    for labels, count in counts.items():
        yield "compilewatch_profile_changes", labels, count


def of_profiles(profiles: Sequence[records.InferenceProfile]) -> Iterator[Sample]:
    """Yield the samples of profiles without a comparison."""
    shown = _ranked(profiles)
    detailed = len(shown) <= DETAILED_MODELS
    for profile in shown[:SHOWN_MODELS]:
        for target in profile.targets:
            yield from _of_target(profile, target, detailed=detailed)
    counted: Counter[tuple[str, str]] = Counter()
    for target in (target for profile in profiles for target in profile.targets):
        measured = [point.latency for point in target.points if point.latency is not None]
        stable = "stable" if all(latency.stable for latency in measured) else "unstable"
        counted[target.target, stable if measured else "failed"] += 1
    yield from (("compilewatch_profiles", labels, count) for labels, count in counted.items())


def _ranked(profiles: Sequence[records.InferenceProfile]) -> list[records.InferenceProfile]:
    return sorted(profiles, key=lambda p: (-(p.downloads or 0), p.model))


def _of_target(
    profile: records.InferenceProfile, target: records.TargetProfile, *, detailed: bool
) -> Iterator[Sample]:
    who = (profile.model, profile.family, target.target)
    best = next((p for p in target.points if p.batch_size == target.best_batch_size), None)
    for point in target.points:
        if point.latency is None or not (detailed or point is best):
            continue
        memory = point.memory.rss_peak_bytes if point.memory is not None else None
        for name, own, value in (
            ("compilewatch_latency_seconds", ("0.5",), point.latency.median_seconds),
            ("compilewatch_latency_seconds", ("0.99",), point.latency.p99_seconds),
            ("compilewatch_throughput_samples_per_second", (), point.samples_per_second),
            ("compilewatch_profile_memory_bytes", (), memory),
            ("compilewatch_profile_speedup_ratio", (), point.speedup),
        ):
            if value is not None:
                yield name, (*who, str(point.batch_size), *own), value
    broken = next((p for p in target.points if p.segments is not None), None)
    if broken is not None:
        yield "compilewatch_break_cost_ratio", who, broken.break_share
        if profile.downloads is not None:
            downloads = broken.break_share * profile.downloads
            yield "compilewatch_break_cost_downloads", who, downloads
    for cache in ("cold", "warm"):
        calls = getattr(best, f"break_even_calls_{cache}", None)
        if calls is not None:
            yield "compilewatch_break_even_calls", (*who, cache), calls


def push_profile(gateway: Gateway, profile: records.InferenceProfile) -> str:
    """Replace the group of a model that was profiled on its own. Raises SinkError."""
    from compilewatch.sinks.pushgateway import JOB  # its packages are those of another extra

    # Runs have other sources, so that neither replaces the other.
    samples = [
        (name, (PROFILE_SOURCE, *labels), value) for name, labels, value in of_profiles([profile])
    ]
    key = {"source": PROFILE_SOURCE, "model": profile.model}
    gateway.replace(JOB, key, registry(samples, DEFINITIONS))
    return f"pushgateway: {len(samples):,} series of {profile.model} at {gateway.address}"
