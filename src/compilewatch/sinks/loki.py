"""The sink `loki`: the log of a stored run, sent to Loki's push API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from compilewatch.config.settings import Settings
from compilewatch.errors import SinkError, UnreachableError
from compilewatch.records.views import RunView
from compilewatch.retry import TransientError
from compilewatch.sinks import RunFiles
from compilewatch.sinks.loki_client import (
    Emitter,
    LineRecord,
    LokiRejectedError,
    batches,
    credentials,
    log_record,
)


class LokiSink:
    """Sends every line of `logs/<run>.jsonl`; Loki keeps a line that is sent again only once.

    Lines that Loki rejects do not prevent others from being sent. Raises SinkError if a line was
    rejected, and UnreachableError if Loki accepted no batch for `publish.retry_seconds`.
    """

    name = "loki"

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError if `loki.url` is not a valid address."""
        self._retry_seconds = settings.publish.retry_seconds
        limit = settings.publish.timeout_seconds
        auth = credentials(settings.loki.username, settings.loki.password)
        self._emitter = Emitter(settings.loki.url, auth=auth, limits=(min(2.0, limit), limit))

    def publish(self, view: RunView, files: RunFiles) -> str:
        return self.send(_records(files.path(f"logs/{view.run.id}.jsonl")))

    def send(self, records: Iterable[LineRecord]) -> str:
        """Send records and return one line about them; see the class for what it raises."""
        sent, rejected, why = 0, 0, ""
        entries = (self._emitter.entry(r, r.getMessage()) for r in records)
        try:
            for batch in batches(entries):
                try:
                    self._emitter.deliver(batch, self._retry_seconds)
                    sent += len(batch)
                except LokiRejectedError as error:
                    if error.always:
                        raise SinkError(str(error)) from None
                    rejected += len(batch)
                    why = why or str(error)
        except TransientError as error:
            raise UnreachableError(f"{error}: {sent} lines were sent") from None
        finally:
            self._emitter.close()
        if why:
            raise SinkError(f"{why} ({sent} lines were sent, of {rejected} some or all rejected)")
        return f"{self._emitter.where}: {sent} lines"


def send_lines(settings: Settings, lines: Iterable[bytes]) -> str:
    """Send events that are not in the log of a run."""
    return LokiSink(settings).send(filter(None, map(log_record, lines)))


def _records(path: Path) -> Iterator[LineRecord]:
    """Yield the events of a log. An incomplete last line of a killed run is skipped."""
    try:
        with path.open("rb") as file:
            for line in file:
                if (record := log_record(line.rstrip(b"\n"))) is not None:
                    yield record
    except OSError as error:
        raise SinkError(f"{path} cannot be read: {error.strerror}") from None
