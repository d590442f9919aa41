"""A sweep's progress: a bar with an ETA on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from compilewatch.records import Result
from compilewatch.report.wording import OUTCOME_LABELS, Outcome, outcome

SECONDS_BETWEEN_LINES = 15.0
"""How often a log that is no terminal hears of it."""


class ProgressBar:
    """An `Observer` on standard error; a context manager, so that the bar is always put away."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._counts: Counter[Outcome] = Counter()
        self._said = self._started = time.monotonic()
        self._done = self._total = 0
        self._task: TaskID | None = None
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[last]}", style="dim"),
                console=self._console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def said_done(self) -> str:
        """How far it got, for a sweep that is cut short."""
        return (
            f"{self._done:,} of {self._total:,} results are" if self._total else "what is done is"
        )

    def on_plan(self, total: int, reused: int) -> None:
        self._done, self._total = reused, total
        if self._quiet:
            return
        known = f", {reused:,} of them known from earlier runs" if reused else ""
        noun = "request" if total == 1 else "requests"
        self._console.print(f"{total:,} {noun}{known}.")
        if self._bar is not None:
            self._task = self._bar.add_task("warming up", total=total, completed=reused, last="")

    def on_result(self, result: Result, done: int, total: int) -> None:
        self._counts[outcome(result)] += 1
        self._done = done
        if self._quiet:
            return
        if self._bar is not None and self._task is not None:
            name = result.request.model.name
            self._bar.update(self._task, completed=done, description="checking", last=name)
        elif time.monotonic() - self._said >= SECONDS_BETWEEN_LINES or done == total:
            self._said = time.monotonic()
            self._console.print(f"{done:,} of {total:,}: {self._tally(done)}")

    def _tally(self, done: int) -> str:
        """Results by outcome; of a sweep that is taken up, those of this command only."""
        said = ", ".join(f"{n:,} {OUTCOME_LABELS[k]}" for k, n in self._counts.most_common())
        return said if self._counts.total() == done else f"{said} since this command began"
