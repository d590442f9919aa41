"""The evaluation of a plan: reuse known results, run the other requests, and store each result.

No result exists only in memory: each is stored before it is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from compilewatch.api.finish import RunInProgress
from compilewatch.errors import LauncherError, StoreError
from compilewatch.events import RunInterrupted
from compilewatch.launchers import Launcher
from compilewatch.records import Attempt, AttemptCode, Plan, Request, Result, Status, Target
from compilewatch.report.wording import plural

EVALUATED_AGAIN = frozenset({Status.CRASHED, Status.TIMEOUT, Status.OOM})
"""Statuses that a resumed run evaluates again, because the machine may have been the cause."""


class Observer(Protocol):
    """Receives the progress of a sweep, in the thread of the sweep."""

    def on_plan(self, total: int, reused: int, waiting: Sequence[Request]) -> None:
        """Called once: there are `total` requests, of which `reused` have a result already.

        `waiting` are the requests that will run.
        """
        ...

    def on_result(self, result: Result, done: int, total: int) -> None:
        """Called for each request that was run; `done` counts all requests with a result by now."""
        ...

    def on_step(self, what: str, done: float) -> None:
        """Called for each step of a profile, after the results, with its finished share."""
        ...


class Silent:
    """An observer that ignores everything."""

    def on_plan(self, total: int, reused: int, waiting: Sequence[Request]) -> None:
        del total, reused, waiting

    def on_result(self, result: Result, done: int, total: int) -> None:
        del result, done, total

    def on_step(self, what: str, done: float) -> None:
        del what, done


class Evaluation:
    """The open requests of a plan, and their evaluation."""

    def __init__(
        self,
        progress: RunInProgress,
        plan: Plan,
        launcher: Launcher,
        observer: Observer,
        stored: Sequence[Result] = (),
    ) -> None:
        """`stored` are the results of the run from before it was interrupted."""
        self._progress = progress
        self._store, self._writer = progress.store, progress.writer
        self._plan = plan
        self._launcher = launcher
        self._observer = observer
        self._author = progress.author
        self._environments = {e.name: e for e in progress.writer.run.environments}
        self._resumed = bool(stored)
        self._evaluated = False
        self._earlier = {_identity(r.request): r for r in stored if r.status in EVALUATED_AGAIN}
        kept = [result for result in stored if result.status not in EVALUATED_AGAIN]
        self._done = len(kept)
        self._results = {r.request.key: r for r in kept if r.status is not Status.SKIPPED}
        answered = {_identity(result.request) for result in kept}
        self._skipped = [r for r in plan.skipped if _identity(r.request) not in answered]
        self._open: dict[str, list[Request]] = {}
        for request in plan.requests:
            if _identity(request) not in answered:
                self._open.setdefault(request.key, []).append(request)

    def run(self) -> None:
        """Evaluate all open requests. After an exception, the run is marked as interrupted."""
        try:
            self._reuse()
            self._evaluate()
        except BaseException as error:
            self._give_up(error)
            raise

    def _reuse(self) -> None:
        """Store the results that need no run: skipped models, results of this or earlier runs."""
        skipped = self._store_all([(r, None) for r in self._skipped])
        known: list[tuple[Result, Path | None]] = []
        for key in self._open.keys() & self._results.keys():
            known += self._shared(self._results[key], self._open.pop(key))
        self._store_all(known)
        reused: list[tuple[Result, Path | None]] = []
        if not self._writer.run.settings.get("fresh"):
            for key, earlier in self._store.lookup_many(list(self._open)).items():
                origin = earlier.result.reused_from or earlier.run
                folder = self._store.root / earlier.run
                reused += [
                    (self._reused_for(earlier.result, request, origin), folder)
                    for request in self._open.pop(key)
                ]
        if not self._resumed:
            self._writer.events(
                [
                    self._author.started(
                        reused=len(reused),
                        skipped=len(skipped),
                        duplicates=self._plan.duplicates,
                    )
                ]
            )
        self._progress.log_results(skipped)
        self._progress.log_results(self._store_all(reused))
        waiting = [requests[0] for requests in self._open.values()]
        self._observer.on_plan(self._plan.total, len(reused), waiting)

    def _evaluate(self) -> None:
        """Run one request per key and store its result for all requests with that key."""
        if not self._open:
            return
        launched = self._launcher.run(
            [r[0] for r in self._open.values()], self._writer.make_scratch()
        )
        try:
            for completed in launched:
                requests = self._open.pop(completed.result.request.key)
                result = self._judged(self._with_earlier(completed.result))
                results = [result, *(r for r, _ in self._shared(result, requests[1:]))]
                stored = self._writer.append(results, completed.artifacts)
                self._evaluated = True
                self._progress.log_results(stored)
                for one in stored:
                    self._done += 1
                    self._observer.on_result(one, self._done, self._plan.total)
        finally:
            # An unfinished generator ends its children here and not when it is garbage-collected.
            with contextlib.suppress(AttributeError):
                launched.close()  # type: ignore[attr-defined]
        if self._open:
            left = sum(map(len, self._open.values()))
            raise LauncherError(
                f"the launcher ended while {plural(left, 'request')} had no result: use --resume"
            )

    def _with_earlier(self, result: Result) -> Result:
        """A result with the result from before the interruption, if any, as an attempt."""
        earlier = self._earlier.get(_identity(result.request))
        if earlier is None:
            return result
        attempt = Attempt(
            tier=earlier.tier,
            status=earlier.status,
            phase=earlier.phase,
            code=AttemptCode.RESUMED,
            reason=earlier.detail,
            durations=earlier.durations,
        )
        attempts = (*earlier.attempts, attempt, *result.attempts)
        return msgspec.structs.replace(result, attempts=attempts)

    def _shared(self, result: Result, requests: Sequence[Request]) -> list[tuple[Result, None]]:
        """A result of this run, for other requests with the same key."""
        return [(self._reused_for(result, r, self._writer.run.id), None) for r in requests]

    def _reused_for(self, result: Result, request: Request, origin: str) -> Result:
        return self._judged(msgspec.structs.replace(result, request=request, reused_from=origin))

    def _judged(self, result: Result) -> Result:
        return self._progress.expectations.judge(
            result, self._environments[result.request.target.environment]
        )

    def _store_all(self, results: Sequence[tuple[Result, Path | None]]) -> list[Result]:
        self._done += len(results)
        foreign = [(r, folder) for r, folder in results if folder is not None]
        own = [r for r, folder in results if folder is None]
        return [*self._writer.append(own), *self._writer.adopt(foreign)]

    def _give_up(self, error: BaseException) -> None:
        if isinstance(error, StoreError) and not self._evaluated and not self._resumed:
            self._writer.discard()  # nothing was evaluated, so no result is lost
            return
        # On a full disk this fails too, but such a run is also read as interrupted.
        with contextlib.suppress(StoreError):
            self._writer.finish("interrupted")
            event = RunInterrupted(
                **self._author.stamp("warning"),
                planned=self._plan.total,
                answered=self._done,
                detail=str(error) or type(error).__name__,
            )
            self._writer.events([event])


def _identity(request: Request) -> tuple[str, Target]:
    return request.model.name, request.target
