"""Works on the cases of a run: searches a few models of each place, then checks all others.

Three stages, in each of which several finders may work at a time: the samples of all places, then
known changes on the other models, then a search for those of them that may still have a fix. What
is found is stored at once, so that a driver that is stopped goes on where it was.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import msgspec
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from compilewatch.extras.fixes.fixing import Finder, Limits
from compilewatch.extras.fixes.of_run.view import (
    SAMPLES,
    Case,
    FixJournal,
    Key,
    known_changes,
    ordered,
    sampled_cases,
    search_digest,
)
from compilewatch.extras.fixes.records import (
    Fix,
    FixOrigin,
    FixStatus,
    FixTrial,
    RunFix,
    Verification,
)
from compilewatch.extras.fixes.search import (
    Changes,
    names_of,
    nothing,
    trial_of,
    verified,
    with_captured,
)
from compilewatch.extras.fixes.text import status_text
from compilewatch.records import Status
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

    def on_fix(self, run_fix: RunFix) -> None:
        self._done += 1
        line = self._head()
        line.append_text(plain(f"{run_fix.model}  ", "bold"))
        line.append_text(status_text(run_fix.fix.status))
        result = " and ".join(change.name for change in run_fix.fix.changes) or run_fix.fix.detail
        line.append_text(plain(f"  {result}"))
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


_IN_VAIN = frozenset({FixStatus.NOTHING, FixStatus.CAPTURED, FixStatus.IMPROVES})
"""States of a sample that say of a place that is still there that a search removes it nowhere."""


Tried = tuple[tuple[str, ...], Fix]
"""The models whose changes were tried on a case before it was searched, and what they gave."""


@dataclass(kw_only=True)
class RunSearch:
    """The search for fixes of all cases of a run.

    `max_seconds` is the time after which nothing new is begun; `limits` are those of one model.
    """

    cases: Sequence[Case]
    journal: FixJournal
    progress: FixProgress
    limits: Limits
    max_seconds: float | None = None
    rewrites: bool = True
    _found: dict[Key, RunFix] = field(default_factory=dict)
    _tried: dict[Key, Tried] = field(default_factory=dict)
    _samples: dict[str, tuple[Case, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _began: float = field(default_factory=time.monotonic)

    def begin(self) -> int:
        """Read what is known; return how many cases are left."""
        keys = {case.key for case in self.cases}
        done = self.journal.done(self.limits)
        self._found |= {key: each for key, each in done.items() if key in keys}
        self._samples = sampled_cases(self.cases)
        self.progress.on_cases(len(keys), len(self._found))
        return len(keys - self._found.keys())

    def run(self, finders: Sequence[Finder], environment: str) -> None:
        """Work on all cases of an environment, one at a time with each finder."""
        order = [c for c in ordered(self.cases) if c.request.target.environment == environment]
        sampled = {case.key for each in self._samples.values() for case in each}
        first = [case for case in order if case.key in sampled]
        rest = [case for case in order if case.key not in sampled]
        with_finder = partial(self._work, finders)
        with_finder(first, known=True, search=True)
        with_finder(rest, known=True, search=False)
        with_finder(rest, known=False, search=True)

    def _work(
        self, finders: Sequence[Finder], cases: Sequence[Case], *, known: bool, search: bool
    ) -> None:
        free: queue.SimpleQueue[Finder] = queue.SimpleQueue()
        for finder in finders:
            free.put(finder)

        def work(case: Case) -> None:
            finder = free.get()
            try:
                self._one(finder, case, known=known, search=search)
            finally:
                free.put(finder)

        if len(finders) == 1:
            for case in cases:
                work(case)
            return
        with ThreadPoolExecutor(len(finders)) as pool:
            try:
                for _ in pool.map(work, cases):
                    pass
            except BaseException:
                self._stop.set()  # the other finders end after what they evaluate just now
                raise

    def _one(self, finder: Finder, case: Case, *, known: bool, search: bool) -> None:
        """Try known changes on a case, search for others, or both."""
        if self._stop.is_set() or self._left <= 0 or case.key in self._found:
            return
        after, tried = self._tried.get(case.key, ((), nothing(case.request, case.result.breaks)))
        if known:
            after, tried = self._with_known(finder, case)
            if tried.status is FixStatus.VERIFIED:
                self._store(case, tried, FixOrigin.KNOWN, after)
                return
        if search:
            self._search(finder, case, after, tried)
        elif self._is_hopeful(case):
            self._tried[case.key] = after, tried  # the search is the next stage
        elif tried.verification is not None or tried.rejections:
            self._store(case, tried, FixOrigin.KNOWN, after)
        else:
            others = {each.name: None for place in case.places for each in self._samples[place]}
            detail = (
                f"its graph breaks were searched in vain on {', '.join(list(others)[:SAMPLES])}"
            )
            fix = msgspec.structs.replace(tried, detail=detail)
            self._store(case, fix, FixOrigin.PLACES, after)

    def _with_known(self, finder: Finder, case: Case) -> Tried:
        """Try changes that are verified for other models: cheaper than a search."""
        began, trials = time.monotonic(), list[FixTrial]()
        fix = nothing(case.request, case.result.breaks)
        with self._lock:
            known = [each for each in self._found.values() if each.fix.changes]
        attempt = known_changes(case, known)
        if attempt is None:
            return (), fix

        def captured(changes: Changes) -> bool:
            self._report(case, f"trying {names_of(changes)}", len(trials))
            started = time.monotonic()
            result = finder.evaluate(case.request, changes)
            trials.append(trial_of(changes, result, time.monotonic() - started))
            return result.status is Status.PASS

        def verify(changes: Changes) -> tuple[str, Verification]:
            self._report(case, f"verifying {names_of(changes)}", len(trials))
            return finder.verify(case.request, changes)

        changes = attempt.changes
        if captured(changes):
            for change in () if attempt.minimal else reversed(changes):
                without = tuple(other for other in changes if other is not change)
                if without and captured(without):
                    changes = without
            fix = verified(verify, fix, changes)
        seconds = round(time.monotonic() - began, 1)
        # Which graph breaks went is not known where some remain.
        left = () if fix.status is FixStatus.VERIFIED else fix.left
        fix = msgspec.structs.replace(fix, left=left, trials=tuple(trials), seconds=seconds)
        return attempt.models, fix

    def _search(self, finder: Finder, case: Case, after: tuple[str, ...], tried: Fix) -> None:
        seconds = min(self.limits.seconds, self._left)
        fix = finder(
            case.request,
            Limits(evaluations=self.limits.evaluations, seconds=seconds),
            rewrites=self.rewrites,
            report=partial(self._report, case),
        )
        if tried.status is FixStatus.IMPROVES:
            fix = fix if fix.verification is not None else tried
        elif fix.limit and seconds < self.limits.seconds and fix.status is not FixStatus.VERIFIED:
            return  # the time for all models ended it: the next command searches this one again
        if fix is not tried:
            fix = msgspec.structs.replace(
                fix,
                trials=(*tried.trials, *fix.trials),
                rejections=(*tried.rejections, *fix.rejections),
            )
        self._store(case, fix, FixOrigin.SEARCH, after)

    def _is_hopeful(self, case: Case) -> bool:
        """Whether a search may find something: not if it found nothing at each place elsewhere."""
        with self._lock:
            by_key = dict(self._found)
        removed = {place for entry in by_key.values() for place in entry.fix.removed}
        for place in case.places:
            searched = [by_key.get(sample.key) for sample in self._samples[place]]
            in_vain = all(
                sample is not None and sample.fix.status in _IN_VAIN for sample in searched
            )
            if place in removed or not in_vain:
                return True
        return False

    def _store(self, case: Case, fix: Fix, origin: FixOrigin, after: tuple[str, ...]) -> None:
        if fix.status is FixStatus.NO_BREAK:  # it had one when the run was made
            fix = msgspec.structs.replace(fix, status=FixStatus.NO_VERDICT)
        run_fix = RunFix(
            key=case.request.key,
            search=search_digest(),
            max_evaluations=self.limits.evaluations,
            max_seconds=self.limits.seconds,
            model=case.name,
            target=case.request.target,
            origin=origin,
            fix=with_captured(fix),
            downloads=case.request.model.downloads,
            after=after,
        )
        with self._lock:
            self._found[case.key] = stored = self.journal.append(run_fix)
            self.progress.on_fix(stored)

    def _report(self, case: Case, what: str, number: int) -> None:
        del number
        if self._stop.is_set():
            raise CancelledError
        self.progress.on_step(case.name, what)

    @property
    def _left(self) -> float:
        if self.max_seconds is None:
            return math.inf
        return self.max_seconds - (time.monotonic() - self._began)
