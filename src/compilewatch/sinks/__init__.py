"""Stored runs to the outside: one Protocol, one line each in `SINKS`; loaded lazily."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from compilewatch.config.settings import Settings, value_of
from compilewatch.records.views import RunView

SINKS: dict[str, str] = {
    "html": "compilewatch.sinks.html:HtmlSink",
    "junit": "compilewatch.sinks.junit:JunitSink",
    "metrics_file": "compilewatch.sinks.prometheus:MetricsFileSink",
    "pushgateway": "compilewatch.sinks.pushgateway:PushgatewaySink",
    "loki": "compilewatch.sinks.loki:LokiSink",
    "s3": "compilewatch.sinks.s3:S3Sink",
}

ADDRESSES: dict[str, str] = {
    "pushgateway": "pushgateway.url",
    "loki": "loki.url",
    "s3": "s3.url",
}
"""The sinks that send a run elsewhere, and the setting that says where; unset means nowhere."""


class RunFiles(Protocol):
    """The folder of the run that is published."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, by a path relative to the folder, atomically. Raises StoreError."""
        ...

    def names(self) -> tuple[str, ...]:
        """The files that are there, as relative paths with slashes, in order."""
        ...

    def path(self, name: str) -> Path:
        """Where a file lies, to be read."""
        ...


class Sink(Protocol):
    """Publishes a stored run; publishing twice changes nothing.

    Raises SinkError for a run that it refuses; UnreachableError where the same may work later.
    """

    name: str

    def __init__(self, settings: Settings) -> None: ...

    def publish(self, view: RunView, files: RunFiles) -> str:
        """Publish, and return one line that says where to look."""
        ...


def remote_sinks(settings: Settings) -> tuple[str, ...]:
    """The sinks that have an address."""
    return tuple(name for name, setting in ADDRESSES.items() if value_of(settings, setting))
