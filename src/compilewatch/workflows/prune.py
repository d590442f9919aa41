"""Deleting stored runs that newer ones have superseded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from compilewatch.analysis.comparison import may_be_baseline, scope
from compilewatch.records import Record, Run
from compilewatch.store import Store, StoredRun, freed_bytes, run_bytes


class Judged(Record, frozen=True, kw_only=True):
    """A run that may be deleted, or is kept though newer ones supersede it, and why."""

    run: str
    source: str
    state: str
    started_at: str
    bytes: int
    why: str


class Pruning(Record, frozen=True, kw_only=True):
    """What a deletion is about. `freed_bytes` leaves out what runs that stay hold as well."""

    superseded: tuple[Judged, ...]
    held: tuple[Judged, ...]
    kept: int
    freed_bytes: int


def review(store: Store, *, keep: int | None, days: int | None, now: datetime) -> Pruning:
    """Which runs may go: those that both rules let go, but for those that something holds.

    `keep` lets a run go that has as many newer ones, finished and complete, of its selection (see
    `comparison.scope`); at least one, so that the newest of each always stays. `days` lets one go
    that started longer ago. Raises StoreError.
    """
    stored = store.runs()
    complete = [one.run for one in stored if may_be_baseline(one.run)]
    before = now.astimezone(UTC) - timedelta(days=days) if days is not None else None
    superseded: list[StoredRun] = []
    judged: list[Judged] = []
    held: list[Judged] = []
    for one in stored:
        run = one.run
        newer = _newer(run, complete)
        if newer < (keep or 1) or (before and datetime.fromisoformat(run.started_at) >= before):
            continue
        if reason := _held(store, one, stored):
            held.append(_judged(one, reason))
        else:
            superseded.append(one)
            judged.append(_judged(one, f"{newer} newer of its selection"))
    return Pruning(
        superseded=tuple(judged),
        held=tuple(held),
        kept=len(stored) - len(superseded),
        freed_bytes=freed_bytes(one.path for one in superseded),
    )


def prune(store: Store, pruning: Pruning) -> Iterator[str]:
    """Delete what a review says, the oldest first; the id of each run that is gone.

    Raises StoreError, for a run too that is being written by now.
    """
    store.clear_deleted()
    for judged in reversed(pruning.superseded):
        store.delete_run(store.open(judged.run))
        yield judged.run


def _newer(run: Run, complete: Sequence[Run]) -> int:
    return sum(other.id > run.id and scope(other) == scope(run) for other in complete)


def _held(store: Store, one: StoredRun, stored: Sequence[StoredRun]) -> str:
    """Why a run stays though newer ones supersede it; "" for nothing."""
    run = one.run
    if one.path.is_symlink():
        return "a link to another folder"
    if run.state == "running":
        return "being written"
    if run.id == store.latest_id():
        return "what outputs/latest names"
    if sinks := store.spool.sinks_of(run.id):
        return f"waits for {', '.join(sinks)}: compilewatch publish {run.id}"
    for other in stored:
        if other.run.baseline == run.id and store.spool.sinks_of(other.run.id):
            return f"the baseline of {other.run.id}, which waits to be published"
    return ""


def _judged(one: StoredRun, why: str) -> Judged:
    run = one.run
    return Judged(
        run=run.id,
        source=run.source + (f" {run.shard}" if run.shard else ""),
        state=run.state,
        started_at=run.started_at,
        bytes=run_bytes(one.path),
        why=why,
    )
