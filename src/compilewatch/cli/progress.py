"""The progress of a sweep: a bar with the running requests on a terminal, lines elsewhere.

Commands for one model show a spinner.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from compilewatch.launchers import Launcher, Observer, Running
from compilewatch.records import Result
from compilewatch.report import wording
from compilewatch.report.terminal import STYLES, console, plain
from compilewatch.report.wording import OUTCOME_LABELS, first_place, plural, status_words

SECONDS_BETWEEN_LINES = 10.0
"""The time between two lines of progress where the output is not a terminal."""

RUNNING_SHOWN = 8


def clock(seconds: float) -> str:
    """`0:12`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressBar(Observer):
    """Prints to standard error; a context manager, so that the bar is always removed."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = console(stderr=True)
        self._quiet = quiet
        self._counts: Counter[wording.ResultGroup] = Counter()
        self._started = self._planned = time.monotonic()
        self._done = self._total = 0
        self._launcher: Launcher | None = None
        self._profiling = ""
        self._stop = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, daemon=True)
        self._live: Live | None = None
        if self._console.is_terminal and not quiet:
            self._live = Live(
                get_renderable=self._shown,
                console=self._console,
                transient=True,
                refresh_per_second=4,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        elif not self._quiet:
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._live is not None:
            self._live.stop()
        elif self._lines.is_alive():
            self._lines.join()

    def said_done(self) -> str:
        """The number of results, for the message of an interrupted sweep."""
        if not self._total:
            return "all finished results are"
        verb = "is" if 1 in (self._done, self._total) else "are"
        return f"{self._done:,} of {plural(self._total, 'result')} {verb}"

    def on_launcher(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def on_models(self, lines: Sequence[str]) -> None:
        if not self._quiet:
            click.echo("\n".join(lines), err=True)

    def on_plan(self, total: int, reused: int) -> None:
        self._done, self._total, self._planned = reused, total, time.monotonic()
        if self._quiet:
            return
        known = f", {reused:,} of them reused from earlier runs" if reused else ""
        self._print(plain(f"{plural(total, 'request')}{known}."))

    def on_result(self, result: Result, done: int, total: int) -> None:
        kind = wording.outcome(result)
        self._counts[kind] += 1
        self._done, self._total = done, total
        if self._quiet or kind in ("pass", "not_run", "forecast_pass") or result.expectation:
            return
        line = plain(f"{status_words(result)}  ", STYLES[kind])
        line.append_text(plain(f"{result.request.model.name}  {first_place(result)}  "))
        line.append_text(plain(wording.first_reason(result).partition("\n")[0], "dim"))
        self._print(line)

    def on_step(self, what: str, done: float) -> None:
        """See `Observer`: a line for each model that is profiled."""
        if done == 0 and not self._quiet:
            self._profiling = f"profiling {what}"
            self._print(plain(self._profiling))

    def _print(self, line: Text) -> None:
        # Always one line: on a terminal, what exceeds its width is cut off.
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def _print_lines(self) -> None:
        while not self._stop.wait(SECONDS_BETWEEN_LINES):
            if self._total:
                self._print(plain(self.line()))

    def line(self) -> str:
        """`0:20  8 of 25: 7 pass · 1 graph break; 0:35 left; now LongformerModel compile 0:12`."""
        parts = [f"{clock(time.monotonic() - self._started)}  {self._done:,} of {self._total:,}"]
        parts[0] += f": {self._tally()}" if self._counts else ""
        if self._profiling:
            return f"{parts[0]}; now {self._profiling}"
        parts += filter(None, [self._left()])
        now = ", ".join(map(_words, self._running()))
        return "; ".join([*parts, *([f"now {now}"] if now else [])])

    def _left(self) -> str:
        """`0:35 left`: each of the others takes as long as those until now; "" before a result."""
        evaluated = self._counts.total()
        if not evaluated or self._profiling:  # how long a profile takes is not known
            return ""
        spent = time.monotonic() - self._planned
        return f"{clock(spent / evaluated * (self._total - self._done))} left"

    def _running(self) -> list[Running]:
        ask = getattr(self._launcher, "running", None)
        running: list[Running] = sorted(ask(), key=lambda r: -r.seconds) if ask is not None else []
        return running[:RUNNING_SHOWN]

    def _shown(self) -> RenderableType:
        if not self._total:
            return Text("reading models")
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Bar(total=self._total, completed=self._done, width=24),
            f"{self._done:,}/{self._total:,}",
            clock(time.monotonic() - self._started),
            self._left(),
            plain(self._tally()),
        )
        now = [plain(f"  {_words(running)}", "dim") for running in self._running()]
        now += [plain(f"  {self._profiling}", "dim")] if self._profiling else []
        return Group(head, *now)

    def _tally(self) -> str:
        """Results by outcome; for a resumed sweep, those of this command only."""
        return " · ".join(f"{n:,} {OUTCOME_LABELS[k]}" for k, n in self._counts.most_common())


def _words(running: Running) -> str:
    return f"{running.name} {running.doing} {clock(running.seconds)}".strip()


@contextmanager
def spinner(what: str, launcher: Launcher | None = None) -> Iterator[None]:
    """Show the current step and its seconds on standard error; if that is no terminal, one line."""
    out = console(stderr=True)
    started = time.monotonic()
    list_running = getattr(launcher, "running", tuple)

    def shown() -> RenderableType:
        running = next(iter(list_running()), None)
        doing, seconds = what, time.monotonic() - started
        if running is not None:
            doing, seconds = f"{running.doing} {running.name}".strip(), running.seconds
        turning.update(text=plain(f"{doing} ({seconds:.0f} s)"))
        return turning

    turning = Spinner("dots")
    if not out.is_terminal:
        out.print(plain(what))
        yield
        return
    with Live(get_renderable=shown, console=out, transient=True, refresh_per_second=8):
        yield
