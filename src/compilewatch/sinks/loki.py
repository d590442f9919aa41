"""The sink `loki`: the log of a stored run, sent to Loki's push API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compilewatch.config.settings import Settings
from compilewatch.errors import SinkError, UnreachableError
from compilewatch.records.views import RunView
from compilewatch.retry import TransientError
from compilewatch.sinks import RunFiles
from compilewatch.sinks.loki_client import (
    Emitter,
    LineRecord,
    RefusedError,
    batches,
    credentials,
    log_record,
)


class LokiSink:
    """Sends every line of `logs/<run>.jsonl`; sent again, Loki keeps each of them once.

    Lines that Loki refuses do not keep the others from being sent. Raises SinkError where one
    was refused; UnreachableError where a batch was not taken for `publish.retry_seconds`.
    """

    name = "loki"

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError where `loki.url` is no address."""
        self._retry_seconds = settings.publish.retry_seconds
        limit = settings.publish.timeout_seconds
        auth = credentials(settings.loki.username, settings.loki.password)
        self._emitter = Emitter(settings.loki.url, auth=auth, limits=(min(2.0, limit), limit))

    def publish(self, view: RunView, files: RunFiles) -> str:
        path = files.path(f"logs/{view.run.id}.jsonl")
        sent, refused, why = 0, 0, ""
        entries = (self._emitter.entry(r, r.getMessage()) for r in _records(path))
        try:
            for batch in batches(entries):
                try:
                    self._emitter.deliver(batch, self._retry_seconds)
                    sent += len(batch)
                except RefusedError as error:
                    if error.always:
                        raise SinkError(str(error)) from None
                    refused += len(batch)
                    why = why or str(error)
        except TransientError as error:
            raise UnreachableError(f"{error}: {sent} lines were sent") from None
        finally:
            self._emitter.close()
        if why:
            raise SinkError(f"{why} ({sent} lines were sent, of {refused} some or all refused)")
        return f"{self._emitter.where}: {sent} lines"


def _records(path: Path) -> Iterator[LineRecord]:
    """The events of a log. A line that a killed run left torn is none."""
    try:
        with path.open("rb") as file:
            for line in file:
                if (record := log_record(line.rstrip(b"\n"))) is not None:
                    yield record
    except OSError as error:
        raise SinkError(f"{path} cannot be read: {error.strerror}") from None
