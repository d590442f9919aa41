"""The run that is being written, and its end: compare it, log the changes, publish it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from compilewatch import extras, plugins
from compilewatch.analysis.summary import status_counts, summarise
from compilewatch.api.publish import Published, load_sinks, publish, report_health
from compilewatch.api.view import view
from compilewatch.config.settings import Settings
from compilewatch.events import Author, Event, RunFinished, SinkFailed
from compilewatch.plan.expectations import Expectations, stale_note
from compilewatch.records import ChangeKind, Result
from compilewatch.records.views import RunView
from compilewatch.sinks import remote_sinks
from compilewatch.store import RunWriter, Store


@dataclass(frozen=True, kw_only=True)
class RunInProgress:
    """A run whose writer is open, with the objects that every step needs."""

    store: Store
    writer: RunWriter
    settings: Settings
    expectations: Expectations

    @property
    def author(self) -> Author:
        """The author of the events of this run."""
        return Author(self.writer.run)

    def log_results(self, results: Iterable[Result]) -> None:
        """Append the events of stored results."""
        author = self.author
        self.writer.events([event for result in results for event in author.checked(result)])

    def finish(self, *, state: str = "finished", wall_seconds: float | None = None) -> RunView:
        """End the run: compare it, log the changes, and publish it.

        A shard is stored but not sent to any service; only the merged run is sent.
        """
        run = self.writer.finish(state, wall_seconds)
        for reference in extras.providers(f"after a run of {run.source}"):
            plugins.load(reference)(self.writer)
        seen = view(
            self.store,
            self.store.open(run.id),
            baseline=self.settings.baseline,
            expectations=self.expectations,
        )
        if seen.baseline is not None:
            seen = replace(seen, run=self.writer.update(baseline=seen.baseline.id))
        author = Author(seen.run)
        events: list[Event] = []
        if seen.baseline is not None:
            events += (author.changed(change, seen.baseline.id) for change in seen.changes)
        for expected, result in self.expectations.stale(seen.results, run.environments):
            events.append(author.stale(stale_note(expected, result), result))
        written = publish(self.store, seen, load_sinks(self.settings.sinks, self.settings))
        self.writer.events([*events, *_failed(author, written), _finished(author, seen)])
        if run.shard is not None:
            return replace(seen, notes=(*seen.notes, *written.notes))
        sent = publish(self.store, seen, load_sinks(remote_sinks(self.settings), self.settings))
        report_health(self.store, self.settings, sent)
        self.writer.events(_failed(author, sent))
        return replace(seen, notes=(*seen.notes, *written.notes, *sent.notes))


def _failed(author: Author, published: Published) -> list[SinkFailed]:
    return [
        SinkFailed(**author.stamp("error"), sink=sink, detail=why)
        for sink, why in published.failures
    ]


def _finished(author: Author, seen: RunView) -> RunFinished:
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
