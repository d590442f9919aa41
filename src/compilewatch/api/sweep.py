"""A sweep: plan, reuse, launch, store, compare and publish; resuming it, and merging its shards.

No result exists only in memory: each is stored before it is counted, and everything that is shown
at the end is read from the store.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import events, extras, plugins, records
from compilewatch import plan as planning
from compilewatch.analysis.summary import summarise
from compilewatch.api import choose, publish
from compilewatch.config import Settings, load_settings
from compilewatch.contract.targets import target_label
from compilewatch.environments import Environments
from compilewatch.errors import LauncherError, StoreError, UsageError
from compilewatch.launchers import Launcher, Observer
from compilewatch.records import Request, Result, Run, RunView, Status, Target
from compilewatch.report.wording import plural
from compilewatch.sinks import remote_sinks
from compilewatch.sources import ALL
from compilewatch.store import RunWriter, Spooled, Store, StoredRun

EVALUATED_AGAIN = frozenset({Status.CRASHED, Status.TIMEOUT, Status.OOM})
"""Statuses that a resumed run evaluates again, because the machine may have been the cause."""


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
) -> publish.SweepSummary:
    """Evaluate models, store the run, write its report, and return what it says.

    The models are those of the source with these names or `families`, the `top` most used ones or
    `every` one; without any of them, those that the settings name. `settings` are those of
    `compilewatch.toml` by name, such as `source="library"`, `targets=["dynamo"]`,
    `depth="reduced"` or `output_dir="outputs"`, and replace those of the file. `shard` is `I/N`.
    With `fresh`, results of earlier runs are not reused; `profiled` models also get an inference
    profile. Raises a CompilewatchError that says in one line what is wrong.
    """
    if every:
        settings.setdefault("depth", records.Depth.REDUCED.value)
    loaded = load_settings(settings)
    store = Store(Path(loaded.output_dir))
    seen = new_run(
        store,
        loaded,
        choose.Selection(names=models, top=top, every=every, families=families),
        choose.checked_targets(loaded, settings.get("nested_graph_breaks")),
        observer or Observer(),
        shard=planning.parse_shard(shard) if shard else None,
        fresh=fresh,
        profiled=profiled,
    )
    return publish.summary_of(store, seen)


def new_run(
    store: Store,
    settings: Settings,
    selection: choose.Selection,
    targets: Sequence[Target],
    observer: Observer,
    *,
    shard: records.Shard | None,
    fresh: bool,
    profiled: int,
) -> RunView:
    """Choose the models, and evaluate them on the launcher that the settings name."""
    with choose.launcher_of(settings, environments_of(settings)) as launcher:
        observer.on_launcher(launcher)
        chosen = choose.choose_for_sweep(settings, selection)
        observer.on_models(chosen.lines)
        return sweep_models(
            store,
            launcher,
            chosen.specs,
            targets,
            msgspec.structs.replace(settings, jobs=launcher.jobs),
            source=ALL if settings.source == ALL else chosen.specs[0].source,
            selection=selection.stored() | {"heads": settings.heads},
            shard=shard,
            fresh=fresh,
            own=chosen.own,
            observer=observer,
            profiled=profiled,
        )


def environments_of(settings: Settings) -> tuple[str, ...]:
    """The environments that the targets need. The nodes of a cluster know which exist."""
    if settings.launcher == "ray":
        return planning.possible_environments(
            settings.all_targets, settings.environments, settings.devices
        )
    return choose.environments_for(settings.all_targets, settings)


def sweep_models(
    store: Store,
    launcher: Launcher,
    specs: Sequence[records.ModelSpec],
    targets: Sequence[Target],
    settings: Settings,
    *,
    source: str,
    selection: Mapping[str, Any] | None = None,
    shard: records.Shard | None = None,
    fresh: bool = False,
    own: planning.Own | None = None,
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
    publish.check_sinks(settings)
    if settings.baseline not in ("auto", "none"):
        store.open(settings.baseline)
    known = launcher.environments()
    placed = planning.place(targets, settings.environments, known)
    expectations = planning.load_expectations(Path(settings.expectations_file))
    planned = planning.plan(
        specs,
        placed,
        settings,
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
        started_at=records.now(),
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
            **({"shapes": True} if settings.shapes else {}),
            **({"profiled": profiled} if profiled else {}),
            **({"train_top": settings.train_top} if settings.train_top else {}),
            "target_sha256": _target_digests(placed),
        },
        shard=str(shard) if shard is not None else None,
        jobs=settings.jobs,
        targets=placed,
        plan_total=sum(1 for _ in planning.pairs(specs, placed, own, settings.train_top)),
    )
    with store.create_run(run, planned) as writer:
        open_run = OpenRun(store, writer, settings, expectations)
        return open_run.evaluate(planned, launcher, observer or Observer())


def resume_run(
    store: Store, settings: Settings, reference: str | None, observer: Observer
) -> RunView:
    """Resume a run, the newest unfinished one by default, on the launcher of the settings."""
    stored = store.open(reference) if reference else store.unfinished()
    names = [environment.name for environment in stored.run.environments]
    with choose.launcher_of(settings, names) as launcher:
        observer.on_launcher(launcher)
        settings = msgspec.structs.replace(settings, jobs=launcher.jobs)
        return resume(store, launcher, settings, stored, observer=observer)


def resume(
    store: Store,
    launcher: Launcher,
    settings: Settings,
    stored: StoredRun,
    *,
    observer: Observer | None = None,
) -> RunView:
    """Resume an interrupted run with the same id and plan.

    Requests with a result are not evaluated again, except those that timed out, crashed or ran out
    of memory, because the machine may have been the cause. Their old results are kept as attempts.
    Raises UsageError if requests are left and the environment or compilewatch itself has changed,
    so that a run never mixes results of two versions.
    """
    publish.check_sinks(settings)
    with store.resume_run(stored) as writer:
        planned = stored.plan()
        expectations = planning.load_expectations(Path(settings.expectations_file))
        # Read after the writer was opened, which repairs the end of the file.
        results = StoredRun(stored.path).results()
        if _waiting(planned, results) or writer.run.settings.get("profiled"):
            _check_unchanged(writer.run, launcher)
        open_run = OpenRun(store, writer, settings, expectations)
        stamp = open_run.author.stamp()
        writer.events([events.RunResumed(**stamp, planned=planned.total, answered=len(results))])
        return open_run.evaluate(planned, launcher, observer or Observer(), results)


def _check_unchanged(run: Run, launcher: Launcher) -> None:
    """Raises UsageError if new results would not be comparable with those of the run."""
    now_known = {environment.name: environment.digest for environment in launcher.environments()}
    changed = [
        f"environment {environment.name!r} has"
        for environment in run.environments
        if now_known.get(environment.name) != environment.digest
    ]
    if run.settings.get("target_sha256") != _target_digests(run.targets):
        changed.append("the targets of compilewatch have")
    if changed:
        raise UsageError(
            f"{changed[0]} changed since run {run.id} was started: start a new sweep instead of "
            "using --resume"
        )


def _target_digests(targets: Iterable[Target]) -> dict[str, str]:
    return {name: planning.worker_sha256() for name in sorted({target.name for target in targets})}


def _waiting(planned: records.Plan, stored: Iterable[Result]) -> dict[str, list[Request]]:
    """The requests of a plan that have no result to keep, by key."""
    known = {_identity(r.request) for r in stored if r.status not in EVALUATED_AGAIN}
    waiting: dict[str, list[Request]] = {}
    for request in planned.requests:
        if _identity(request) not in known:
            waiting.setdefault(request.key, []).append(request)
    return waiting


class OpenRun:
    """A run whose writer is open: evaluates the requests that are left, and ends the run."""

    def __init__(
        self,
        store: Store,
        writer: RunWriter,
        settings: Settings,
        expectations: planning.Expectations,
    ) -> None:
        self.author = events.EventFactory(writer.run)
        self._store, self._writer = store, writer
        self._settings, self._expectations = settings, expectations
        self._environments = {e.name: e for e in writer.run.environments}
        self._done, self._evaluated = 0, False

    def evaluate(
        self,
        planned: records.Plan,
        launcher: Launcher,
        observer: Observer,
        stored: Sequence[Result] = (),
    ) -> RunView:
        """Evaluate what is left of a plan, profile what the run asks for, and end the run.

        `stored` are the results of the run from before it was interrupted. After an exception, the
        run is marked as interrupted.
        """
        self._done = sum(result.status not in EVALUATED_AGAIN for result in stored)
        self._evaluated = bool(stored)
        try:
            waiting = self._reuse(planned, stored, observer)
            if waiting:
                again = {_identity(r.request): r for r in stored if r.status in EVALUATED_AGAIN}
                self._run(planned.total, waiting, again, launcher, observer)
        except BaseException as error:
            self._give_up(planned.total, error)
            raise
        notes: tuple[str, ...] = ()
        seconds = self._writer.wall_seconds()  # profiles are no overhead of the evaluation
        if most := self._writer.run.settings.get("profiled"):
            profile_run = "compilewatch.extras.profiles.of_run:profile_run"
            notes = plugins.load(profile_run, "sweep --profile")(
                self._writer.path,
                self._writer.run.id,
                StoredRun(self._writer.path).results(),
                most,
                observer,
                Environments(self._settings.cache_folder),
            )
        seen = self.finish(wall_seconds=seconds)
        return replace(seen, notes=(*seen.notes, *notes))

    def log_results(self, results: Iterable[Result]) -> None:
        """Append the events of stored results."""
        self._writer.events([event for result in results for event in self.author.checked(result)])

    def _reuse(
        self, planned: records.Plan, stored: Sequence[Result], observer: Observer
    ) -> dict[str, list[Request]]:
        """Store the results that need no run: skipped models, results of this or earlier runs.

        Returns the requests that are left, by key.
        """
        waiting = _waiting(planned, stored)
        kept = [result for result in stored if result.status not in EVALUATED_AGAIN]
        known = {_identity(result.request) for result in kept}
        skipped = [r for r in planned.skipped if _identity(r.request) not in known]
        self._writer.append(skipped)
        by_key = {r.request.key: r for r in kept if r.status is not Status.SKIPPED}
        shared: list[Result] = []
        for key in waiting.keys() & by_key.keys():
            shared += self._reused_for(by_key[key], waiting.pop(key), self._writer.run.id)
        self._writer.append(shared)
        reused: list[tuple[Result, Path]] = []
        if not self._writer.run.settings.get("fresh"):
            for key, earlier in self._store.lookup_many(list(waiting)).items():
                origin = earlier.result.reused_from or earlier.run
                results = self._reused_for(earlier.result, waiting.pop(key), origin)
                reused += [(result, self._store.root / earlier.run) for result in results]
        if not stored:
            self.log_started(len(reused), len(skipped), planned.duplicates)
        self.log_results(skipped)
        self.log_results(self._writer.adopt(reused))
        self._done += len(skipped) + len(shared) + len(reused)
        observer.on_plan(planned.total, len(reused))
        return waiting

    def log_started(self, reused: int, skipped: int, duplicates: int) -> None:
        """Append the first event of the run."""
        started = self.author.started(reused=reused, skipped=skipped, duplicates=duplicates)
        self._writer.events([started])

    def _run(
        self,
        total: int,
        waiting: dict[str, list[Request]],
        again: Mapping[tuple[str, Target], Result],
        launcher: Launcher,
        observer: Observer,
    ) -> None:
        """Run one request per key and store its result for all requests with that key.

        What is evaluated `again` has its result from before the interruption as an attempt.
        """
        launched = launcher.run(
            [requests[0] for requests in waiting.values()], self._writer.make_scratch()
        )
        try:
            for completed in launched:
                result = completed.result
                requests = waiting.pop(result.request.key)
                if (earlier := again.get(_identity(result.request))) is not None:
                    attempt = records.Attempt(
                        tier=earlier.tier,
                        status=earlier.status,
                        phase=earlier.phase,
                        code=records.AttemptCode.RESUMED,
                        reason=earlier.detail,
                        durations=earlier.durations,
                    )
                    attempts = (*earlier.attempts, attempt, *result.attempts)
                    result = msgspec.structs.replace(result, attempts=attempts)
                result = self._judged(result)
                others = self._reused_for(result, requests[1:], self._writer.run.id)
                stored = self._writer.append([result, *others], completed.artifacts)
                self._evaluated = True
                self.log_results(stored)
                for one in stored:
                    self._done += 1
                    observer.on_result(one, self._done, total)
        finally:
            # An unfinished generator ends its children here and not when it is garbage-collected.
            with contextlib.suppress(AttributeError):
                launched.close()  # type: ignore[attr-defined]
        if waiting:
            left = sum(map(len, waiting.values()))
            raise LauncherError(
                f"the launcher ended while {plural(left, 'request')} had no result: use --resume"
            )

    def _reused_for(self, result: Result, requests: Iterable[Request], origin: str) -> list[Result]:
        """A result of the run `origin`, for other requests with the same key."""
        return [
            self._judged(msgspec.structs.replace(result, request=request, reused_from=origin))
            for request in requests
        ]

    def _judged(self, result: Result) -> Result:
        environment = self._environments[result.request.target.environment]
        return self._expectations.judge(result, environment)

    def _give_up(self, total: int, error: BaseException) -> None:
        if isinstance(error, StoreError) and not self._evaluated:
            self._writer.discard()  # nothing was evaluated, so no result is lost
            return
        # On a full disk this fails too, but such a run is also read as interrupted.
        with contextlib.suppress(StoreError):
            self._writer.finish("interrupted")
            event = events.RunInterrupted(
                **self.author.stamp("warning"),
                planned=total,
                answered=self._done,
                detail=str(error) or type(error).__name__,
            )
            self._writer.events([event])

    def finish(self, *, state: str = "finished", wall_seconds: float | None = None) -> RunView:
        """End the run: compare it, log the changes, and publish it.

        What is stored says so only when the files of the run are written and its publications
        wait in the spool: `--resume` does all of it again for a run that is killed before. A shard
        is stored but not sent to any service; only the merged run is sent.
        """
        if self._writer.run.source == "manifest":
            plugins.load("compilewatch.extras.gate.of_run:judge_run")(self._writer)
        stored = self._store.open(self._writer.run.id)
        stored.run = self._writer.ended(state, wall_seconds)
        settings, expectations = self._settings, self._expectations
        seen = publish.view(
            self._store, stored, baseline=settings.baseline, expectations=expectations
        )
        baseline = seen.baseline.id if seen.baseline is not None else None
        run = msgspec.structs.replace(stored.run, baseline=baseline)
        seen = replace(seen, run=run)
        author = events.EventFactory(run)
        log: list[events.Event] = []
        if baseline is not None:
            log += (author.changed(change, baseline) for change in seen.changes)
        for expected, result in expectations.stale(seen.results, run.environments):
            log.append(author.stale(planning.stale_note(expected, result), result))
        written = publish.publish(self._store, seen, publish.load_sinks(settings.sinks, settings))
        services = remote_sinks(settings) if run.shard is None else ()
        for service in services:
            self._store.spool.put(service, Spooled(run=run.id, since=records.now()))
        log += [*author.failed(written.failures), author.finished(seen, summarise(seen).reused)]
        self._writer.events(log)
        self._writer.record(run)
        if run.shard is not None:
            return replace(seen, notes=(*seen.notes, *written.notes))
        try:
            sent = publish.publish(self._store, seen, publish.load_sinks(services, settings))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"run {run.id} is finished. What was not sent waits for the next publication, or: "
                f"compilewatch publish {run.id}"
            ) from None
        publish.report_health(self._store, settings, sent)
        self._writer.events(author.failed(sent.failures))
        return replace(seen, notes=(*seen.notes, *written.notes, *sent.notes))


def _identity(request: Request) -> tuple[str, Target]:
    return request.model.name, request.target


def merge(store: Store, runs: Sequence[StoredRun], settings: Settings) -> RunView:
    """Merge runs of one plan into a new run; the newest result of a request counts.

    A single run is imported, for example from another machine. If shards are missing, completely
    or in part, the run ends as `incomplete` and the notes of the view name them, now and later.
    Raises UsageError, before anything is written, for runs of different plans or splits, a run that
    is still being written, and a baseline that does not exist.
    """
    publish.check_sinks(settings)
    parts = sorted(runs, key=lambda stored: stored.run.id)
    _check_shards([stored.run for stored in parts])
    if settings.baseline not in ("auto", "none"):
        store.open(settings.baseline)
    newest: dict[tuple[str, Target], tuple[Result, Path]] = {}
    for stored in parts:
        for result in stored.results():
            other = newest.get(_identity(result.request))
            if other is None or _age(result) >= _age(other[0]):
                newest[_identity(result.request)] = result, stored.path
    run = _joined([stored.run for stored in parts])
    nothing_open = records.Plan(requests=(), skipped=(), digest=run.plan_digest)
    expectations = planning.load_expectations(Path(settings.expectations_file))
    with store.create_run(run, nothing_open) as writer:
        merged = OpenRun(store, writer, settings, expectations)
        results = writer.adopt(list(newest.values()))
        for stored in parts:
            for part in extras.PARTS.values():
                if part.adopt and (stored.path / part.file).exists():
                    plugins.load(part.adopt)(stored.path, writer.path)
        skipped = sum(r.status is Status.SKIPPED for r in results)
        merged.log_started(0, skipped, 0)
        merged.log_results(results)
        seen = merged.finish(
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
    counts = {
        planning.parse_shard(run.shard).count: run.id for run in runs if run.shard is not None
    }
    if len(counts) > 1:
        splits = ", ".join(f"{run_id} of {count}" for count, run_id in sorted(counts.items()))
        raise UsageError(f"the shards have different counts: {splits}")


def _joined(runs: Sequence[Run]) -> Run:
    """Return the combined run. Its jobs and wall time result in the same worker seconds."""
    shards = [planning.parse_shard(run.shard) for run in runs if run.shard is not None]
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
        started_at=records.now(),
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
