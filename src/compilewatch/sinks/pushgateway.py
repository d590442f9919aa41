"""The sink `pushgateway`: replaces groups of metrics, so that outdated series disappear.

https://github.com/prometheus/pushgateway#put-method: PUT replaces all metrics of the grouping key.
The id of a run is never part of the key, because every run would then stay there for ever.
"""

import base64
import http.client
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, push_to_gateway
from prometheus_client.exposition import basic_auth_handler
from prometheus_client.parser import text_string_to_metric_families

from compilewatch.config import Settings
from compilewatch.errors import SelectionError, SinkError, UnreachableError
from compilewatch.records import RunView, selection_label
from compilewatch.retry import retrying
from compilewatch.sinks import remote_sinks
from compilewatch.sinks.prometheus import RUN, TARGET, Sample, all_definitions, groups, registry
from compilewatch.store import RunFolder, Spool

T = TypeVar("T")
JOB = "compilewatch"
PUBLISHER_JOB = "compilewatch_publisher"
SELECTION_METRIC = "compilewatch_planned_requests"
"""The metric of each source's group that says which models were published last."""

MESSAGE_CHARACTERS = 300

LINE_BYTES = 2**16


class PushgatewaySink:
    """Replaces the groups of the run's source and targets."""

    name = "pushgateway"

    def __init__(self, settings: Settings) -> None:
        self._gateway = Gateway(settings)
        self._replaces = settings.pushgateway.replace

    def publish(self, view: RunView, files: RunFolder) -> str:
        del files
        if not self._replaces:
            self._refuse_another_selection(view)
        by_group, definitions = groups(view), all_definitions(view.parts)
        for key, samples in by_group.items():
            names = (TARGET if len(key) == 2 else RUN).labels
            self._gateway.replace(
                JOB, dict(zip(names, key, strict=True)), registry(samples, definitions)
            )
        series = sum(map(len, by_group.values()))
        return (
            f"pushgateway: {series:,} series in {len(by_group)} groups at {self._gateway.address}"
        )

    def _refuse_another_selection(self, view: RunView) -> None:
        """Raise SelectionError if the gateway holds other models of the same source.

        It holds what everybody sees, and the run would replace it: a try with one model would be
        shown as the state of all, and would end their alerts.
        """
        mine = selection_label(view.run.settings)
        for labels in self._gateway.labels_of(SELECTION_METRIC):
            published = labels.get("selection", "")
            same_source = (labels.get("job"), labels.get("source")) == (JOB, view.run.source)
            if same_source and published != mine:
                raise SelectionError(
                    f"{self._gateway.address} holds the models of the selection {published} of "
                    f"{view.run.source}, and run {view.run.id} has {mine}: nothing was replaced; "
                    f"if it should be: compilewatch publish {view.run.id} --to pushgateway "
                    "--replace"
                )


def push_health(settings: Settings, spool: Spool, failed: Iterable[str]) -> None:
    """Publish the state of publication by remote sink, without retries. Raises SinkError.

    `failed` has the name of a sink for each run that it did not accept just now.
    """
    failures = Counter(failed)
    samples: list[Sample] = []
    for sink in remote_sinks(settings):
        waiting = len(spool.waiting(sink))
        samples.append(("compilewatch_spooled_publications", (sink,), waiting))
        samples.append(("compilewatch_failed_publications", (sink,), failures[sink]))
        if (last := spool.last(sink)) is not None:
            at = datetime.fromisoformat(last.at).timestamp()
            samples.append(("compilewatch_last_publication_timestamp_seconds", (sink,), at))
    Gateway(settings, retry=False).replace(PUBLISHER_JOB, {}, registry(samples))


class Gateway:
    """The client: replaces groups, retries transient errors, and explains the others.

    Each request ends after `publish.timeout_seconds`.
    """

    def __init__(self, settings: Settings, *, retry: bool = True) -> None:
        self.address = settings.pushgateway.url.rstrip("/")
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SinkError(
                f"pushgateway_url {parts.hostname or self.address!r} is not an address: write "
                "http://host:9091"
            )
        if parts.username or parts.password:
            raise SinkError(
                "pushgateway_url contains a password: use pushgateway.username and the variable "
                "COMPILEWATCH_PUSHGATEWAY_PASSWORD"
            )
        self._timeout = settings.publish.timeout_seconds
        # Without a user name, no header is added.
        self._handler = partial(
            basic_auth_handler,
            username=settings.pushgateway.username or None,
            password=settings.pushgateway.password,
        )
        gateway = settings.pushgateway
        token = base64.b64encode(f"{gateway.username}:{gateway.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"} if gateway.username else {}
        seconds = settings.publish.retry_seconds if retry else 0.0
        self._retry = retrying(UnreachableError, seconds=seconds, first_wait_seconds=0.2)

    def replace(self, job: str, key: Mapping[str, str], metrics: CollectorRegistry) -> None:
        """PUT one group. Raises UnreachableError after the last retry, or SinkError."""
        put = partial(
            push_to_gateway,
            self.address,
            job=job,
            registry=metrics,
            grouping_key=dict(key),
            timeout=self._timeout,
            handler=self._handler,
        )
        self._retry(self._ask, put)

    def labels_of(self, metric: str) -> list[dict[str, str]]:
        """Return the labels of each series of a metric. Raises as `replace`."""

        def read() -> list[str]:
            series: list[str] = []
            request = urllib.request.Request(f"{self.address}/metrics", headers=self._headers)
            start = f"{metric}{{".encode()
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                # Line by line: the metrics of a thousand models are tens of megabytes.
                while line := response.readline(LINE_BYTES):
                    if line.startswith(start):
                        series.append(line.decode(errors="replace"))
            return series

        lines: list[str] = self._retry(self._ask, read)
        parsed = text_string_to_metric_families("".join(lines))
        return [sample.labels for family in parsed for sample in family.samples]

    def _ask(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except urllib.error.HTTPError as error:
            raise self._error_of(error) from None
        except (OSError, http.client.HTTPException) as error:
            why = " ".join(str(getattr(error, "reason", None) or error).split())
            raise UnreachableError(
                f"no Pushgateway responds at {self.address} ({why[:MESSAGE_CHARACTERS]}): start "
                "it, or correct pushgateway.url"
            ) from None

    def _error_of(self, error: urllib.error.HTTPError) -> SinkError:
        with error:
            response = " ".join(error.read(MESSAGE_CHARACTERS).decode(errors="replace").split())
        line = f"the Pushgateway at {self.address} responds {error.code} {error.reason}"
        line += f": {response}" if response else ""
        if error.code in (401, 403):
            return SinkError(f"{line}; set pushgateway.username and pushgateway.password")
        if error.code == 429 or error.code >= 500:
            return UnreachableError(line)
        return SinkError(line)
