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


def selectors(query: Query) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(filled(query.expr)), visit)
    return found


def named(node: Any) -> set[str]:
    """Labels that an aggregation or a match names."""
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
        return set(node.modifier.labels)
    return set()


def test_there_is_something_to_check() -> None:
    assert len(PROMQL) > 100


@pytest.mark.parametrize("query", PROMQL, ids=str)
def test_a_query_names_only_metrics_and_labels_that_are_published(query: Query) -> None:
    # Made by label_replace and label_join, and by count_values.
    known = {"hint", "column", "where", "link", "alert", "series", "above", "part", "whole"}
    for selector in selectors(query):
        assert selector.name in LABELS, selector.name
        known |= LABELS[selector.name]
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= LABELS[selector.name], selector.name

    def visit(node: Any) -> None:
        assert named(node) <= known

    promql_parser.walk(promql_parser.parse(filled(query.expr)), visit)


def test_every_metric_is_shown_somewhere() -> None:
    shown = {selector.name for query in queries("prometheus") for selector in selectors(query)}
    assert {one.name for one in all_definitions()} <= shown


@pytest.mark.parametrize("query", PROMQL, ids=str)
def test_every_selector_is_of_compilewatch(query: Query) -> None:
    for selector in selectors(query):
        jobs = [one.value for one in selector.matchers.matchers if one.name == "job"]
        own = ["compilewatch"], ["compilewatch_publisher"], ["compilewatch_papers"]
        of_rules = selector.name == "ALERTS" or ":" in selector.name
        assert jobs in own or of_rules, selector.name


@pytest.mark.parametrize("query", PROMQL, ids=str)
def test_values_of_labels_are_spelt_as_they_are_published(query: Query) -> None:
    known = {
        "status": {status.value for status in Status},
        "kind": {kind.value for kind in ChangeKind},
        "cache": {"cold", "warm"},
    }
    for selector in selectors(query):
        for matcher in selector.matchers.matchers:
            if matcher.name in known:
                assert set(matcher.value.split("|")) <= known[matcher.name]


@pytest.mark.parametrize("query", queries("prometheus"), ids=str)
def test_tables_and_numbers_ask_for_now_and_trends_for_the_time_shown(query: Query) -> None:
    assert query.instant != (query.panel["type"] in ("timeseries", "state-timeline"))


@pytest.mark.parametrize("query", [q for q in queries("prometheus") if not q.instant], ids=str)
def test_a_query_over_time_is_evaluated_at_single_instants_up_to_now(query: Query) -> None:
    """At full multiples of the step, looking back, it would show a run hours after it ended; and
    the newest values within a step would be of several runs."""
    assert query.expr.count("[$__interval:1m] @ end() offset -$__interval") == 1
    ahead, latest = query.expr.split(") or last_over_time((", 1)
    selectors = re.findall(r"\w+\{[^}]*\}( offset -\$__interval)?", ahead)
    assert selectors
    ranges = ahead.count("[$__rate_interval] @ end() offset -$__interval")
    assert selectors.count("") == ranges
    assert "offset" not in latest.partition("[$__interval:1m]")[0].replace(
        "[$__rate_interval] @ end() offset -$__interval", ""
    )
