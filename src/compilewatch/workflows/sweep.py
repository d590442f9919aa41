"""One sweep: plan, reuse, launch, store, compare, publish; and taking one up again, and joining.

Nothing is held in memory that is not on disk: an answer is stored before it is counted, and
whatever is shown at the end is read from the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from compilewatch.config.settings import Settings
from compilewatch.contract.targets import target_label
from compilewatch.errors import LauncherError, StoreError, UsageError
from compilewatch.events import Author, RunInterrupted, RunResumed, SinkFailed
from compilewatch.launchers import Launcher
from compilewatch.plan.expectations import Expectations, load_expectations
from compilewatch.plan.keys import target_sha256
from compilewatch.plan.placement import place
from compilewatch.plan.requests import plan
from compilewatch.records import (
    Attempt,
    AttemptCode,
    Environment,
    ModelSpec,
    Request,
    Result,
    Run,
    Status,
    Target,
)
from compilewatch.records.clock import now
from compilewatch.records.plans import Options, Plan, Shard
from compilewatch.records.views import RunView
from compilewatch.sinks import remote_sinks
from compilewatch.store import RunWriter, Store, StoredRun
from compilewatch.workflows.merge import merge
from compilewatch.workflows.publish import conclude, load_sinks

if TYPE_CHECKING:
    from compilewatch.sinks.loki_push import LogPusher

__all__ = [
    "Observer",
    "Silent",
    "merge",
    "options_of",
    "resume",
    "sweep",
]


EVALUATED_AGAIN = frozenset({Status.CRASHED, Status.TIMEOUT, Status.OOM})
"""What a resumed run does not take for the last word: the machine may have been the cause."""


class Observer(Protocol):
    """Told how a sweep goes, in the sweep's own thread."""

    def on_plan(self, total: int, reused: int) -> None:
        """What there is to do: `total` requests, of which `reused` are answered already."""
        ...

    def on_result(self, result: Result, done: int, total: int) -> None:
        """One request was answered by running it; `done` counts all that are answered by now."""
        ...


class Silent:
    """An observer that says nothing."""

    def on_plan(self, total: int, reused: int) -> None:
        del total, reused

    def on_result(self, result: Result, done: int, total: int) -> None:
        del result, done, total


def sweep(
    store: Store,
    launcher: Launcher,
    specs: Sequence[ModelSpec],
    targets: Sequence[Target],
    settings: Settings,
    *,
    source: str,
    selection: Mapping[str, Any] | None = None,
    shard: Shard | None = None,
    fresh: bool = False,
    observer: Observer | None = None,
) -> RunView:
    """Ask every model about every target and return the stored run, compared and published.

    Targets are asked in the environments that `settings.environments` names, else at home.

    `selection` says how `specs` were chosen: runs with the same one are compared by default.
    `fresh` asks again what is answered already. What is wrong with the request itself (an unknown
    baseline, sink or environment) is raised before anything runs. KeyboardInterrupt leaves an
    interrupted run behind and goes on to the caller, as do LauncherError and StoreError.
    """
    _check_sinks(settings)
    if settings.baseline not in ("auto", "none"):
        store.open(settings.baseline)
    known = launcher.environments()
    placed = place(targets, settings.environments, known)
    options = options_of(settings, known)
    expectations = load_expectations(Path(settings.expectations_file))
    made = plan(specs, placed, options, expectations=expectations, shard=shard)
    asked_in = {target.environment for target in placed}
    run = Run(
        id="",
        started_at=now(),
        source=source,
        environments=tuple(e for e in known if e.name in asked_in),
        planned=made.total,
        plan_digest=made.digest,
        settings={
            "selection": dict(selection or {}),
            "targets": [target_label(target) for target in placed],
            "depth": options.depth.value,
            "tier": options.tier.value,
            "fresh": fresh,
            "target_sha256": _target_digests(placed),
        },
        shard=str(shard) if shard is not None else None,
        jobs=settings.jobs,
        targets=placed,
        plan_total=len(specs) * len(placed),
    )
    with store.create_run(run, made) as writer, _pushing(writer, settings) as pusher:
        work = _Work(store, writer, launcher, made, expectations, observer or Silent())
        work.do()
        seen = conclude(store, writer, settings, expectations)
        return seen if pusher is None else _pushed(store, writer, pusher, seen)


def resume(
    store: Store,
    launcher: Launcher,
    settings: Settings,
    *,
    reference: str | None = None,
    observer: Observer | None = None,
) -> RunView:
    """Take up an interrupted run, the newest by default, under its id and with its plan.

    Nothing that has a result is evaluated again, but what timed out, crashed or ran out of memory:
    that may have been the machine. What was seen then is kept as an attempt. Raises UsageError
    where nothing is to be resumed, or where the environment or compilewatch itself changed, so
    that one run never mixes two.
    """
    _check_sinks(settings)
    stored = store.unfinished() if reference is None else store.open(reference)
    with store.resume_run(stored) as writer, _pushing(writer, settings) as pusher:
        made = stored.plan()
        _check_unchanged(writer.run, launcher)
        expectations = load_expectations(Path(settings.expectations_file))
        # Read only now: the end of the file was mended when the writer took it over.
        answered = StoredRun(stored.path).results()
        stamp = Author(writer.run).stamp()
        writer.events([RunResumed(**stamp, planned=made.total, answered=len(answered))])
        work = _Work(store, writer, launcher, made, expectations, observer or Silent(), answered)
        work.do()
        seen = conclude(store, writer, settings, expectations)
        return seen if pusher is None else _pushed(store, writer, pusher, seen)


