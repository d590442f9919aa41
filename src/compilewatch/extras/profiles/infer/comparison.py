"""Which of two profiles is faster, and what else differs between them.

Profiles are measured at different times, so they are compared by CPU time where there is one thread
(other programs change it by a few per cent, and wall time by half), and `slower` is claimed only
for a change that neither chance nor the usual difference between two days explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compilewatch.extras.profiles.infer import statistics
from compilewatch.extras.profiles.infer.records import (
    EAGER,
    BatchPoint,
    InferenceProfile,
    PointChange,
    ProfileComparison,
    Samples,
    eager_of,
)
from compilewatch.extras.profiles.infer.statistics import Rounds

Series = dict[tuple[str, int], Samples]

SAME_OPTIONS = ("device", "dtype", "threads", "size", "max_length")
"""Options that two profiles must share to be compared."""


def compare_profiles(
    before: InferenceProfile,
    before_samples: Iterable[Samples],
    after: InferenceProfile,
    after_samples: Iterable[Samples],
) -> ProfileComparison:
    """Compare what both profiles measured."""
    obstacle = _obstacle(before, after)
    olds, news = _by_point(before_samples), _by_point(after_samples)
    points = () if obstacle else tuple(_changes(before, olds, after, news))
    if not obstacle and not points:
        obstacle = "they have no target and batch size in common, or their raw values were deleted"
    return ProfileComparison(
        model=after.model,
        before=before.id,
        after=after.id,
        differences=tuple(_differences(before, after)),
        points=points,
        obstacle=obstacle,
    )


def _changes(
    before: InferenceProfile, olds: Series, after: InferenceProfile, news: Series
) -> Iterable[PointChange]:
    single = after.options.threads == 1
    for key in news:
        if key not in olds:
            continue
        target, size = key
        old, new = _rounds(olds[key], cpu=single), _rounds(news[key], cpu=single)
        own, other = _point(before, *key), _point(after, *key)
        yield PointChange(
            target=target,
            batch_size=size,
            judgement=statistics.apart(old, new),
            measure="CPU time" if single else "wall time",
            before_seconds=_middle(old),
            after_seconds=_middle(new),
            relative=_relative(olds, news, key, cpu=single),
            memory_before_bytes=own.memory.rss_peak_bytes if own and own.memory else None,
            memory_after_bytes=other.memory.rss_peak_bytes if other and other.memory else None,
        )


def _relative(olds: Series, news: Series, key: tuple[str, int], *, cpu: bool) -> float | None:
    """The change of the target relative to that of eager mode; None for eager mode itself."""
    target, size = key
    name = eager_of(target, (known for known, _ in olds.keys() & news.keys()))
    eager = (name or EAGER, size)
    if target == name or eager not in olds or eager not in news:
        return None
    sides = [
        statistics.relative(_rounds(each[key], cpu=cpu), _rounds(each[eager], cpu=cpu))
        for each in (olds, news)
    ]
    old, new = (_middle(side) for side in sides)
    return new / old if old and new else None


def _obstacle(before: InferenceProfile, after: InferenceProfile) -> str:
    if before.model != after.model:
        return f"they are of different models: {before.model} and {after.model}"
    if before.machine != after.machine:
        return "they are of different machines, and times of one say nothing about another"
    for name in SAME_OPTIONS:
        old, new = getattr(before.options, name), getattr(after.options, name)
        if old != new:
            return f"they were measured with different --{name.replace('_', '-')}: {old} and {new}"
    return ""


def _differences(before: InferenceProfile, after: InferenceProfile) -> Iterable[str]:
    """What else may be the cause: `torch 2.14.0 -> 2.15.0`, and the machine."""
    for name in ("cpu", "cores", "memory_bytes", "system", "device"):
        old, new = getattr(before.machine, name), getattr(after.machine, name)
        if old != new:
            yield f"machine: {name.removesuffix('_bytes')} {old} -> {new}"
    for target in after.targets:
        known = before.target(target.target)
        if known is None:
            continue
        found = []
        for name in ("torch", "transformers", "python", "compilewatch"):
            old, new = getattr(known.software, name), getattr(target.software, name)
            if old != new:
                found.append(f"{name} {old} -> {new}")
        if not found and known.software.digest != target.software.digest:
            found.append("other packages of the environment")
        yield from (f"{target.target}: {each}" for each in found)
    if before.parameters != after.parameters:
        yield f"model: {before.parameters or 0:,} -> {after.parameters or 0:,} parameters"
    if before.inputs != after.inputs:
        yield "example inputs"


def _by_point(samples: Iterable[Samples]) -> Series:
    return {(each.target, each.batch_size): each for each in samples}


def _rounds(samples: Samples, *, cpu: bool) -> Rounds:
    return samples.cpu_seconds if cpu else samples.wall_seconds


def _middle(rounds: Rounds) -> float | None:
    found: Sequence[float] = statistics.medians(rounds)
    return statistics.middle(found) if found else None


def _point(profile: InferenceProfile, target: str, size: int) -> BatchPoint | None:
    found = profile.target(target)
    return next((p for p in found.points if p.batch_size == size), None) if found else None
