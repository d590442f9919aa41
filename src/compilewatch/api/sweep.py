"""A sweep: plan, reuse, launch, store, compare and publish; resuming it, and merging its shards.

No result exists only in memory: each is stored before it is counted, and everything that is shown
at the end is read from the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import extras, plugins
from compilewatch.analysis.summary import status_counts, summarise
from compilewatch.api.choose import (
    Selection,
    checked_targets,
    choose_for_sweep,
    environments_for,
    launcher_of,
)
from compilewatch.api.publish import (
    Published,
    SweepSummary,
    check_sinks,
    load_sinks,
    publish,
    report_health,
    summary_of,
    view,
)
from compilewatch.config import Settings, load_settings
from compilewatch.contract.targets import target_label
from compilewatch.environments import Environments
from compilewatch.errors import LauncherError, StoreError, UsageError
from compilewatch.events import (
    Event,
    EventFactory,
    RunFinished,
    RunInterrupted,
    RunResumed,
    SinkFailed,
)
from compilewatch.launchers import Launcher, Observer
from compilewatch.plan import (
    Expectations,
    Own,
    load_expectations,
    options_of,
    pairs,
    parse_shard,
    place,
    plan,
    possible_environments,
    stale_note,
    worker_sha256,
)
from compilewatch.records import (
    Attempt,
    AttemptCode,
    ChangeKind,
    Depth,
    ModelSpec,
    Plan,
    Request,
    Result,
    Run,
    RunView,
    Shard,
    Status,
    Target,
    now,
)
from compilewatch.report.wording import plural
from compilewatch.sinks import remote_sinks
from compilewatch.sources import ALL
from compilewatch.store import RunWriter, Spooled, Store, StoredRun

EVALUATED_AGAIN = frozenset({Status.CRASHED, Status.TIMEOUT, Status.OOM})
"""Statuses that a resumed run evaluates again, because the machine may have been the cause."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a new run evaluates; see `sweep_models`."""

    selection: Selection
    targets: tuple[Target, ...]
    shard: Shard | None = None
    fresh: bool = False
    profiled: int = 0


def sweep(
    models: Sequence[str] | None = None,
    *,
    top: int | None = None,
    every: bool = False,
    families: Sequence[str] | None = None,
    shard: str | None = None,
    fresh: bool = False,
    profiled: int = 0,
    observer: Observer | None = None,
    **settings: Any,
) -> SweepSummary:
    """Evaluate models, store the run, write its report, and return what it says.

    The models are those of the source with these names or `families`, the `top` most used ones or
    `every` one; without any of them, those that the settings name. `settings` are those of
    `compilewatch.toml` by name, such as `source="library"`, `targets=["dynamo"]`,
    `depth="reduced"` or `output_dir="outputs"`, and replace those of the file. `shard` is `I/N`.
    With `fresh`, results of earlier runs are not reused; `profiled` models also get an inference
    profile. Raises a CompilewatchError that says in one line what is wrong.
    """
    if every:
        settings.setdefault("depth", Depth.REDUCED.value)
    loaded = load_settings(settings)
    store = Store(Path(loaded.output_dir))
    plan = SweepPlan(
        selection=Selection(names=models, top=top, every=every, families=families),
        targets=checked_targets(loaded, settings.get("nested_graph_breaks")),
        shard=parse_shard(shard) if shard else None,
        fresh=fresh,
        profiled=profiled,
    )
    return summary_of(store, new_run(store, loaded, plan, observer or Observer()))


def new_run(store: Store, settings: Settings, plan: SweepPlan, observer: Observer) -> RunView:
    """Choose the models, and evaluate them on the launcher that the settings name."""
    with launcher_of(settings, environments_of(settings)) as launcher:
        observer.on_launcher(launcher)
        chosen = choose_for_sweep(settings, plan.selection)
        observer.on_models(chosen.lines)
        return sweep_models(
            store,
            launcher,
            chosen.specs,
            plan.targets,
            msgspec.structs.replace(settings, jobs=launcher.jobs),
            source=ALL if settings.source == ALL else chosen.specs[0].source,
            selection=plan.selection.stored() | {"heads": settings.heads},
            shard=plan.shard,
            fresh=plan.fresh,
            own=chosen.own,
            observer=observer,
            profiled=plan.profiled,
        )


def environments_of(settings: Settings) -> tuple[str, ...]:
    """The environments that the targets need. The nodes of a cluster know which exist."""
    if settings.launcher == "ray":
        return possible_environments(settings.targets, settings.environments, settings.devices)
    return environments_for(settings.targets, settings)


