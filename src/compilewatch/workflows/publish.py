"""Handing stored runs to the sinks, and what waits in the spool."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from compilewatch import plugins
from compilewatch.config.settings import Settings, value_of, where_to_set
from compilewatch.errors import CompilewatchError, SinkError, UnreachableError, UsageError
from compilewatch.records.clock import now
from compilewatch.records.views import RunView
from compilewatch.sinks import ADDRESSES, SINKS, Sink, remote_sinks
from compilewatch.sinks.pushgateway import Health, push_health
from compilewatch.store import Spool, Spooled, Store, StoredRun
from compilewatch.workflows.view import view

MAX_REFUSALS = 5
"""How often a run that a sink refuses is offered again before the spool lets go of it."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the sinks said, a line each, and (sink, why) of those that failed."""

    said: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{sink} was not {'published to' if sink in ADDRESSES else 'written'}: {why}"
            for sink, why in self.failures
        )


def load_sinks(names: Iterable[str], settings: Settings) -> tuple[Sink, ...]:
    """Import sinks by name. Raises UsageError for one that is unknown or has no address."""
    sinks: list[Sink] = []
    for name in names:
        made = plugins.find("sink", SINKS, name)
        if (setting := ADDRESSES.get(name)) and not value_of(settings, setting):
            raise UsageError(f"{name} has no address: set {where_to_set(setting)}")
        sinks.append(made(settings))
    return tuple(sinks)


def publish(store: Store, seen: RunView, sinks: Sequence[Sink]) -> Published:
    """Hand a run to each sink. One that fails does not keep the others from being tried.

    Remote sinks get what waits in the spool as well, oldest run first, so that the newest is what
    a Pushgateway holds in the end; what they do not take waits for the next time.
    """
    said: list[str] = []
    failures: list[tuple[str, str]] = []
    for sink in sinks:
        if sink.name in ADDRESSES:
            outcomes = _hand_over_all(store, seen, sink)
        else:
            outcomes = iter([_hand_over(store, seen, sink)])
        for outcome in outcomes:
            if outcome.error is None:
                said.append(outcome.line)
            else:
                failures.append((sink.name, outcome.line))
    return Published(said=tuple(said), failures=tuple(failures))


def report_health(store: Store, settings: Settings, published: Published) -> None:
    """Tell the Pushgateway, if there is one, how publishing went; in vain where it is down."""
    if not settings.pushgateway.url:
        return
    failed = Counter(sink for sink, _ in published.failures)
    spool = store.spool
    with contextlib.suppress(SinkError):
        push_health(
            settings,
            {
                sink: Health(
                    spooled=len(spool.waiting(sink)),
                    failed=failed[sink],
                    last=last.at if (last := spool.last(sink)) else None,
                )
                for sink in remote_sinks(settings)
            },
        )


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What a sink said of a run, or why it did not take it."""

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
    """Offer a remote sink the run and those that wait for it, in the order they began."""
    spool = store.spool
    waiting = {spooled.run: spooled for spooled in spool.waiting(sink.name)}
    # It waits until it is taken: a process that is killed in between has lost nothing.
    mine = waiting.setdefault(seen.run.id, Spooled(run=seen.run.id, since=now()))
    spool.put(sink.name, mine)
    offered: list[StoredRun] = []
    for run_id in waiting:
        try:
            offered.append(store.open(run_id))
        except CompilewatchError as error:
            spool.drop(sink.name, run_id)
            yield _Outcome(line=f"run {run_id}, which waited, is gone: {error}", error=error)
    for stored in sorted(offered, key=lambda stored: stored.run.started_at):
        spooled = waiting[stored.run.id]
        if spooled is mine:
            outcome = _hand_over(store, seen, sink)
        else:
            outcome = _hand_over_waiting(store, stored, sink)
        if outcome.error is None:
            spool.delivered(sink.name, spooled.run)
            yield outcome
        else:
            advice = _keep(spool, sink.name, spooled, outcome)
            yield replace(outcome, line=f"{outcome.line}; {advice}")
        if isinstance(outcome.error, UnreachableError):
            return  # the others would wait for the same dead server


def _hand_over_waiting(store: Store, stored: StoredRun, sink: Sink) -> _Outcome:
    try:
        outcome = _hand_over(store, view(store, stored), sink)
    except CompilewatchError as error:  # it cannot be read: no reason to stop for the others
        outcome = _Outcome(line=str(error), error=error)
    return replace(outcome, line=f"run {stored.run.id}, which waited: {outcome.line}")


def _keep(spool: Spool, sink: str, spooled: Spooled, outcome: _Outcome) -> str:
    """Have a run wait on, unless it was refused too often; what to do about it."""
    refused = not isinstance(outcome.error, UnreachableError)
    attempts = spooled.attempts + refused
    again = f"compilewatch publish {spooled.run} --to {sink}"
    if attempts >= MAX_REFUSALS:
        spool.drop(sink, spooled.run)
        return f"refused {attempts} times and not tried again; when it is mended: {again}"
    kept = msgspec.structs.replace(spooled, attempts=attempts, why=outcome.line)
    spool.put(sink, kept)
    return f"kept, and sent with the next publish, or: {again}"
