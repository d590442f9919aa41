"""One sweep: plan, reuse, launch, store, compare and publish; and resuming an interrupted sweep.

No result exists only in memory: each is stored before it is counted, and everything that is shown
at the end is read from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compilewatch import plugins
from compilewatch.api.evaluation import Evaluation, Observer, Silent
from compilewatch.api.finish import RunInProgress
from compilewatch.api.publish import load_sinks
from compilewatch.config import Settings
from compilewatch.contract.targets import target_label
from compilewatch.environments import Environments
from compilewatch.errors import UsageError
from compilewatch.events import EventFactory, RunResumed
from compilewatch.launchers import Launcher
from compilewatch.plan import (
    Own,
    load_expectations,
    options_of,
    pairs,
    place,
    plan,
    target_sha256,
)
from compilewatch.records import (
    Environment,
    ModelSpec,
    Options,
    Plan,
    Run,
    RunView,
    Shard,
    Target,
    now,
)
from compilewatch.sinks import remote_sinks
from compilewatch.store import Store, StoredRun


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
    _check_sinks(settings)
    if settings.baseline not in ("auto", "none"):
        store.open(settings.baseline)
    known = launcher.environments()
    placed = place(targets, settings.environments, known)
    options = options_of(settings, known)
    expectations = load_expectations(Path(settings.expectations_file))
    named = bool(settings.environments)
    requests = plan(
        specs, placed, options, own=own, expectations=expectations, shard=shard, named=named
    )
    run = Run(
        id="",
        started_at=now(),
        source=source,
        environments=_used(known, placed, requests),
        planned=requests.total,
        plan_digest=requests.digest,
        settings={
            "selection": dict(selection or {}),
            **_stored_settings(placed, options, fresh=fresh, profiled=profiled),
        },
        shard=str(shard) if shard is not None else None,
        jobs=settings.jobs,
        targets=placed,
        plan_total=sum(1 for _ in pairs(specs, placed, own)),
    )
    with store.create_run(run, requests) as writer:
        progress = RunInProgress(
            store=store, writer=writer, settings=settings, expectations=expectations
        )
        Evaluation(progress, requests, launcher, observer or Silent()).run()
        return _profiled(progress, observer)


def _used(
    known: Iterable[Environment], targets: Iterable[Target], planned: Plan
) -> tuple[Environment, ...]:
    """The environments of the targets, and those in which single models were placed."""
    requests = (*planned.requests, *(result.request for result in planned.skipped))
    used = {target.environment for target in (*targets, *(request.target for request in requests))}
    return tuple(environment for environment in known if environment.name in used)


def _stored_settings(
    targets: Sequence[Target], options: Options, *, fresh: bool, profiled: int
) -> dict[str, Any]:
    """What `run.json` says about a sweep besides the selection of its models."""
    return {
        "targets": [target_label(target) for target in targets],
        "depth": options.depth.value,
        "variants": options.variants.value,
        "tier": options.tier.value,
        "fresh": fresh,
        **({"profiled": profiled} if profiled else {}),
        "target_sha256": _target_digests(targets),
    }


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
    _check_sinks(settings)
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
        Evaluation(progress, planned, launcher, observer or Silent(), results).run()
        return _profiled(progress, observer)


def _profiled(progress: RunInProgress, observer: Observer | None) -> RunView:
    """Profile the models that the run asks for, and end the run."""
    writer = progress.writer
    notes: tuple[str, ...] = ()
    seconds = writer.wall_seconds()  # profiles are no overhead of the evaluation
    if most := writer.run.settings.get("profiled"):
        notes = plugins.provided("profiles of a run", "sweep --profile")(
            writer.path,
            writer.run.id,
            StoredRun(writer.path).results(),
            most,
            observer or Silent(),
            Environments(progress.settings.cache_folder),
        )
    seen = progress.finish(wall_seconds=seconds)
    return replace(seen, notes=(*seen.notes, *notes))


def _check_sinks(settings: Settings) -> None:
    """Raises UsageError for a sink that is unknown or has no address."""
    load_sinks((*settings.sinks, *remote_sinks(settings)), settings)


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
    return {name: target_sha256(name) for name in sorted({target.name for target in targets})}