def sweep_models(
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
    own: Own | None = None,
    observer: Observer | None = None,
    profiled: int = 0,
) -> RunView:
    """Evaluate every model on every target and return the stored run, compared and published.

    Targets run in the environments that `settings.environments` names, or in their default
    environments; `own` says which of `specs` an environment has if it does not have them all.

    `selection` says how `specs` were chosen: runs with the same selection are compared by default.
    With `fresh`, existing results are not reused. `profiled` models that compiled also get an
    inference profile, the most used ones. Invalid settings (an unknown baseline, sink or
    environment) raise before anything runs. KeyboardInterrupt, LauncherError and StoreError leave
    an interrupted run in the store and propagate.
    """
    check_sinks(settings)
    if settings.baseline not in ("auto", "none"):
        store.open(settings.baseline)
    known = launcher.environments()
    placed = place(targets, settings.environments, known)
    expectations = load_expectations(Path(settings.expectations_file))
    planned = plan(
        specs,
        placed,
        options_of(settings),
        known,
        own=own,
        expectations=expectations,
        shard=shard,
        named=bool(settings.environments),
    )
    requests = (*planned.requests, *(result.request for result in planned.skipped))
    # Single models may be placed in environments that no target names.
    used = {target.environment for target in (*placed, *(r.target for r in requests))}
    run = Run(
        id="",
        started_at=now(),
        source=source,
        environments=tuple(e for e in known if e.name in used),
        planned=planned.total,
        plan_digest=planned.digest,
        settings={
            "selection": dict(selection or {}),
            "targets": [target_label(target) for target in placed],
            "depth": settings.depth.value,
            "variants": settings.variants.value,
            "tier": settings.tier.value,
            "fresh": fresh,
            **({"profiled": profiled} if profiled else {}),
            "target_sha256": _target_digests(placed),
        },
        shard=str(shard) if shard is not None else None,
        jobs=settings.jobs,
        targets=placed,
        plan_total=sum(1 for _ in pairs(specs, placed, own)),
    )
    with store.create_run(run, planned) as writer:
        progress = RunInProgress(
            store=store, writer=writer, settings=settings, expectations=expectations
        )
        return progress.evaluate(planned, launcher, observer or Observer())


def resume_run(
    store: Store, settings: Settings, reference: str | None, observer: Observer
) -> RunView:
    """Resume a run, the newest unfinished one by default, on the launcher of the settings."""
    stored = store.open(reference) if reference else store.unfinished()
    names = [environment.name for environment in stored.run.environments]
    with launcher_of(settings, names) as launcher:
        observer.on_launcher(launcher)
        settings = msgspec.structs.replace(settings, jobs=launcher.jobs)
        return resume(store, launcher, settings, reference=reference, observer=observer)


def resume(
    store: Store,
    launcher: Launcher,
    settings: Settings,
    *,
    reference: str | None = None,
    observer: Observer | None = None,
) -> RunView:
    """Resume an interrupted run, the newest by default, with the same id and plan.

    Requests with a result are not evaluated again, except those that timed out, crashed or ran out
    of memory, because the machine may have been the cause. Their old results are kept as attempts.
    Raises UsageError if there is no run to resume, or if the environment or compilewatch itself has
    changed, so that a run never mixes results of two versions.
    """
    check_sinks(settings)
    stored = store.unfinished() if reference is None else store.open(reference)
    with store.resume_run(stored) as writer:
        planned = stored.plan()
        _check_unchanged(writer.run, launcher)
        expectations = load_expectations(Path(settings.expectations_file))
        # Read after the writer was opened, which repairs the end of the file.
        results = StoredRun(stored.path).results()
        stamp = EventFactory(writer.run).stamp()
        writer.events([RunResumed(**stamp, planned=planned.total, answered=len(results))])
        progress = RunInProgress(
            store=store, writer=writer, settings=settings, expectations=expectations
        )
        return progress.evaluate(planned, launcher, observer or Observer(), results)


def _check_unchanged(run: Run, launcher: Launcher) -> None:
    """Raises UsageError if new results would not be comparable with those of the run."""
    now_known = {environment.name: environment.digest for environment in launcher.environments()}
    for environment in run.environments:
        if now_known.get(environment.name) != environment.digest:
            raise UsageError(
                f"environment {environment.name!r} has changed since run {run.id} was started: "
                "start a new sweep instead of using --resume"
            )
    if run.settings.get("target_sha256") != _target_digests(run.targets):
        raise UsageError(
            f"the targets of compilewatch have changed since run {run.id} was started: start a new "
            "sweep instead of using --resume"
        )


