"""Deleting stored runs that newer runs have superseded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from compilewatch.analysis.comparison import may_be_baseline, scope
from compilewatch.records import Record, Run
from compilewatch.store import Store, StoredRun, freed_bytes, run_bytes


class Candidate(Record, frozen=True, kw_only=True):
    """A superseded run that may be deleted, or that must be kept, and why."""

    run: str
    source: str
    state: str
    started_at: str
    bytes: int
    why: str


class Pruning(Record, frozen=True, kw_only=True):
    """The result of a review. `freed_bytes` does not count files that remaining runs share."""

    superseded: tuple[Candidate, ...]
    held: tuple[Candidate, ...]
    kept: int
    freed_bytes: int


def review(store: Store, *, keep: int | None, days: int | None, now: datetime) -> Pruning:
    """Return which runs may be deleted: those that both rules allow and nothing else needs.

    `keep` allows the deletion of a run that has at least this many newer runs of the same selection
    (see `comparison.scope`) that are finished and complete; at least 1, so that the newest run of
    each selection always stays. `days` allows the deletion of a run that started longer ago.
    Raises StoreError.
    """
    stored = store.runs()
    complete = [one.run for one in stored if may_be_baseline(one.run)]
    before = now.astimezone(UTC) - timedelta(days=days) if days is not None else None
    superseded: list[StoredRun] = []
    candidates: list[Candidate] = []
    held: list[Candidate] = []
    for one in stored:
        run = one.run
        newer = _newer(run, complete)
        if newer < (keep or 1) or (before and datetime.fromisoformat(run.started_at) >= before):
            continue
        if reason := _held(store, one, stored):
            held.append(_candidate(one, reason))
        else:
            superseded.append(one)
            candidates.append(_candidate(one, f"{newer} newer of its selection"))
    return Pruning(
        superseded=tuple(candidates),
        held=tuple(held),
        kept=len(stored) - len(superseded),
        freed_bytes=freed_bytes(one.path for one in superseded),
    )


def prune(store: Store, pruning: Pruning) -> Iterator[str]:
    """Delete the runs of a review, oldest first, and yield the id of each deleted run.

    Raises StoreError, also for a run that is now being written.
    """
    store.clear_deleted()
    for candidate in reversed(pruning.superseded):
        store.delete_run(store.open(candidate.run))
        yield candidate.run


def _newer(run: Run, complete: Sequence[Run]) -> int:
    return sum(other.id > run.id and scope(other) == scope(run) for other in complete)


def _held(store: Store, one: StoredRun, stored: Sequence[StoredRun]) -> str:
    """Return why a superseded run must be kept, "" if it may be deleted."""
    run = one.run
    if one.path.is_symlink():
        return "a link to another folder"
    if one.is_being_written:
        return "being written"
    if run.id == store.latest_id():
        return "outputs/latest points to it"
    if sinks := store.spool.sinks_of(run.id):
        return f"waits for {', '.join(sinks)}: compilewatch publish {run.id}"
    for other in stored:
        if other.run.baseline == run.id and store.spool.sinks_of(other.run.id):
            return f"the baseline of {other.run.id}, which waits to be published"
    return ""


def _candidate(one: StoredRun, why: str) -> Candidate:
    run = one.run
    return Candidate(
        run=run.id,
        source=run.source + (f" {run.shard}" if run.shard else ""),
        state=run.state,
        started_at=run.started_at,
        bytes=run_bytes(one.path),
        why=why,
    )
