"""Evaluating a plan: reuse what is known, launch the rest, store each result before it is counted.

Nothing is held in memory that is not on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from compilewatch.errors import LauncherError, StoreError
from compilewatch.events import RunInterrupted
from compilewatch.launchers import Launcher
from compilewatch.records import Attempt, AttemptCode, Request, Result, Status, Target
from compilewatch.records.plans import Plan
from compilewatch.workflows.finish import RunInProgress

EVALUATED_AGAIN = frozenset({Status.CRASHED, Status.TIMEOUT, Status.OOM})
"""What a resumed run does not take for the last word: the machine may have been the cause."""


class Observer(Protocol):
    """Told how a sweep goes, in the sweep's own thread."""

    def on_plan(self, total: int, reused: int, waiting: Sequence[Request]) -> None:
        """What there is to do: `total` requests, of which `reused` are answered already.

        `waiting` are those that will be run.
        """
        ...

    def on_result(self, result: Result, done: int, total: int) -> None:
        """One request was answered by running it; `done` counts all that are answered by now."""
        ...


class Silent:
    """An observer that says nothing."""

    def on_plan(self, total: int, reused: int, waiting: Sequence[Request]) -> None:
        del total, reused, waiting

    def on_result(self, result: Result, done: int, total: int) -> None:
        del result, done, total


class Evaluation:
    """What is left of a plan, and its evaluation."""

    def __init__(
        self,
        progress: RunInProgress,
        plan: Plan,
        launcher: Launcher,
        observer: Observer,
        stored: Sequence[Result] = (),
    ) -> None:
        """`stored` are the results that an earlier part of the run left."""
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
        self._answers = {r.request.key: r for r in kept if r.status is not Status.SKIPPED}
        held = {_identity(result.request) for result in kept}
        self._skipped = [r for r in plan.skipped if _identity(r.request) not in held]
        self._open: dict[str, list[Request]] = {}
        for request in plan.requests:
            if _identity(request) not in held:
                self._open.setdefault(request.key, []).append(request)

    def run(self) -> None:
        """Evaluate everything that is open; leaves an interrupted run where that is cut short."""
        try:
            self._reuse()
            self._evaluate()
        except BaseException as error:
            self._give_up(error)
            raise

    def _reuse(self) -> None:
        """Store what needs no asking: skipped models, answers of this run and of earlier ones."""
        skipped = self._store_all([(r, None) for r in self._skipped])
        known: list[tuple[Result, Path | None]] = []
        for key in self._open.keys() & self._answers.keys():
            known += self._shared(self._answers[key], self._open.pop(key))
        self._store_all(known)
        reused: list[tuple[Result, Path | None]] = []
        if not self._writer.run.settings.get("fresh"):
            for key, answer in self._store.lookup_many(list(self._open)).items():
                origin = answer.result.reused_from or answer.run
                folder = self._store.root / answer.run
                reused += [
                    (self._reused_for(answer.result, request, origin), folder)
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
        """Run one request a question and store the answer for all that share it."""
        if not self._open:
            return
        answers = self._launcher.run(
            [r[0] for r in self._open.values()], self._writer.make_scratch()
        )
        try:
            for completed in answers:
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
            # A generator that is left early ends its children here, not when it is collected.
            with contextlib.suppress(AttributeError):
                answers.close()  # type: ignore[attr-defined]
        if self._open:
            left = sum(map(len, self._open.values()))
            raise LauncherError(f"the launcher ended with {left} requests unanswered: use --resume")

    def _with_earlier(self, result: Result) -> Result:
        """A result with what an earlier part of this run saw of its request, as an attempt."""
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

    def _shared(self, answer: Result, requests: Sequence[Request]) -> list[tuple[Result, None]]:
        """The answer of this run for others who ask the same."""
        return [(self._reused_for(answer, r, self._writer.run.id), None) for r in requests]

    def _reused_for(self, answer: Result, request: Request, origin: str) -> Result:
        return self._judged(msgspec.structs.replace(answer, request=request, reused_from=origin))

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
            self._writer.discard()  # nothing that was evaluated is lost: start again
            return
        # On a full disk this fails as well; the run then reads as interrupted all the same.
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