def _target_digests(targets: Iterable[Target]) -> dict[str, str]:
    return {name: worker_sha256() for name in sorted({target.name for target in targets})}


@dataclass(frozen=True, kw_only=True)
class RunInProgress:
    """A run whose writer is open, with the objects that every step needs."""

    store: Store
    writer: RunWriter
    settings: Settings
    expectations: Expectations

    @property
    def author(self) -> EventFactory:
        """The author of the events of this run."""
        return EventFactory(self.writer.run)

    def log_results(self, results: Iterable[Result]) -> None:
        """Append the events of stored results."""
        author = self.author
        self.writer.events([event for result in results for event in author.checked(result)])

    def evaluate(
        self,
        planned: Plan,
        launcher: Launcher,
        observer: Observer,
        stored: Sequence[Result] = (),
    ) -> RunView:
        """Evaluate the open requests of a plan, profile what the run asks for, and end the run.

        `stored` are the results of the run from before it was interrupted.
        """
        Evaluation(self, planned, launcher, observer, stored).run()
        notes: tuple[str, ...] = ()
        seconds = self.writer.wall_seconds()  # profiles are no overhead of the evaluation
        if most := self.writer.run.settings.get("profiled"):
            notes = plugins.load(
                "compilewatch.extras.profiles.of_run:profile_run", "sweep --profile"
            )(
                self.writer.path,
                self.writer.run.id,
                StoredRun(self.writer.path).results(),
                most,
                observer,
                Environments(self.settings.cache_folder),
            )
        seen = self.finish(wall_seconds=seconds)
        return replace(seen, notes=(*seen.notes, *notes))

    def finish(self, *, state: str = "finished", wall_seconds: float | None = None) -> RunView:
        """End the run: compare it, log the changes, and publish it.

        What is stored says so only when the files of the run are written and its publications
        wait in the spool: `--resume` does all of it again for a run that is killed before. A shard
        is stored but not sent to any service; only the merged run is sent.
        """
        if self.writer.run.source == "manifest":
            plugins.load("compilewatch.extras.gate.of_run:judge_run")(self.writer)
        stored = self.store.open(self.writer.run.id)
        stored.run = self.writer.ended(state, wall_seconds)
        seen = view(
            self.store, stored, baseline=self.settings.baseline, expectations=self.expectations
        )
        baseline = seen.baseline.id if seen.baseline is not None else None
        run = msgspec.structs.replace(stored.run, baseline=baseline)
        seen = replace(seen, run=run)
        author = EventFactory(run)
        events: list[Event] = []
        if baseline is not None:
            events += (author.changed(change, baseline) for change in seen.changes)
        for expected, result in self.expectations.stale(seen.results, run.environments):
            events.append(author.stale(stale_note(expected, result), result))
        written = publish(self.store, seen, load_sinks(self.settings.sinks, self.settings))
        services = remote_sinks(self.settings) if run.shard is None else ()
        for service in services:
            self.store.spool.put(service, Spooled(run=run.id, since=now()))
        self.writer.events([*events, *_failed(author, written), _finished(author, seen)])
        self.writer.record(run)
        if run.shard is not None:
            return replace(seen, notes=(*seen.notes, *written.notes))
        sent = publish(self.store, seen, load_sinks(services, self.settings))
        report_health(self.store, self.settings, sent)
        self.writer.events(_failed(author, sent))
        return replace(seen, notes=(*seen.notes, *written.notes, *sent.notes))


def _failed(author: EventFactory, published: Published) -> list[SinkFailed]:
    return [
        SinkFailed(**author.stamp("error"), sink=sink, detail=why)
        for sink, why in published.failures
    ]


def _finished(author: EventFactory, seen: RunView) -> RunFinished:
    kinds = [change.kind for change in seen.changes]
    return RunFinished(
        **author.stamp(),
        planned=seen.run.planned,
        reused=summarise(seen).reused,
        wall_seconds=round(seen.run.wall_seconds or 0.0, 3),
        statuses={s.value: n for s, n in status_counts(seen.results).items()},
        regressions=kinds.count(ChangeKind.REGRESSION),
        fixed=kinds.count(ChangeKind.FIXED),
        baseline=seen.baseline.id if seen.baseline else None,
    )


class Evaluation:
    """The open requests of a plan, and their evaluation."""

    def __init__(
        self,
        progress: RunInProgress,
        plan: Plan,
        launcher: Launcher,
        observer: Observer,
        stored: Sequence[Result],
    ) -> None:
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
            started = self._author.started(
                reused=len(reused), skipped=len(skipped), duplicates=self._plan.duplicates
            )
            self._writer.events([started])
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


