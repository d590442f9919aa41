"""How the figures of a profile are worded, the same in files, pages and the terminal."""

from __future__ import annotations

from compilewatch.extras.profiles.infer.records import (
    BatchPoint,
    BreakCost,
    SettingFix,
    target_kind,
)
from compilewatch.records.accuracy import Accuracy
from compilewatch.report.wording import milliseconds

MEGABYTES_FROM = 10_000_000
"""From here on, memory is in whole megabytes."""


def megabytes(size: int | None) -> str:
    if size is None:
        return "–"
    return f"{size / 1e6:,.0f} MB" if size >= MEGABYTES_FROM else f"{size / 1e6:,.2f} MB"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def speedup_words(point: BatchPoint) -> str:
    """`1.25 ×`, with the interval where it has one."""
    if point.speedup is None:
        return "–"
    if point.speedup_low is None or point.speedup_high is None:
        return f"{point.speedup:.2f} ×"
    return f"{point.speedup:.2f} × ({point.speedup_low:.2f} to {point.speedup_high:.2f})"


def accuracy_words(found: Accuracy) -> str:
    said = (
        f"accuracy {found.accuracy:.4f}, F1 macro {found.f1_macro:.4f}, "
        f"F1 weighted {found.f1_weighted:.4f} of {found.samples:,} samples"
    )
    if found.disagreements is None:
        return said
    return f"{said}; {found.disagreements:,} predicted otherwise than in eager mode"


def break_even_words(point: BatchPoint) -> str:
    calls = f"{point.break_even_calls_cold or 0:,.0f} calls"
    said = f"compiling pays after {calls} of batch {point.batch_size}"
    if point.break_even_calls_warm is None:
        return said
    return f"{said}, after {point.break_even_calls_warm:,.0f} with filled caches"


def against_first_words(target: str, point: BatchPoint) -> str:
    """`takes 1.05 × the time of inductor in the first environment (1.03 to 1.07) at batch 8`."""
    judged = point.against_first
    if judged is None or judged.ratio is None:
        return "not compared with the first environment"
    said = f"takes {judged.ratio:.2f} × the time of {target_kind(target)} in the first environment"
    if judged.ratio_low is not None and judged.ratio_high is not None:
        said += f" ({judged.ratio_low:.2f} to {judged.ratio_high:.2f})"
    said += f" at batch {point.batch_size}"
    return f"{said}; no claim: {judged.reason}" if judged.reason else said


def setting_fix_words(fix: SettingFix) -> str:
    """The breaks that a setting removes, and what that saves."""
    breaks = f"{fix.breaks_before} → {fix.breaks_after} graph breaks"
    if fix.saving_seconds is None:
        return f"{breaks}; not measured: {fix.detail}"
    if fix.matches is False:
        return f"{breaks}, but the numbers differ then"
    span = f"{milliseconds(fix.saving_low_seconds)} to {milliseconds(fix.saving_high_seconds)}"
    saved = milliseconds(fix.saving_seconds)
    if fix.certain:
        return f"{breaks}; saves {saved} a call ({span})"
    return f"{breaks}; no saving that is certain ({span})"


def break_cost_words(cost: BreakCost) -> str:
    """`1.2 ms (8 %): Python 0.9 ms, guards 0.2 ms, operators 0.1 ms`."""
    return (
        f"{milliseconds(cost.seconds)} ({cost.share:.1%}): "
        f"Python {milliseconds(cost.python_seconds)}, guards {milliseconds(cost.guard_seconds)}, "
        f"operators {milliseconds(cost.eager_seconds)}"
    )
