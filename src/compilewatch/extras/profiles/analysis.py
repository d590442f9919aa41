"""What measured values of a model say: statistics, the main findings, and which profile is faster.

Two rules keep comparisons honest. Samples of one round share the machine's mood, so comparisons are
between the medians of rounds, never between single samples. And where the two sides alternated
round by round, they are compared pair by pair, which cancels a load that lasts longer than a round.

Two profiles are measured at different times, so they are compared by CPU time where there is one
thread (other programs change it by a few per cent, and wall time by half), and `slower` is claimed
only for a change that neither chance nor the usual difference between two days explains.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from compilewatch.extras.profiles import records

Rounds = Sequence[Sequence[float]]
"""Measured values by round, in the order of time."""

PERCENTILE_SAMPLES = {90: 64, 95: 130, 99: 662}
"""Samples that a percentile needs for 99 % confidence (MLPerf's inference rules)."""

CONFIDENCE = 0.95

UNSTABLE_RATIO = 0.10
"""Where the middle half of the rounds spreads over more of the median, times say little."""

SIGNIFICANCE = 0.01

IN_TURNS_ROUNDS = 8
"""With fewer pairs, the signed-rank test cannot reach `SIGNIFICANCE`."""

APART_ROUNDS = 5
"""With fewer rounds on each side, the rank-sum test cannot reach `SIGNIFICANCE`."""

IN_TURNS_CHANGE = 0.02
APART_CHANGE = 0.07
"""Changes below these ratios are not reported, however certain: code that did not change moves by
as much when it is laid out differently, and between two days the clock of a CPU does."""


def timing(wall: Rounds, cpu: Rounds) -> records.Timing:
    """Sum up measured times. Raises ValueError without a single sample."""
    import numpy

    values = numpy.array([value for round_ in wall for value in round_], dtype=float)
    if not values.size:
        raise ValueError("no samples")
    cpu_values = [value for round_ in cpu for value in round_]
    low, high = median_interval(values.tolist())
    tails = {
        f"p{percent}_seconds": float(numpy.percentile(values, percent))
        for percent, needed in PERCENTILE_SAMPLES.items()
        if values.size >= needed
    }
    return records.Timing(
        count=int(values.size),
        rounds=len(wall),
        median_seconds=float(numpy.median(values)),
        mean_seconds=float(values.mean()),
        stdev_seconds=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        ci_low_seconds=low,
        ci_high_seconds=high,
        cpu_median_seconds=median(cpu_values) if cpu_values else None,
        stable=is_stable(wall),
        **tails,
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the confidence interval of the median, from order statistics (no distribution).

    Of fewer than six samples it is their whole range, which promises less.
    """
    from scipy.stats import quantile_test

    interval = quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    low = min(values) if math.isnan(interval.low) else float(interval.low)
    high = max(values) if math.isnan(interval.high) else float(interval.high)
    return low, high


def medians(rounds: Rounds) -> list[float]:
    """The median of each round."""
    return [median(values) for values in rounds if values]


def middle(rounds: Rounds) -> float | None:
    """The median of the rounds' medians; None without any."""
    values = medians(rounds)
    return median(values) if values else None


def is_stable(rounds: Rounds) -> bool:
    """Whether the rounds agree well enough for claims; of one round, its samples."""
    import numpy

    middles = medians(rounds)
    values = middles if len(middles) > 1 else [value for round_ in rounds for value in round_]
    lower, middle, upper = numpy.percentile(values, [25, 50, 75])
    return bool(middle > 0 and (upper - lower) / middle <= UNSTABLE_RATIO)


def in_turns(before: Rounds, after: Rounds) -> records.SpeedJudgement:
    """Compare two sides whose rounds were interleaved, pair by pair (Wilcoxon's signed ranks)."""
    from scipy.stats import wilcoxon

    pairs = list(zip(medians(before), medians(after), strict=False))
    changes = [math.log(new / old) for old, new in pairs if old > 0 and new > 0]
    if not changes:
        return records.SpeedJudgement(reason="nothing was measured on one side")
    ratio = math.exp(median(changes))
    low, high = map(math.exp, median_interval(changes))
    if len(changes) < IN_TURNS_ROUNDS:
        reason = f"{len(changes)} rounds, {IN_TURNS_ROUNDS} are needed"
        return records.SpeedJudgement(reason=reason, ratio=ratio, ratio_low=low, ratio_high=high)
    p = float(wilcoxon(changes).pvalue) if any(changes) else 1.0
    return _judged(ratio, p, IN_TURNS_CHANGE, low, high)


def apart(before: Rounds, after: Rounds) -> records.SpeedJudgement:
    """Compare two sides that were measured at different times (Mann and Whitney's rank sums)."""
    from scipy.stats import mannwhitneyu

    old, new = medians(before), medians(after)
    ratios = [math.log(b / a) for a in old for b in new if a > 0 and b > 0]
    if not ratios:
        return records.SpeedJudgement(reason="nothing was measured on one side")
    # The shift of Hodges and Lehmann: the median over all pairs.
    ratio, fewest = math.exp(median(ratios)), min(len(old), len(new))
    if fewest < APART_ROUNDS:
        reason = f"{fewest} rounds on one side, {APART_ROUNDS} are needed"
        return records.SpeedJudgement(reason=reason, ratio=ratio)
    if not (is_stable(before) and is_stable(after)):
        reason = "the machine was too busy: the rounds of one side differ by more than 10 %"
        return records.SpeedJudgement(reason=reason, ratio=ratio)
    return _judged(ratio, float(mannwhitneyu(old, new).pvalue), APART_CHANGE)


def relative(rounds: Rounds, reference: Rounds) -> list[list[float]]:
    """Rounds as multiples of a reference that was measured alternately with them."""
    return [[own / other] for own, other in zip(medians(rounds), medians(reference), strict=False)]


def _judged(
    ratio: float, p: float, change: float, low: float | None = None, high: float | None = None
) -> records.SpeedJudgement:
    verdict = records.Verdict.SAME
    if p < SIGNIFICANCE and abs(math.log(ratio)) > math.log1p(change):
        verdict = records.Verdict.SLOWER if ratio > 1 else records.Verdict.FASTER
    return records.SpeedJudgement(
        verdict=verdict, ratio=ratio, ratio_low=low, ratio_high=high, p_value=p
    )


# --- points and findings --------------------------------------------------------------------------

TRACED = (records.EAGER, "inductor")
"""The kinds of targets of which `torch.profiler` records operators."""

Measured = tuple[records.TargetProfile, records.BatchPoint]

NOTABLE = 0.10
"""A share of a call that is worth naming as its bottleneck."""


def with_latency(
    point: records.BatchPoint,
    samples: records.Samples,
    *,
    tokens_per_sample: int | None,
    threads: int,
) -> records.BatchPoint:
    """A point with the timing of its rounds and the rates that follow from the median."""
    latency = timing(samples.wall_seconds, samples.cpu_seconds)
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


def with_speedup(
    point: records.BatchPoint, samples: records.Samples, eager: records.Samples
) -> records.BatchPoint:
    """A point compared with eager mode of the same rounds; unchanged where numbers differ."""
    numerics = point.numerics
    if numerics is None or numerics.differs:
        return point
    judged = in_turns(samples.wall_seconds, eager.wall_seconds)
    if judged.ratio is None:
        return point
    point = msgspec.structs.replace(
        point, speedup=judged.ratio, speedup_low=judged.ratio_low, speedup_high=judged.ratio_high
    )
    if judged.verdict is not records.Verdict.SLOWER or point.latency is None:
        return point  # eager mode is not slower for certain, so compiling never pays
    own = point.latency.median_seconds
    saved = own * judged.ratio - own
    cold, warm = point.first_call_seconds, point.warm_first_call_seconds
    return msgspec.structs.replace(
        point,
        break_even_calls_cold=cold / saved if cold is not None else None,
        break_even_calls_warm=warm / saved if warm is not None else None,
    )


def trace_folder(target: str, targets: Sequence[str]) -> str:
    """The folder of a target's trace, relative to the profile.

    The files of the main target are in `profiler_traces` itself, the others below it.
    """
    main = main_traced(targets)
    return "profiler_traces" if target == main else f"profiler_traces/{target}"


def main_traced(targets: Sequence[str]) -> str | None:
    """The target whose trace and operators have the usual names: the first that is compiled."""
    traced = [target for target in targets if records.target_kind(target) in TRACED]
    return next(
        (t for t in traced if records.target_kind(t) != records.EAGER),
        traced[0] if traced else None,
    )


def best_batch(points: Iterable[records.BatchPoint]) -> int | None:
    """The measured batch size with the most samples a second; of equal ones the smallest."""
    rates = [(p.samples_per_second, -p.batch_size) for p in points if p.samples_per_second]
    return -max(rates)[1] if rates else None


def fastest(profile: records.InferenceProfile) -> Measured | None:
    """The target and batch size with the most samples a second whose numbers are right."""
    measured = (
        (target, point)
        for target, point in profile.points()
        if point.samples_per_second
        and (records.target_kind(target.target) == records.EAGER or point.speedup is not None)
    )
    return max(measured, key=lambda pair: pair[1].samples_per_second or 0.0, default=None)


def broken(profile: records.InferenceProfile) -> Measured | None:
    """The first target with graph breaks whose costs are known, at its smallest batch size."""
    return next(((target, point) for target, point in profile.points() if point.breaks), None)


def bottleneck(profile: records.InferenceProfile) -> str:
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
    compiled, worst = max(profile.points(), key=lambda pair: pair[1].break_share)
    if worst.break_share >= NOTABLE:
        cost = worst.breaks[0]
        return (
            f"graph breaks: {worst.break_share:.0%} of a call of {compiled.target} at batch "
            f"{worst.batch_size}, most of it at {cost.file}:{cost.line}"
        )
    segments = point.segments
    if segments is not None and segments.graph_ratio < 1 - NOTABLE:
        return f"overhead around the compiled graphs: {1 - segments.graph_ratio:.0%} of {where}"
    return f"computing: {_scaling(target.points)}"


def _scaling(points: Sequence[records.BatchPoint]) -> str:
    """What the time per sample does as the batch grows."""
    measured = [(p, p.samples_per_second) for p in points if p.samples_per_second]
    if len(measured) < 2:
        return "the operators of the model take the time"
    (first, slow), (last, fast) = measured[0], measured[-1]
    gain = fast / slow
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


SAME_OPTIONS = ("device", "dtype", "threads", "size", "max_length")
"""Options that two profiles must share to be compared."""

Profiled = tuple[records.InferenceProfile, Iterable[records.Samples]]
"""A profile and its measured values."""

Series = Mapping[tuple[str, int], Rounds]
"""The rounds by target and batch size."""


def compare_profiles(old: Profiled, new: Profiled) -> records.ProfileComparison:
    """Compare what both profiles measured."""
    before, after = old[0], new[0]
    obstacle = _obstacle(before, after)
    points = () if obstacle else tuple(_changes(old, new))
    if not obstacle and not points:
        obstacle = "they have no target and batch size in common, or their raw values were deleted"
    return records.ProfileComparison(
        model=after.model,
        before=before.id,
        after=after.id,
        differences=tuple(_differences(before, after)),
        points=points,
        obstacle=obstacle,
    )


def _changes(before: Profiled, after: Profiled) -> Iterator[records.PointChange]:
    single = after[0].options.threads == 1
    olds, news = (
        {(s.target, s.batch_size): s.cpu_seconds if single else s.wall_seconds for s in samples}
        for _, samples in (before, after)
    )
    old_memory, new_memory = (
        {(t.target, p.batch_size): p.memory.rss_peak_bytes for t, p in side.points() if p.memory}
        for side, _ in (before, after)
    )
    for key in (key for key in news if key in olds):
        target, size = key
        yield records.PointChange(
            target=target,
            batch_size=size,
            judgement=apart(olds[key], news[key]),
            measure="CPU time" if single else "wall time",
            before_seconds=middle(olds[key]),
            after_seconds=middle(news[key]),
            relative=_relative(olds, news, key),
            memory_before_bytes=old_memory.get(key),
            memory_after_bytes=new_memory.get(key),
        )


def _relative(olds: Series, news: Series, key: tuple[str, int]) -> float | None:
    """The change of the target relative to that of eager mode; None for eager mode itself."""
    target, size = key
    name = records.eager_of(target, (known for known, _ in olds.keys() & news.keys()))
    eager = (name or records.EAGER, size)
    if target == name or eager not in olds or eager not in news:
        return None
    old, new = (middle(relative(side[key], side[eager])) for side in (olds, news))
    return new / old if old and new else None


def _obstacle(before: records.InferenceProfile, after: records.InferenceProfile) -> str:
    if before.model != after.model:
        return f"they are of different models: {before.model} and {after.model}"
    if before.machine != after.machine:
        return "they are of different machines, and times of one say nothing about another"
    for name in SAME_OPTIONS:
        old, new = getattr(before.options, name), getattr(after.options, name)
        if old != new:
            return f"they were measured with different --{name.replace('_', '-')}: {old} and {new}"
    return ""


def _differences(
    before: records.InferenceProfile, after: records.InferenceProfile
) -> Iterator[str]:
    """What else may be the cause: `torch 2.14.0 -> 2.15.0`, and the machine."""
    for name in ("cpu", "cores", "memory_bytes", "system", "device"):
        old, new = getattr(before.machine, name), getattr(after.machine, name)
        if old != new:
            yield f"machine: {name.removesuffix('_bytes')} {old} -> {new}"
    for target in after.targets:
        known = before.target(target.target)
        if known is None:
            continue
        changes = []
        for name in ("torch", "transformers", "python", "compilewatch"):
            old, new = getattr(known.software, name), getattr(target.software, name)
            if old != new:
                changes.append(f"{name} {old} -> {new}")
        if not changes and known.software.digest != target.software.digest:
            changes.append("other packages of the environment")
        yield from (f"{target.target}: {change}" for change in changes)
    if before.parameters != after.parameters:
        yield f"model: {before.parameters or 0:,} -> {after.parameters or 0:,} parameters"
    if before.inputs != after.inputs:
        yield "example inputs"
