"""Sinks publish stored runs: one Protocol, one row for each in `SINKS`; loaded lazily."""

from typing import Protocol

from compilewatch.config import Settings, value_of
from compilewatch.records import RunView
from compilewatch.store import RunFolder

SINKS: dict[str, str] = {
    "html": "compilewatch.sinks.run_files:HtmlSink",
    "junit": "compilewatch.sinks.run_files:JunitSink",
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
"""The remote sinks and the settings with their addresses; a sink without an address is off."""


class Sink(Protocol):
    """Publishes a stored run. Publishing again changes nothing.

    Raises SinkError if it rejects the run, and UnreachableError if a later attempt may succeed.
    """

    name: str

    def __init__(self, settings: Settings) -> None: ...

    def publish(self, view: RunView, files: RunFolder) -> str:
        """Publish the run, with the files of its folder; return one line that says where it is."""
        ...


def remote_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the names of the sinks that have an address."""
    return tuple(name for name, setting in ADDRESSES.items() if value_of(settings, setting))
