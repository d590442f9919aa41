"""Statistics of measured times, by NumPy and SciPy: what holds on a noisy machine, and no more.

Two rules keep comparisons honest. Samples of one round share the machine's mood, so comparisons are
between the medians of rounds, never between single samples. And where the two sides ran in turns,
round by round, they are compared pair by pair, which cancels a load that lasts longer than a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from compilewatch.extras.profiles.infer.records import SpeedJudgement, Timing, Verdict

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


def timing(wall: Rounds, cpu: Rounds) -> Timing:
    """Sum up measured times. Raises ValueError without a single sample."""
    import numpy

    values = numpy.array([value for round_ in wall for value in round_], dtype=float)
    if not values.size:
        raise ValueError("no samples")
    cpu_values = [value for round_ in cpu for value in round_]
    low, high = median_interval(values.tolist())
    lower, upper = numpy.percentile(values, [25, 75])
    tails = {
        f"p{percent}_seconds": float(numpy.percentile(values, percent))
        for percent, needed in PERCENTILE_SAMPLES.items()
        if values.size >= needed
    }
    return Timing(
        count=int(values.size),
        rounds=len(wall),
        median_seconds=float(numpy.median(values)),
        mean_seconds=float(values.mean()),
        stdev_seconds=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        iqr_seconds=float(upper - lower),
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


def is_stable(rounds: Rounds) -> bool:
    """Whether the rounds agree well enough for claims; of one round, its samples."""
    import numpy

    middles = medians(rounds)
    values = middles if len(middles) > 1 else [value for round_ in rounds for value in round_]
    lower, middle, upper = numpy.percentile(values, [25, 50, 75])
    return bool(middle > 0 and (upper - lower) / middle <= UNSTABLE_RATIO)


def in_turns(before: Rounds, after: Rounds) -> SpeedJudgement:
    """Compare two sides that were measured in turns, round by round (Wilcoxon's signed ranks)."""
    from scipy.stats import wilcoxon

    pairs = list(zip(medians(before), medians(after), strict=False))
    changes = [math.log(new / old) for old, new in pairs if old > 0 and new > 0]
    if not changes:
        return SpeedJudgement(verdict=Verdict.UNCLEAR, reason="nothing was measured on one side")
    ratio = math.exp(median(changes))
    low, high = map(math.exp, median_interval(changes))
    if len(changes) < IN_TURNS_ROUNDS:
        reason = f"{len(changes)} rounds, {IN_TURNS_ROUNDS} are needed"
        return SpeedJudgement(
            verdict=Verdict.UNCLEAR, ratio=ratio, ratio_low=low, ratio_high=high, reason=reason
        )
    p = float(wilcoxon(changes).pvalue) if any(changes) else 1.0
    return _judged(ratio, low, high, p, IN_TURNS_CHANGE)


def apart(before: Rounds, after: Rounds) -> SpeedJudgement:
    """Compare two sides that were measured at different times (Mann and Whitney's rank sums)."""
    from scipy.stats import mannwhitneyu

    old, new = medians(before), medians(after)
    if not old or not new:
        return SpeedJudgement(verdict=Verdict.UNCLEAR, reason="nothing was measured on one side")
    ratios = [math.log(b / a) for a in old for b in new if a > 0 and b > 0]
    # The shift of Hodges and Lehmann: the median over all pairs.
    ratio = math.exp(median(ratios)) if ratios else None
    fewest = min(len(old), len(new))
    if fewest < APART_ROUNDS or ratio is None:
        reason = f"{fewest} rounds on one side, {APART_ROUNDS} are needed"
        return SpeedJudgement(verdict=Verdict.UNCLEAR, ratio=ratio, reason=reason)
    if not (is_stable(before) and is_stable(after)):
        reason = "the machine was too busy: the rounds of one side differ by more than 10 %"
        return SpeedJudgement(verdict=Verdict.UNCLEAR, ratio=ratio, reason=reason)
    p = float(mannwhitneyu(old, new).pvalue)
    return _judged(ratio, None, None, p, APART_CHANGE)


def relative(rounds: Rounds, reference: Rounds) -> list[list[float]]:
    """Rounds as multiples of a reference that was measured in turns with them."""
    return [[own / other] for own, other in zip(medians(rounds), medians(reference), strict=False)]


def break_even_calls(
    compile_seconds: float | None, eager_seconds: float, compiled_seconds: float
) -> float | None:
    """After how many calls compiling has paid; None where it never does, or is not known."""
    if compile_seconds is None or compiled_seconds >= eager_seconds:
        return None
    return max(0.0, compile_seconds) / (eager_seconds - compiled_seconds)


def _judged(
    ratio: float, low: float | None, high: float | None, p: float, change: float
) -> SpeedJudgement:
    verdict = Verdict.SAME
    if p < SIGNIFICANCE and abs(math.log(ratio)) > math.log1p(change):
        verdict = Verdict.SLOWER if ratio > 1 else Verdict.FASTER
    return SpeedJudgement(verdict=verdict, ratio=ratio, ratio_low=low, ratio_high=high, p_value=p)
