"""What the services hold after a run, and on which ports they listen."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path

import requests
from prometheus_client.parser import text_string_to_metric_families

from scripts.verify_stack.report import CheckError
from scripts.verify_stack.services import READY, Stack

VERSIONS = {
    "pushgateway": "/api/v1/status",
    "alertmanager": "/api/v2/status",
    "prometheus": "/api/v1/status/buildinfo",
    "loki": "/loki/api/v1/status/buildinfo",
    "alloy": "/metrics",
    "grafana": "/api/health",
}
"""The address at which each service returns its `version`."""


def version(stack: Stack, service: str) -> str:
    """Raises CheckError where the service is not healthy."""
    stack.get(service, READY.get(service, "/-/ready"))
    found = re.search(r'\bversion"?[:=]\s*"v?([^"]+)"', stack.get(service, VERSIONS[service]).text)
    return found[1] if found else "of unknown version"


def ports_are_the_configured_ones(stack: Stack) -> str:
    """Every port that a service listens on is configured, and on the loopback address only."""
    found = set(stack.listening())
    for service, address, port in sorted(found):
        if not address.startswith("127.") and address != "::1":
            raise CheckError(f"{service} listens on {address}:{port}, open to others")
        if port not in stack.ports.values():
            raise CheckError(f"{service} listens on port {port}, which nobody has configured")
    return f"{len(found)} ports of {len({service for service, _, _ in found})} services"


def rules_are_loaded(stack: Stack) -> str:
    groups = stack.get("prometheus", "/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    ill = [rule["name"] for rule in rules if rule["health"] == "err"]
    if ill or not rules:
        raise CheckError(f"rules that cannot be evaluated: {', '.join(ill) or 'there are none'}")
    return f"{len(rules)} rules"


def alerts_reach_alertmanager(stack: Stack) -> str:
    known = stack.get("prometheus", "/api/v1/alertmanagers").json()["data"]["activeAlertmanagers"]
    if not any(stack.url("alertmanager").removeprefix("http://") in one["url"] for one in known):
        raise CheckError("Prometheus has found no Alertmanager")
    return ""


Series = tuple[str, tuple[tuple[str, str], ...]]


def metrics_are_in_prometheus(stack: Stack, run: Path) -> str:
    """Every sample of the run's metrics.prom, with its value."""
    expected: dict[Series, float] = {}
    for family in text_string_to_metric_families((run / "metrics.prom").read_text()):
        for sample in family.samples:
            expected[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    query = {"query": '{job="compilewatch"}'}
    exposed: dict[Series, float] = {}
    for one in stack.get("prometheus", "/api/v1/query", **query).json()["data"]["result"]:
        labels = {k: v for k, v in one["metric"].items() if k not in ("__name__", "job")}
        exposed[one["metric"]["__name__"], tuple(sorted(labels.items()))] = float(one["value"][1])
    # A label without a value is none to Prometheus.
    expected = {
        (name, tuple(pair for pair in labels if pair[1])): value
        for (name, labels), value in expected.items()
    }
    wrong = [series for series, value in expected.items() if exposed.get(series) != value]
    if wrong or not expected:
        example = f"{wrong[0][0]}{dict(wrong[0][1])}" if wrong else "metrics.prom is empty"
        raise CheckError(f"{len(wrong)} of {len(expected)} series are missing or other: {example}")
    return f"{len(expected)} series of {len({name for name, _ in expected})} metrics"


def papers_are_in_prometheus(stack: Stack) -> str:
    query = {"query": 'compilewatch_papers{job="compilewatch_papers"}'}
    if not stack.get("prometheus", "/api/v1/query", **query).json()["data"]["result"]:
        raise CheckError("Prometheus has no metrics of papers")
    return ""


def lines(stack: Stack) -> Counter[str]:
    """Every line of every run, from the files."""
    paths = stack.outputs.glob("[0-9]*/logs/*.jsonl")
    return Counter(line for path in paths for line in path.read_text().splitlines())


def lines_are_in_loki_once(stack: Stack) -> str:
    expected = lines(stack)
    now = time.time_ns()
    answer = stack.get(
        "loki",
        "/loki/api/v1/query_range",
        query='{service_name="compilewatch"}',
        limit="5000",
        start=str(now - 6 * 3600 * 10**9),
        end=str(now + 60 * 10**9),
    ).json()
    found = Counter(line for one in answer["data"]["result"] for _, line in one["values"])
    missing, more = expected - found, found - expected
    if missing or more or not expected:
        example = next(iter([*more, *missing]), "")[:120]
        raise CheckError(
            f"of {expected.total()} lines {missing.total()} are missing and {more.total()} too "
            f"many: {example}"
        )
    return f"{expected.total()} lines"


def sent_by_alloy(stack: Stack) -> int:
    """How many lines Alloy has sent since it started."""
    text = stack.get("alloy", "/metrics").text
    counts = re.findall(r"^loki_write_sent_entries_total\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, counts)))


def alloy_has_sent(stack: Stack, count: int) -> str:
    if (sent := sent_by_alloy(stack)) < count:
        raise CheckError(f"Alloy has sent {sent} of {count} lines")
    return ""


def loki_writes_to_its_folder(stack: Stack) -> None:
    """Has Loki write what it holds in memory."""
    requests.post(stack.url("loki") + "/flush", timeout=60).raise_for_status()


def statuses_of(run: Path) -> Counter[str]:
    """How many results of the run there are of each status."""
    results = (run / "results.jsonl").read_text().splitlines()
    return Counter(str(json.loads(line)["status"]) for line in results)
