"""The queries of panels as Grafana sends them: of this instant or over time."""

from __future__ import annotations

import re
from typing import Any

Json = dict[str, Any]

SCRAPE = "2m"
"""The shortest step: as often as the Pushgateway is scraped, so that a run shows within minutes."""

PROMETHEUS = {"type": "prometheus", "uid": "${prometheus_datasource}"}
LOKI = {"type": "loki", "uid": "${loki_datasource}"}


def now(expr: str, legend: str = "") -> Json:
    """A Prometheus query for the newest value."""
    target = {"datasource": PROMETHEUS, "expr": expr, "legendFormat": legend}
    return target | {"instant": True, "range": False}


def ever(expr: str, legend: str = "") -> Json:
    """A Prometheus query for the time shown, including the newest value."""
    target = {"datasource": PROMETHEUS, "expr": at_each_step(expr), "legendFormat": legend}
    return target | {"range": True}


SELECTOR = re.compile(r"(\w+\{[^}]*\})( @ end\(\))?(?!\s*[\[\w{])")
LAST_POINT = "vector(time()) == last_over_time(vector(time())[1s:1s] @ end())"


def at_each_step(expr: str) -> str:
    """Of a query over time: have each point show what held at the end of its step.

    Grafana queries at full multiples of the step, seven hours for a number over 30 days, and
    Prometheus looks back from there: what was published since the last full multiple would not be
    shown at all. Each point therefore looks ahead by a step (a negative offset), and the last one,
    whose step has not ended, shows the newest instant within it.

    The expression is always evaluated at one instant. The newest value of each series within the
    step would mix runs: a status that a new run no longer has would count until the step ends.
    """
    newest = r"last_over_time(\1[$__rate_interval]\2 offset -$__interval)"

    def at_end(match: re.Match[str]) -> str:
        return match.expand(newest) if match[2] else match[0]

    def ahead(match: re.Match[str]) -> str:
        return match.expand(newest) if match[2] else f"{match[1]} offset -$__interval"

    latest = f"({SELECTOR.sub(at_end, expr)})[$__interval:1m] @ end() offset -$__interval"
    return f"({SELECTOR.sub(ahead, expr)}) or last_over_time({latest}) and on () ({LAST_POINT})"


def cells(expr: str) -> Json:
    """A Prometheus query for the newest values, as rows of a table."""
    return {**now(expr), "format": "table"}


def logged(expr: str, kind: str = "range") -> Json:
    """A Loki query for lines, or with `instant` for numbers computed from them."""
    return {"datasource": LOKI, "expr": expr, "queryType": kind, "maxLines": 500}
