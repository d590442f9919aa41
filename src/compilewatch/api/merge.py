"""Merging the runs of a plan's shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from compilewatch import extras, plugins
from compilewatch.api.finish import RunInProgress
from compilewatch.api.publish import load_sinks
from compilewatch.config import Settings
from compilewatch.errors import UsageError
from compilewatch.plan import load_expectations, parse_shard
from compilewatch.records import Plan, Result, Run, RunView, Status, Target, now
from compilewatch.sinks import remote_sinks
from compilewatch.store import Store, StoredRun


def merge(store: Store, runs: Sequence[StoredRun], settings: Settings) -> RunView:
    """Merge runs of one plan into a new run; the newest result of a request counts.

    A single run is imported, for example from another machine. If shards are missing, completely
    or in part, the run ends as `incomplete` and the notes of the view name them, now and later.
    Raises UsageError, before anything is written, for runs of different plans or splits, a run that
    is still being written, and a baseline that does not exist.
    """
    load_sinks((*settings.sinks, *remote_sinks(settings)), settings)
    parts = sorted(runs, key=lambda stored: stored.run.id)
    _check([stored.run for stored in parts])
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
            for _, reference in extras.of_run(stored.path, "merge"):
                plugins.load(reference)(stored.path, writer.path)
        skipped = sum(r.status is Status.SKIPPED for r in results)
        writer.events([progress.author.started(reused=0, skipped=skipped, duplicates=0)])
        progress.log_results(results)
        seen = progress.finish(
            state="incomplete" if run.missing_shards else "finished",
            wall_seconds=run.wall_seconds,
        )
    damaged = [line for stored in parts for line in stored.damaged]
    return replace(seen, notes=(*damaged, *seen.notes))


def _check(runs: Sequence[Run]) -> None:
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
