"""Every PromQL query parses, and names only metrics and labels that are published."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest

from compilewatch.records import ChangeKind, Status
from compilewatch.sinks.prometheus import all_definitions
from tests.reading import Query, around, filled, queries

LABELS: dict[str, set[str]] = {
    **{one.name: {*one.labels, "job"} for one in all_definitions()},
    # The Pushgateway's own, of each group.
    "push_time_seconds": {"job", "source", "target"},
    "push_failure_time_seconds": {"job", "source", "target"},
    # Prometheus' own; severity comes from stack/prometheus/rules.
    "ALERTS": {"alertname", "alertstate", "severity", "source", "target"},
    "compilewatch:last_success_timestamp_seconds": {"source", "target"},
}
PROMQL = [*queries("prometheus"), *around()]


def nodes(query: Query) -> list[Any]:
    visited: list[Any] = []
    promql_parser.walk(promql_parser.parse(filled(query.expr)), visited.append)
    return visited


def selectors(query: Query) -> list[Any]:
    return [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]


def test_every_metric_is_shown_somewhere() -> None:
    shown = {selector.name for query in queries("prometheus") for selector in selectors(query)}
    assert {one.name for one in all_definitions()} <= shown


@pytest.mark.parametrize("query", PROMQL, ids=str)
def test_a_query_names_only_what_is_published_as_it_is_spelt(query: Query) -> None:
    # Made by label_replace and label_join, and by count_values.
    known = {"hint", "column", "where", "link", "alert", "series", "above", "part", "whole"}
    values = {
        "status": {status.value for status in Status},
        "kind": {kind.value for kind in ChangeKind},
        "cache": {"cold", "warm"},
        "job": {"compilewatch", "compilewatch_publisher", "compilewatch_papers"},
    }
    for selector in selectors(query):
        assert selector.name in LABELS, selector.name
        known |= LABELS[selector.name]
        matched = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert set(matched) <= LABELS[selector.name], selector.name
        of_rules = selector.name == "ALERTS" or ":" in selector.name
        assert "job" in matched or of_rules, selector.name
        for name in matched.keys() & values:
            assert set(matched[name].split("|")) <= values[name]
    for node in nodes(query):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            assert set(node.modifier.labels) <= known


@pytest.mark.parametrize("query", queries("prometheus"), ids=str)
def test_tables_and_numbers_ask_for_now_and_trends_for_the_time_shown(query: Query) -> None:
    assert query.instant != (query.panel["type"] in ("timeseries", "state-timeline"))
    if query.instant:
        return
    # At full multiples of the step, looking back, it would show a run hours after it ended; and
    # the newest values within a step would be of several runs.
    assert query.expr.count("[$__interval:1m] @ end() offset -$__interval") == 1
    ahead, latest = query.expr.split(") or last_over_time((", 1)
    offsets = re.findall(r"\w+\{[^}]*\}( offset -\$__interval)?", ahead)
    assert offsets
    ranges = ahead.count("[$__rate_interval] @ end() offset -$__interval")
    assert offsets.count("") == ranges
    assert "offset" not in latest.partition("[$__interval:1m]")[0].replace(
        "[$__rate_interval] @ end() offset -$__interval", ""
    )
