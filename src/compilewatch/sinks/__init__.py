"""Stored runs to the outside: one Protocol, one line each in `SINKS`; loaded lazily."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from compilewatch.analysis.view import RunView

SINKS: dict[str, str] = {
    "html": "compilewatch.sinks.html:HtmlSink",
    "junit": "compilewatch.sinks.junit:JunitSink",
    "metrics_file": "compilewatch.sinks.prometheus:MetricsFileSink",
}

Write = Callable[[str, bytes], None]
"""Writes a file of the run, by a path relative to its folder, atomically."""


class Sink(Protocol):
    """Publishes a stored run; publishing twice changes nothing. Raises SinkError."""

    name: str

    def publish(self, view: RunView, write: Write) -> str:
        """Publish, and return one line that says where to look."""
        ...
