"""One sweep: plan, reuse, launch, store, compare, publish; and taking one up again, and joining.

Nothing is held in memory that is not on disk: an answer is stored before it is counted, and
whatever is shown at the end is read from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compilewatch.config.settings import Settings
from compilewatch.contract.targets import target_label
from compilewatch.errors import UsageError
from compilewatch.events import Author, RunResumed
from compilewatch.launchers import Launcher
from compilewatch.plan.expectations import load_expectations
from compilewatch.plan.keys import target_sha256
from compilewatch.plan.placement import place
from compilewatch.plan.requests import plan
from compilewatch.records import (
    Environment,
    ModelSpec,
    Run,
    Target,
)
from compilewatch.records.clock import now
from compilewatch.records.plans import Options, Shard
from compilewatch.records.views import RunView
from compilewatch.sinks import remote_sinks
from compilewatch.store import Store, StoredRun
from compilewatch.workflows.evaluation import Evaluation, Observer, Silent
from compilewatch.workflows.finish import RunInProgress
from compilewatch.workflows.publish import load_sinks


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
    with store.create_run(run, made) as writer:
        progress = RunInProgress(
            store=store, writer=writer, settings=settings, expectations=expectations
        )
        Evaluation(progress, made, launcher, observer or Silent()).run()
        return progress.finish()


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
    with store.resume_run(stored) as writer:
        made = stored.plan()
        _check_unchanged(writer.run, launcher)
        expectations = load_expectations(Path(settings.expectations_file))
        # Read only now: the end of the file was mended when the writer took it over.
        answered = StoredRun(stored.path).results()
        stamp = Author(writer.run).stamp()
        writer.events([RunResumed(**stamp, planned=made.total, answered=len(answered))])
        progress = RunInProgress(
            store=store, writer=writer, settings=settings, expectations=expectations
        )
        Evaluation(progress, made, launcher, observer or Silent(), answered).run()
        return progress.finish()


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


def _check_sinks(settings: Settings) -> None:
    """Raises UsageError for a sink that is unknown or has no address."""
    load_sinks((*settings.sinks, *remote_sinks(settings)), settings)


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
