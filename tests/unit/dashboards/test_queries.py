"""Every PromQL query parses, and names only metrics and labels that are published."""

import re
from typing import Any

import promql_parser

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


def test_a_query_names_only_what_is_published_as_it_is_spelt() -> None:
    # Made by label_replace and label_join, and by count_values.
    made = {
        "hint",
        "column",
        "where",
        "link",
        "alert",
        "series",
        "forecast",
        "above",
        "part",
        "whole",
    }
    values = {
        "status": {status.value for status in Status},
        "kind": {kind.value for kind in ChangeKind},
        "cache": {"cold", "warm"},
        "job": {"compilewatch", "compilewatch_publisher", "compilewatch_papers"},
    }
    for query in PROMQL:
        known = set(made)
        for selector in selectors(query):
            assert selector.name in LABELS, query
            known |= LABELS[selector.name]
            matched = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
            assert set(matched) <= LABELS[selector.name], query
            assert "job" in matched or selector.name == "ALERTS" or ":" in selector.name, query
            for name in matched.keys() & values:
                assert set(matched[name].split("|")) <= values[name], query
        for node in nodes(query):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
                assert set(node.modifier.labels) <= known, query


def test_tables_and_numbers_ask_for_now_and_trends_for_the_time_shown() -> None:
    for query in queries("prometheus"):
        assert query.instant != (query.panel["type"] in ("timeseries", "state-timeline")), query
        if query.instant:
            continue
        # At full multiples of the step, looking back, it would show a run hours after it ended;
        # and the newest values within a step would be of several runs.
        newest = "[$__rate_interval] @ end() offset -$__interval"
        ahead, latest = query.expr.split(") or last_over_time((", 1)
        latest, _, end = latest.partition("[$__interval:1m]")
        assert end.startswith(" @ end() offset -$__interval"), query
        offsets = re.findall(r"\w+\{[^}]*\}( offset -\$__interval)?", ahead)
        assert offsets, query
        assert offsets.count("") == ahead.count(newest), query
        assert "offset" not in latest.replace(newest, ""), query
