"""The progress of a sweep: a bar with the running requests on a terminal, lines elsewhere.

Commands for one model show a spinner.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from compilewatch.errors import StoreError
from compilewatch.launchers import Launcher, Observer, Running
from compilewatch.records import Request, Result, Target, spent
from compilewatch.report import wording
from compilewatch.report.terminal import STYLES, console, plain
from compilewatch.report.wording import OUTCOME_LABELS, first_place, plural, status_words

if TYPE_CHECKING:
    from compilewatch.store import Store

SECONDS_BETWEEN_LINES = 10.0
"""The time between two lines of progress where the output is not a terminal."""

RUNS_READ = 5
"""How many of the newest runs are read for the durations of the same models."""

START_SECONDS = 8.0
"""About how long the start of a worker takes."""

RUNNING_SHOWN = 8

Durations = Mapping[tuple[str, Target], float]


def known_durations(store: Store) -> Durations:
    """How many seconds models took on targets in the newest runs."""
    durations: dict[tuple[str, Target], float] = {}
    for stored in store.runs()[:RUNS_READ]:
        try:
            results = stored.results()
        except StoreError:
            continue  # a damaged run has no durations
        for result in results:
            if result.durations:
                place = (result.request.model.name, result.request.target)
                durations.setdefault(place, spent(result))
    return durations


def clock(seconds: float) -> str:
    """`0:12`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Remaining:
    """How long the remaining requests will take: as long as the same models before, or the mean."""

    def __init__(self, waiting: Sequence[Request], known: Durations) -> None:
        places = [(request.model.name, request.target) for request in waiting]
        self._left = {place: known.get(place) for place in places}
        self._seen = [seconds for seconds in self._left.values() if seconds is not None]
        self._started = False
        self._changed = time.monotonic()

    def done(self, result: Result) -> None:
        place = (result.request.model.name, result.request.target)
        if place in self._left:
            del self._left[place]
            self._seen.append(spent(result))
            self._started = True
            self._changed = time.monotonic()

    def seconds(self, jobs: int) -> float | None:
        """The estimated remaining time, or None if there is no duration yet."""
        if not self._seen:
            return None
        mean = sum(self._seen) / len(self._seen)
        work = sum(mean if known is None else known for known in self._left.values())
        longest = max((known or mean for known in self._left.values()), default=0.0)
        start = 0.0 if self._started or not self._left else START_SECONDS
        waited = time.monotonic() - self._changed
        return max(max(work / jobs, longest) + start - waited, 0.0)


class ProgressBar(Observer):
    """Prints to standard error; a context manager, so that the bar is always removed.

    `known` returns the durations of earlier runs; it is called when the plan is known.
    """

    def __init__(self, quiet: bool = False, known: Callable[[], Durations] = dict) -> None:
        self._console = console(stderr=True)
        self._quiet = quiet
        self._known = known
        self._counts: Counter[wording.ResultGroup] = Counter()
        self._started = time.monotonic()
        self._done = self._total = 0
        self._remaining = Remaining((), {})
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

    def on_plan(self, total: int, reused: int, waiting: Sequence[Request]) -> None:
        self._done, self._total = reused, total
        if self._quiet:
            return
        self._remaining = Remaining(waiting, self._known())
        known = f", {reused:,} of them reused from earlier runs" if reused else ""
        self._print(plain(f"{plural(total, 'request')}{known}."))

    def on_result(self, result: Result, done: int, total: int) -> None:
        kind = wording.outcome(result)
        self._counts[kind] += 1
        self._done, self._total = done, total
        self._remaining.done(result)
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
        if self._profiling:  # how long that takes is not known
            return f"{parts[0]}; now {self._profiling}"
        left = self._remaining.seconds(self._jobs())
        parts += [f"{clock(left)} left"] if left is not None else []
        now = ", ".join(map(_words, self._running()))
        return "; ".join([*parts, *([f"now {now}"] if now else [])])

    def _jobs(self) -> int:
        return self._launcher.jobs if self._launcher is not None else 1

    def _running(self) -> list[Running]:
        ask = getattr(self._launcher, "running", None)
        running: list[Running] = sorted(ask(), key=lambda r: -r.seconds) if ask is not None else []
        return running[:RUNNING_SHOWN]

    def _shown(self) -> RenderableType:
        if not self._total:
            return Text("reading models")
        left = None if self._profiling else self._remaining.seconds(self._jobs())
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Bar(total=self._total, completed=self._done, width=24),
            f"{self._done:,}/{self._total:,}",
            clock(time.monotonic() - self._started),
            f"{clock(left)} left" if left is not None else "",
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
