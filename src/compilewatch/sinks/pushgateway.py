"""A run to a Pushgateway: each group replaced whole, so that what is gone disappears.

https://github.com/prometheus/pushgateway#put-method: PUT replaces all metrics of the grouping key.
A run's id is never in the key, or every run would leave a copy behind for ever.
"""

from __future__ import annotations

import http.client
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, push_to_gateway
from prometheus_client.exposition import basic_auth_handler

from compilewatch.config.settings import Settings
from compilewatch.errors import SinkError, UnreachableError
from compilewatch.records.views import RunView
from compilewatch.retry import retrying
from compilewatch.sinks import RunFiles
from compilewatch.sinks.metric_definitions import GROUP_LABELS, Group
from compilewatch.sinks.prometheus import Sample, groups, registry

JOB = "compilewatch"
PUBLISHER_JOB = "compilewatch_publisher"

REFUSAL_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class Health:
    """How publishing to a sink stands; `last` is RFC 3339, None where it never took a run."""

    spooled: int
    failed: int
    last: str | None


class PushgatewaySink:
    """Replaces the groups of the run's source and targets."""

    name = "pushgateway"

    def __init__(self, settings: Settings) -> None:
        self._gateway = _Gateway(settings)

    def publish(self, view: RunView, files: RunFiles) -> str:
        del files
        found = groups(view)
        for key, samples in found.items():
            names = GROUP_LABELS[Group.TARGET if len(key) == 2 else Group.RUN]
            self._gateway.replace(JOB, dict(zip(names, key, strict=True)), registry(samples))
        series = sum(map(len, found.values()))
        return f"pushgateway: {series:,} series in {len(found)} groups at {self._gateway.address}"


def push_health(settings: Settings, health: Mapping[str, Health]) -> None:
    """Say how publishing itself goes, by sink. Raises SinkError; is not tried again."""
    samples: list[Sample] = []
    for sink, one in health.items():
        samples.append(("compilewatch_spooled_publications", (sink,), one.spooled))
        samples.append(("compilewatch_failed_publications", (sink,), one.failed))
        if one.last is not None:
            at = datetime.fromisoformat(one.last).timestamp()
            samples.append(("compilewatch_last_publication_timestamp_seconds", (sink,), at))
    _Gateway(settings, retry=False).replace(PUBLISHER_JOB, {}, registry(samples))


class _Gateway:
    """The client: replaces groups, tries again what may pass, and words what does not."""

    def __init__(self, settings: Settings, *, retry: bool = True) -> None:
        self.address = settings.pushgateway.url
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SinkError(
                f"pushgateway_url {parts.hostname or self.address!r} is no address: write "
                "http://host:9091"
            )
        if parts.username or parts.password:
            raise SinkError(
                "pushgateway_url holds a password: use pushgateway.username and the variable "
                "COMPILEWATCH_PUSHGATEWAY_PASSWORD"
            )
        self._timeout = settings.publish.timeout_seconds
        # Without a user it adds no header.
        self._handler = partial(
            basic_auth_handler,
            username=settings.pushgateway.username or None,
            password=settings.pushgateway.password,
        )
        seconds = settings.publish.retry_seconds if retry else 0.0
        self._retry = retrying(UnreachableError, seconds=seconds, first_wait_seconds=0.2)

    def replace(self, job: str, key: Mapping[str, str], metrics: CollectorRegistry) -> None:
        """PUT one group. Raises UnreachableError, when time is up, or SinkError."""
        self._retry(self._put, job, key, metrics)

    def _put(self, job: str, key: Mapping[str, str], metrics: CollectorRegistry) -> None:
        try:
            push_to_gateway(
                self.address,
                job=job,
                registry=metrics,
                grouping_key=dict(key),
                timeout=self._timeout,
                handler=self._handler,
            )
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise UnreachableError(
                f"no Pushgateway answers at {self.address} ({why}): start it, or correct "
                "pushgateway_url"
            ) from None

    def _refusal(self, error: urllib.error.HTTPError) -> SinkError:
        with error:
            said = " ".join(error.read(REFUSAL_CHARACTERS).decode(errors="replace").split())
        line = f"the Pushgateway at {self.address} answers {error.code} {error.reason}"
        line += f": {said}" if said else ""
        if error.code in (401, 403):
            return SinkError(f"{line}; set pushgateway.username and pushgateway.password")
        if error.code == 429 or error.code >= 500:
            return UnreachableError(line)
        return SinkError(line)
