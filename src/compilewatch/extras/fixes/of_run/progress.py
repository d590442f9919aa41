"""The progress of the work on a run: a bar on a terminal, one line a model elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from compilewatch.extras.fixes.records import RunFix
from compilewatch.extras.fixes.text import status_text
from compilewatch.report.terminal import console, plain

QUIET_SECONDS = 30.0
"""Where the output is no terminal, a step is a line only after so long a time without one."""


class FixProgress:
    """Prints to standard error; a context manager that removes the bar."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._began = time.monotonic()
        self._printed = self._began
        self._done = self._total = 0
        columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(
            *columns,
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("reading results", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_cases(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        known = f", {done:,} of them known from before" if done else ""
        self._print(plain(f"{total:,} models and targets with graph breaks{known}."))
        self._bar.update(self._task, total=total, completed=done)

    def on_step(self, model: str, what: str) -> None:
        if not self._console.is_terminal and time.monotonic() > self._printed + QUIET_SECONDS:
            line = self._head()
            line.append_text(plain(f"now {model}: {what}", "dim"))
            self._print(line)
        self._bar.update(self._task, description=f"{model}: {what}"[:100])

    def on_fix(self, found: RunFix) -> None:
        self._done += 1
        line = self._head()
        line.append_text(plain(f"{found.model}  ", "bold"))
        line.append_text(status_text(found.fix.status))
        said = " and ".join(change.name for change in found.fix.changes) or found.fix.detail
        line.append_text(plain(f"  {said}"))
        self._print(line)
        self._bar.update(self._task, completed=self._done)

    def _head(self) -> Text:
        seconds = int(time.monotonic() - self._began)
        when = f"{seconds // 60}:{seconds % 60:02d}"
        return plain(f"{when}  {self._done:,} of {self._total:,}  ", "dim")

    def _print(self, line: Text) -> None:
        self._printed = time.monotonic()
        # Always one line: on a terminal, what exceeds its width is cut off.
        self._bar.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
