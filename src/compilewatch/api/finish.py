"""The run that is being written, and its end: compare it, log the changes, publish it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from compilewatch import extras, plugins
from compilewatch.analysis.summary import status_counts, summarise
from compilewatch.api.publish import Published, load_sinks, publish, report_health
from compilewatch.api.view import view
from compilewatch.config import Settings
from compilewatch.events import Event, EventFactory, RunFinished, SinkFailed
from compilewatch.plan import Expectations, stale_note
from compilewatch.records import ChangeKind, Result, RunView, now
from compilewatch.sinks import remote_sinks
from compilewatch.store import RunWriter, Spooled, Store


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

    def finish(self, *, state: str = "finished", wall_seconds: float | None = None) -> RunView:
        """End the run: compare it, log the changes, and publish it.

        What is stored says so only when the files of the run are written and its publications
        wait in the spool: `--resume` does all of it again for a run that is killed before. A shard
        is stored but not sent to any service; only the merged run is sent.
        """
        for reference in extras.providers(f"after a run of {self.writer.run.source}"):
            plugins.load(reference)(self.writer)
        stored = self.store.open(self.writer.run.id)
        stored.run = self.writer.ended(state, wall_seconds)
        seen = view(
            self.store,
            stored,
            baseline=self.settings.baseline,
            expectations=self.expectations,
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