def merge(store: Store, runs: Sequence[StoredRun], settings: Settings) -> RunView:
    """Merge runs of one plan into a new run; the newest result of a request counts.

    A single run is imported, for example from another machine. If shards are missing, completely
    or in part, the run ends as `incomplete` and the notes of the view name them, now and later.
    Raises UsageError, before anything is written, for runs of different plans or splits, a run that
    is still being written, and a baseline that does not exist.
    """
    check_sinks(settings)
    parts = sorted(runs, key=lambda stored: stored.run.id)
    _check_shards([stored.run for stored in parts])
    if settings.baseline not in ("auto", "none"):
        store.open(settings.baseline)
    newest: dict[tuple[str, Target], tuple[Result, Path]] = {}
    for stored in parts:
        for result in stored.results():
            identity = result.request.model.name, result.request.target
            other = newest.get(identity)
            if other is None or _age(result) >= _age(other[0]):
                newest[identity] = result, stored.path
    run = _joined([stored.run for stored in parts])
    with store.create_run(run, Plan(requests=(), skipped=(), digest=run.plan_digest)) as writer:
        progress = RunInProgress(
            store=store,
            writer=writer,
            settings=settings,
            expectations=load_expectations(Path(settings.expectations_file)),
        )
        results = writer.adopt(list(newest.values()))
        for stored in parts:
            for part in extras.PARTS.values():
                if part.adopt and (stored.path / part.file).exists():
                    plugins.load(part.adopt)(stored.path, writer.path)
        skipped = sum(r.status is Status.SKIPPED for r in results)
        writer.events([progress.author.started(reused=0, skipped=skipped, duplicates=0)])
        progress.log_results(results)
        seen = progress.finish(
            state="incomplete" if run.missing_shards else "finished",
            wall_seconds=run.wall_seconds,
        )
    damaged = [line for stored in parts for line in stored.damaged]
    return replace(seen, notes=(*damaged, *seen.notes))


def _check_shards(runs: Sequence[Run]) -> None:
    if not runs:
        raise UsageError("no runs to merge: name at least one")
    for run in runs:
        if run.state == "running":
            raise UsageError(f"run {run.id} is still being written: wait for it to end")
    plans = {run.plan_digest: run.id for run in runs}
    if len(plans) > 1:
        first, second = sorted(plans.values())[:2]
        raise UsageError(
            f"runs {first} and {second} are of different plans: merge shards of one selection, "
            "made with the same torch, transformers and compilewatch"
        )
    counts = {parse_shard(run.shard).count: run.id for run in runs if run.shard is not None}
    if len(counts) > 1:
        splits = ", ".join(f"{run_id} of {count}" for count, run_id in sorted(counts.items()))
        raise UsageError(f"the shards have different counts: {splits}")


def _joined(runs: Sequence[Run]) -> Run:
    """Return the combined run. Its jobs and wall time result in the same worker seconds."""
    shards = [parse_shard(run.shard) for run in runs if run.shard is not None]
    whole = any(run.shard is None for run in runs) or not shards
    missing = [] if whole else _missing(runs, shards[0].count)
    by_shard = {run.shard: run.planned for run in runs}
    counted = by_shard[None] if None in by_shard else sum(by_shard.values())
    planned = next((run.plan_total for run in runs if run.plan_total is not None), counted)
    jobs = sum(run.jobs for run in runs)
    seconds = sum((run.wall_seconds or 0.0) * run.jobs for run in runs)
    environments = {(e.name, e.digest): e for run in runs for e in run.environments}
    return msgspec.structs.replace(
        runs[-1],
        id="",
        started_at=now(),
        finished_at=None,
        state="running",
        environments=tuple(environments.values()),
        planned=planned,
        missing_shards=tuple(missing),
        shard=None,
        baseline=None,
        jobs=jobs,
        wall_seconds=seconds / jobs,
        merged_from=tuple(run.id for run in runs),
    )


def _missing(runs: Sequence[Run], count: int) -> list[str]:
    """Return the shards that no run contains, or only runs that ended early."""
    complete: dict[str | None, bool] = {}
    for run in runs:
        complete[run.shard] = complete.get(run.shard, False) or run.state == "finished"
    names = [f"{index}/{count}" for index in range(1, count + 1)]
    partial = {name: f"{name} (in part)" for name in names if complete.get(name) is False}
    return [partial.get(name, name) for name in names if not complete.get(name)]


def _age(result: Result) -> tuple[bool, str]:
    """Sort key: the newer result is greater; a skipped request never replaces a result."""
    return result.status is not Status.SKIPPED, result.started_at
