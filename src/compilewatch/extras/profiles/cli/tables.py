"""Profiles in the terminal: the table that people compare, and the main findings."""

from __future__ import annotations

import time
from typing import Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from compilewatch.extras.profiles.infer import analysis
from compilewatch.extras.profiles.infer import words as words
from compilewatch.extras.profiles.infer.records import (
    EAGER,
    BatchPoint,
    InferenceProfile,
    PointChange,
    ProfileComparison,
    TargetProfile,
    Verdict,
)
from compilewatch.extras.profiles.infer.report_files import answers, facts
from compilewatch.report.terminal.pieces import console, plain, plain_table, spaced
from compilewatch.report.wording import milliseconds

SECONDS_BETWEEN_LINES = 10.0
BREAKS_SHOWN = 8


def profile_panel(profile: InferenceProfile) -> RenderableType:
    """Everything about one profile."""
    parts: list[RenderableType] = [_facts(profile), _table(profile)]
    if (breaks := _breaks(profile)) is not None:
        parts.append(breaks)
    found = Text()
    for name, value in answers(profile):
        found.append(f"{name}: ", style="bold")
        found.append_text(plain(value))
        found.append("\n")
    for note in profile.notes:
        found.append_text(plain(f"note: {note}\n", "yellow"))
    found.rstrip()
    return spaced([*parts, found])


def _facts(profile: InferenceProfile) -> RenderableType:
    return plain("\n".join(f"{name:<9} {value}" for name, value in facts(profile)))


def _table(profile: InferenceProfile) -> RenderableType:
    table = plain_table("Target", "Batch", "Latency", "Per sample", "Samples/s", gap=2)
    for heading in ("Memory", "Speed-up", ""):
        table.add_column(heading, overflow="fold")
    for column in table.columns[1:7]:
        column.justify = "right"
    best = analysis.fastest(profile)
    for target in profile.targets:
        for point in target.points:
            table.add_row(*_row(target, point), style="bold" if best == (target, point) else "")
    return table


def _row(target: TargetProfile, point: BatchPoint) -> tuple[RenderableType, ...]:
    name, size = plain(target.target), str(point.batch_size)
    if point.latency is None:
        empty = ("–",) * 5
        return (name, size, *empty, plain(f"{point.status.value}: {point.detail}", "yellow"))
    timing = point.latency
    remark = "" if timing.stable else "unstable"
    if point.numerics is not None and not point.numerics.matches:
        remark = "numbers differ"
    return (
        name,
        size,
        milliseconds(timing.median_seconds),
        milliseconds(timing.median_seconds / point.batch_size),
        words.rate(point.samples_per_second),
        words.megabytes(point.memory.rss_peak_bytes if point.memory else None),
        "1.00 ×" if target.target == EAGER else words.speedup_words(point).partition(" (")[0],
        plain(remark, "yellow"),
    )


def _breaks(profile: InferenceProfile) -> RenderableType | None:
    """The costs of graph breaks at the first batch size that has them."""
    found = analysis.broken(profile)
    if found is None:
        return None
    target, point = found
    costs = f"Costs in a call of {target.target} at batch {point.batch_size}"
    table = plain_table("Graph break", "Where", costs)
    for cost in point.breaks[:BREAKS_SHOWN]:
        place = f"{cost.file}:{cost.line} in {cost.function}"
        table.add_row(plain(cost.code), plain(place), plain(words.break_cost_words(cost)))
    if len(point.breaks) > BREAKS_SHOWN:
        table.add_row("", plain(f"and {len(point.breaks) - BREAKS_SHOWN} more"), "")
    return table


VERDICT_STYLES = {
    Verdict.SLOWER: "red",
    Verdict.FASTER: "green",
    Verdict.SAME: "",
    Verdict.UNCLEAR: "dim",
}


def comparison_table(found: ProfileComparison) -> RenderableType:
    """What changed between two profiles, and what may be the cause."""
    parts: list[RenderableType] = [plain(f"{found.model}: {found.before} -> {found.after}")]
    if found.obstacle:
        parts.append(plain(f"not compared: {found.obstacle}", "yellow"))
    elif found.points:
        measure = found.points[0].measure
        table = plain_table("Target", "Batch", f"Before ({measure})", "After", "Change", gap=2)
        for heading in ("Against eager", "Memory", "Verdict"):
            table.add_column(heading, overflow="fold")
        for column in table.columns[1:7]:
            column.justify = "right"
        for point in found.points:
            table.add_row(*_comparison_row(point))
        parts.append(table)
    if found.differences:
        parts.append(plain("Also different: " + "; ".join(found.differences)))
    else:
        parts.append(plain("The software and the machine are the same."))
    return spaced(parts)


def _comparison_row(point: PointChange) -> tuple[RenderableType, ...]:
    judged = point.judgement
    before, after = point.memory_before_bytes, point.memory_after_bytes
    memory = f"{(after - before) / before:+.1%}" if before and after else "–"
    said = judged.verdict.value + (f": {judged.reason}" if judged.reason else "")
    return (
        plain(point.target),
        str(point.batch_size),
        milliseconds(point.before_seconds),
        milliseconds(point.after_seconds),
        f"{judged.ratio - 1:+.1%}" if judged.ratio else "–",
        f"{point.relative - 1:+.1%}" if point.relative else "–",
        memory,
        plain(said, VERDICT_STYLES[judged.verdict]),
    )


class ProfileProgress:
    """An observer that shows a bar on a terminal and lines elsewhere; on standard error."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._console = console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(model, total=1.0)
        self._printed = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_step(self, what: str, done: float) -> None:
        said = f"{self._model}: {what}"
        self._bar.update(self._task, description=said, completed=done)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self._console.print(plain(f"{done:4.0%} {said}"))
