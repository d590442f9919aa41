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
from enum import Enum
from functools import partial
from typing import Protocol

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.of_run.cases import (
    SAMPLES,
    Case,
    Key,
    attempts,
    known_fix,
    ordered,
    removes,
    samples,
    state_of,
)
from compilewatch.extras.fixes.of_run.journal import FixJournal, search_digest
from compilewatch.extras.fixes.of_run.records import FixOrigin, FixState, RunFix
from compilewatch.extras.fixes.of_run.trying import FixFinder, KnownChangesTrial
from compilewatch.extras.fixes.records import Fix, FixStatus, FixTrial
from compilewatch.records import Request

_IN_VAIN = frozenset({FixState.NOTHING, FixState.CAPTURED, FixState.IMPROVES})
"""States of a sample that say of a place that is still there that a search removes it nowhere."""


class FixObserver(Protocol):
    """Follows the work on a run."""

    def on_cases(self, total: int, done: int) -> None: ...

    def on_step(self, model: str, what: str) -> None: ...

    def on_fix(self, found: RunFix) -> None: ...


class FixStage(Enum):
    """What is done with a case."""

    SAMPLE = "known changes, then a search"
    CHECK = "known changes"
    SEARCH = "a search"


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What known changes gave for a case before it was searched."""

    after: tuple[str, ...] = ()
    fix: Fix | None = None
    trials: tuple[FixTrial, ...] = ()


@dataclass(kw_only=True)
class RunSearch:
    """The search for fixes of all cases of a run.

    `max_seconds` is the time after which nothing new is begun; `limits` are those of one model.
    """

    cases: Sequence[Case]
    journal: FixJournal
    observer: FixObserver
    limits: Limits
    max_seconds: float | None = None
    rewrites: bool = True
    _found: dict[Key, RunFix] = field(default_factory=dict)
    _tried: dict[Key, _Tried] = field(default_factory=dict)
    _samples: dict[str, tuple[Case, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _began: float = field(default_factory=time.monotonic)

    def begin(self) -> int:
        """Read what is known; return how many cases are left."""
        keys = {case.key for case in self.cases}
        done = self.journal.done(self.limits)
        self._found |= {key: each for key, each in done.items() if key in keys}
        self._samples = samples(self.cases)
        self.observer.on_cases(len(keys), len(self._found))
        return len(keys - self._found.keys())

    def run(self, finders: Sequence[FixFinder], environment: str) -> None:
        """Work on all cases of an environment, one at a time with each finder."""
        order = [c for c in ordered(self.cases) if c.request.target.environment == environment]
        sampled = {case.key for each in self._samples.values() for case in each}
        first = [case for case in order if case.key in sampled]
        rest = [case for case in order if case.key not in sampled]
        for stage, cases in (
            (FixStage.SAMPLE, first),
            (FixStage.CHECK, rest),
            (FixStage.SEARCH, rest),
        ):
            self._work(finders, stage, cases)

    def _work(self, finders: Sequence[FixFinder], stage: FixStage, cases: Sequence[Case]) -> None:
        free: queue.SimpleQueue[FixFinder] = queue.SimpleQueue()
        for finder in finders:
            free.put(finder)

        def work(case: Case) -> None:
            finder = free.get()
            try:
                self._one(finder, stage, case)
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

    def _one(self, finder: FixFinder, stage: FixStage, case: Case) -> None:
        if self._stop.is_set() or self._left <= 0 or case.key in self._found:
            return
        request = case.request
        tried = self._tried.get(case.key, _Tried())
        if stage is not FixStage.SEARCH:
            tried = self._with_known(finder, case, request)
            if tried.fix is not None and tried.fix.status is FixStatus.VERIFIED:
                self._store(case, tried.fix, FixOrigin.KNOWN, tried)
                return
        if stage is FixStage.CHECK:
            if self._is_hopeful(case):
                self._tried[case.key] = tried  # the search is the next stage
            else:
                origin = FixOrigin.PLACES if tried.fix is None else FixOrigin.KNOWN
                self._store(case, tried.fix or self._nothing(case, tried), origin, tried)
            return
        self._search(finder, case, request, tried)

    def _with_known(self, finder: FixFinder, case: Case, request: Request) -> _Tried:
        with self._lock:
            found = list(self._found.values())
        trial = KnownChangesTrial(finder, request, partial(self._report, case))
        for each in attempts(case, [known_fix(one) for one in found if one.fix.changes]):
            fix = trial.run(each.changes, case.result.breaks, minimal=each.removes == case.places)
            return _Tried(after=each.models, fix=fix, trials=tuple(trial.trials))
        return _Tried()

    def _search(self, finder: FixFinder, case: Case, request: Request, tried: _Tried) -> None:
        seconds = min(self.limits.seconds, self._left)
        fix = finder(
            request,
            Limits(evaluations=self.limits.evaluations, seconds=seconds),
            rewrites=self.rewrites,
            report=partial(self._report, case),
        )
        if tried.fix is not None and tried.fix.status is FixStatus.IMPROVES:
            fix = fix if fix.status in (FixStatus.VERIFIED, FixStatus.IMPROVES) else tried.fix
        elif fix.limit and seconds < self.limits.seconds and fix.status is not FixStatus.VERIFIED:
            return  # the time for all models ended it: the next command searches this one again
        rejected = tried.fix.rejections if tried.fix is not None else ()
        fix = msgspec.structs.replace(
            fix, trials=(*tried.trials, *fix.trials), rejections=(*rejected, *fix.rejections)
        )
        self._store(case, fix, FixOrigin.SEARCH, tried)

    def _is_hopeful(self, case: Case) -> bool:
        """Whether a search may find something: not if it found nothing at each place elsewhere."""
        with self._lock:
            found = dict(self._found)
        removed = {place for each in found.values() for place in removes(each.fix)}
        for place in case.places:
            searched = [found.get(each.key) for each in self._samples[place]]
            in_vain = all(each is not None and each.state in _IN_VAIN for each in searched)
            if place in removed or not in_vain:
                return True
        return False

    def _nothing(self, case: Case, tried: _Tried) -> Fix:
        others = {each.name: None for place in case.places for each in self._samples[place]}
        return Fix(
            model=case.name,
            target=target_label(case.request.target),
            status=FixStatus.NOTHING,
            detail=f"its graph breaks were searched in vain on {', '.join(list(others)[:SAMPLES])}",
            breaks=case.result.breaks,
            left=case.result.breaks,
            trials=tried.trials,
        )

    def _store(self, case: Case, fix: Fix, origin: FixOrigin, tried: _Tried) -> None:
        made = RunFix(
            key=case.request.key,
            search=search_digest(),
            max_evaluations=self.limits.evaluations,
            max_seconds=self.limits.seconds,
            model=case.name,
            target=case.request.target,
            state=state_of(fix),
            origin=origin,
            fix=fix,
            downloads=case.request.model.downloads,
            after=tried.after,
        )
        with self._lock:
            self._found[case.key] = stored = self.journal.append(made)
            self.observer.on_fix(stored)

    def _report(self, case: Case, what: str, number: int) -> None:
        del number
        if self._stop.is_set():
            raise CancelledError
        self.observer.on_step(case.name, what)

    @property
    def _left(self) -> float:
        if self.max_seconds is None:
            return math.inf
        return self.max_seconds - (time.monotonic() - self._began)
