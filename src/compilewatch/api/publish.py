"""Sending stored runs to the sinks, including the runs that wait in the spool."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from compilewatch import plugins
from compilewatch.api.view import view
from compilewatch.config import Settings, value_of, where_to_set
from compilewatch.errors import (
    CompilewatchError,
    SelectionError,
    SinkError,
    UnreachableError,
    UsageError,
)
from compilewatch.records import RunView, now
from compilewatch.sinks import ADDRESSES, SINKS, Sink, remote_sinks
from compilewatch.store import Spool, Spooled, Store, StoredRun

MAX_REJECTIONS = 5
"""After how many rejections by a sink a run is removed from the spool."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One line from each sink that accepted the run, and (sink, why) for those that failed."""

    lines: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{sink} was not {'published to' if sink in ADDRESSES else 'written'}: {why}"
            for sink, why in self.failures
        )


def load_sinks(names: Iterable[str], settings: Settings) -> tuple[Sink, ...]:
    """Import sinks by name. Raises UsageError for a sink that is unknown or has no address."""
    sinks: list[Sink] = []
    for name in names:
        sink_class = plugins.find("sink", SINKS, name)
        if (setting := ADDRESSES.get(name)) and not value_of(settings, setting):
            raise UsageError(f"{name} has no address: set {where_to_set(setting)}")
        sinks.append(sink_class(settings))
    return tuple(sinks)


def publish(store: Store, seen: RunView, sinks: Sequence[Sink]) -> Published:
    """Send a run to each sink. A sink that fails does not affect the others.

    Remote sinks also get the runs that wait in the spool, oldest first, so that the Pushgateway
    holds the newest one in the end. Runs that a sink does not accept stay in the spool.
    """
    lines: list[str] = []
    failures: list[tuple[str, str]] = []
    for sink in sinks:
        if sink.name in ADDRESSES:
            outcomes = _hand_over_all(store, seen, sink)
        else:
            outcomes = iter([_hand_over(store, seen, sink)])
        for outcome in outcomes:
            if outcome.error is None:
                lines.append(outcome.line)
            else:
                failures.append((sink.name, outcome.line))
    return Published(lines=tuple(lines), failures=tuple(failures))


def report_health(store: Store, settings: Settings, published: Published) -> None:
    """Report the state of publication to the Pushgateway, if one is set and it is available."""
    if not settings.pushgateway.url:
        return
    from compilewatch.sinks.pushgateway import PublicationHealth, push_health

    failed = Counter(sink for sink, _ in published.failures)
    spool = store.spool
    with contextlib.suppress(SinkError):
        push_health(
            settings,
            {
                sink: PublicationHealth(
                    spooled=len(spool.waiting(sink)),
                    failed=failed[sink],
                    last=last.at if (last := spool.last(sink)) else None,
                )
                for sink in remote_sinks(settings)
            },
        )


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The line that a sink returned for a run, or why it did not accept the run."""

    line: str
    error: Exception | None = None


def _hand_over(store: Store, seen: RunView, sink: Sink) -> _Outcome:
    try:
        return _Outcome(line=sink.publish(seen, store.files(seen.run.id)))
    except Exception as error:  # noqa: BLE001 -- a plug-in's edge: the run is stored already
        known = isinstance(error, CompilewatchError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        return _Outcome(line=" ".join(why.split()), error=error)


def _hand_over_all(store: Store, seen: RunView, sink: Sink) -> Iterator[_Outcome]:
    """Send a run and those in the spool to a remote sink, in the order in which they started."""
    spool = store.spool
    waiting = {spooled.run: spooled for spooled in spool.waiting(sink.name)}
    # It stays in the spool until it is accepted, so a killed process loses nothing.
    mine = waiting.setdefault(seen.run.id, Spooled(run=seen.run.id, since=now()))
    spool.put(sink.name, mine)
    offered: list[StoredRun] = []
    for run_id in waiting:
        try:
            offered.append(store.open(run_id))
        except CompilewatchError as error:
            spool.drop(sink.name, run_id)
            yield _Outcome(line=f"run {run_id} (spooled) is no longer stored: {error}", error=error)
    for stored in sorted(offered, key=lambda stored: stored.run.started_at):
        spooled = waiting[stored.run.id]
        if spooled is mine:
            outcome = _hand_over(store, seen, sink)
        else:
            outcome = _hand_over_waiting(store, stored, sink)
        if outcome.error is None:
            spool.delivered(sink.name, spooled.run)
            yield outcome
        elif isinstance(outcome.error, SelectionError):
            # Waiting would not change it, and nobody shall replace the models by a retry.
            spool.drop(sink.name, spooled.run)
            yield outcome
        else:
            advice = _keep(spool, sink.name, spooled, outcome)
            yield replace(outcome, line=f"{outcome.line}; {advice}")
        if isinstance(outcome.error, UnreachableError):
            return  # the others would wait for the same unavailable server


def _hand_over_waiting(store: Store, stored: StoredRun, sink: Sink) -> _Outcome:
    try:
        outcome = _hand_over(store, view(store, stored), sink)
    except CompilewatchError as error:  # an unreadable run must not stop the others
        outcome = _Outcome(line=str(error), error=error)
    return replace(outcome, line=f"run {stored.run.id} (spooled): {outcome.line}")


def _keep(spool: Spool, sink: str, spooled: Spooled, outcome: _Outcome) -> str:
    """Keep a run in the spool, unless it was rejected too often; return what to do about it."""
    rejected = not isinstance(outcome.error, UnreachableError)
    attempts = spooled.attempts + rejected
    again = f"compilewatch publish {spooled.run} --to {sink}"
    if attempts >= MAX_REJECTIONS:
        spool.drop(sink, spooled.run)
        return f"rejected {attempts} times and not tried again; when it is fixed: {again}"
    kept = msgspec.structs.replace(spooled, attempts=attempts, why=outcome.line)
    spool.put(sink, kept)
    return f"kept in the spool; the next publish sends it, or: {again}"