def options_of(settings: Settings, environments: Iterable[Environment]) -> Options:
    """How a sweep with these settings asks its models."""
    overrides = Path(settings.overrides_dir)
    operators = Path(settings.neuron_operators_file)
    return Options(
        environments=tuple(environments),
        tier=settings.tier,
        depth=settings.depth,
        deadlines=settings.deadlines,
        memory_limit_bytes=settings.memory_limit_bytes,
        overrides_dir=str(overrides) if overrides.is_dir() else None,
        neuron_operators=str(operators) if operators.is_file() else None,
    )


class _Work:
    """What is left of a plan, and doing it."""

    def __init__(
        self,
        store: Store,
        writer: RunWriter,
        launcher: Launcher,
        made: Plan,
        expectations: Expectations,
        observer: Observer,
        answered: Sequence[Result] = (),
    ) -> None:
        self._store = store
        self._writer = writer
        self._launcher = launcher
        self._plan = made
        self._expectations = expectations
        self._observer = observer
        self._author = Author(writer.run)
        self._environments = {e.name: e for e in writer.run.environments}
        self._resumed = bool(answered)
        self._earlier = {_identity(r.request): r for r in answered if r.status in EVALUATED_AGAIN}
        kept = [result for result in answered if result.status not in EVALUATED_AGAIN]
        self._done = len(kept)
        self._answers = {r.request.key: r for r in kept if r.status is not Status.SKIPPED}
        held = {_identity(result.request) for result in kept}
        self._skipped = [r for r in made.skipped if _identity(r.request) not in held]
        self._open: dict[str, list[Request]] = {}
        for request in made.requests:
            if _identity(request) not in held:
                self._open.setdefault(request.key, []).append(request)

    def do(self) -> None:
        """Answer everything that is open; leaves an interrupted run where that is cut short."""
        try:
            self._take_what_is_known()
            self._ask()
        except BaseException as error:
            self._give_up(error)
            raise

    def _take_what_is_known(self) -> None:
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
                    (self._rehomed(answer.result, request, origin), folder)
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
        self._log(skipped)
        self._log(self._store_all(reused))
        self._observer.on_plan(self._plan.total, len(reused))

    def _ask(self) -> None:
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
                self._log(stored)
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
        return [(self._rehomed(answer, r, self._writer.run.id), None) for r in requests]

    def _rehomed(self, answer: Result, request: Request, origin: str) -> Result:
        return self._judged(msgspec.structs.replace(answer, request=request, reused_from=origin))

    def _judged(self, result: Result) -> Result:
        return self._expectations.judge(
            result, self._environments[result.request.target.environment]
        )

    def _store_all(self, results: Sequence[tuple[Result, Path | None]]) -> list[Result]:
        self._done += len(results)
        foreign = [(r, folder) for r, folder in results if folder is not None]
        own = [r for r, folder in results if folder is None]
        return [*self._writer.append(own), *self._writer.adopt(foreign)]

    def _log(self, results: Iterable[Result]) -> None:
        self._writer.events([event for r in results for event in self._author.checked(r)])

    def _give_up(self, error: BaseException) -> None:
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


def _check_sinks(settings: Settings) -> None:
    """Raises UsageError for a sink that is unknown or has no address."""
    pushed = ("loki",) if settings.loki_push else ()
    load_sinks((*settings.sinks, *remote_sinks(settings), *pushed), settings)


@contextlib.contextmanager
def _pushing(writer: RunWriter, settings: Settings) -> Iterator[LogPusher | None]:
    """Have each line of the log pushed as soon as it is written, where that is set."""
    if not settings.loki_push:
        yield None
        return
    # Here, since it brings an HTTP client along.
    from compilewatch.sinks import loki_push

    with contextlib.closing(loki_push.start(settings)) as pusher:
        writer.on_events = pusher.offer
        try:
            yield pusher
        finally:
            writer.on_events = None


def _pushed(store: Store, writer: RunWriter, pusher: LogPusher, seen: RunView) -> RunView:
    """Say of a run that is done that Loki has not all of its log, unless it was published since."""
    writer.on_events = None
    pusher.close()
    delivered = store.spool.last("loki")
    if pusher.lost is None or (delivered is not None and delivered.run == seen.run.id):
        return seen
    why = f"{pusher.lost}; all of them: compilewatch publish {seen.run.id} --to loki"
    stamp = Author(seen.run).stamp("error")
    writer.events([SinkFailed(**stamp, sink="loki_push", detail=why)])
    return replace(seen, notes=(*seen.notes, why))


def _identity(request: Request) -> tuple[str, Target]:
    return request.model.name, request.target


def _check_unchanged(run: Run, launcher: Launcher) -> None:
    """Raises UsageError where answers of now would not belong to the run's questions."""
    now_known = {environment.name: environment.digest for environment in launcher.environments()}
    for environment in run.environments:
        if now_known.get(environment.name) != environment.digest:
            raise UsageError(
                f"environment {environment.name!r} changed since run {run.id} was started: start "
                "a new sweep instead of --resume"
            )
    if run.settings.get("target_sha256") != _target_digests(run.targets):
        raise UsageError(
            f"compilewatch's targets changed since run {run.id} was started: start a new sweep "
            "instead of --resume"
        )


def _target_digests(targets: Iterable[Target]) -> dict[str, str]:
    return {name: target_sha256(name) for name in sorted({target.name for target in targets})}
