"""The rules of github.com/grafana/dashboard-linter (lint/rules.go), which is a Go program.

Each function is one rule under its own name and yields what breaks it; what we break on purpose
stands in `EXCEPTIONS` with the reason, and an exception that nothing needs any more fails too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import promql_parser
import pytest

from dashboards.queries import MILLIONS, MINUTES, SECONDS
from tests.reading import DASHBOARDS, PUBLIC, Json, bare, filled, panels, variables

UNITS = {
    *("none", "short", "percentunit", "bytes", "s", "dateTimeAsIso", "dtdurations", "currencyUSD"),
    MILLIONS,
    SECONDS,
    MINUTES,
}
"""Those of Grafana's units (valueFormats/categories.ts) that are used here."""

JOB = "one job by contract: metrics are pushed under job=compilewatch, which every selector names"
NO_INSTANCE = "results of batch runs through a Pushgateway belong to no instance"
SHARED = "externally shared dashboards take no variables"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("template-job-rule", "*"): JOB,
    ("target-job-rule", "*"): JOB,
    ("template-instance-rule", "*"): NO_INSTANCE,
    ("target-instance-rule", "*"): NO_INSTANCE,
    ("target-counter-agg-rule", "*"): "compile_breaks_total starts again with every run: it is "
    "the count of the latest run, and rate() means nothing on it",
    ("target-logql-auto-rule", "*"): "Grafana 9 does not know $__auto; tables ask once, for all of "
    "the time shown",
    ("template-datasource-rule", PUBLIC): SHARED,
    ("panel-datasource-rule", PUBLIC): SHARED,
}


def template_datasource_rule(made: Json) -> Iterator[str]:
    sources = [one for one in variables(made).values() if one["type"] == "datasource"]
    if not sources:
        yield "has no templated data source"
    for one in sources:
        kind = one["query"]
        if one["name"] != f"{kind}_datasource" or one["label"] != f"{kind.title()} data source":
            yield f"data source variable {one['name']} is misnamed"


def template_job_rule(made: Json) -> Iterator[str]:
    if "job" not in variables(made):
        yield "has no variable job"


def template_instance_rule(made: Json) -> Iterator[str]:
    if "instance" not in variables(made):
        yield "has no variable instance"


def template_label_promql_rule(made: Json) -> Iterator[str]:
    for one in variables(made).values():
        if one["type"] == "query":
            try:
                promql_parser.parse(filled(bare(one["query"])))
            except ValueError as error:
                yield f"variable {one['name']}: {error}"


def template_on_time_change_reload_rule(made: Json) -> Iterator[str]:
    for one in variables(made).values():
        if one["type"] == "query" and one["refresh"] != 2:
            yield f"variable {one['name']} is not read again when the time changes"


def panel_datasource_rule(made: Json) -> Iterator[str]:
    allowed = {f"${{{n}}}" for n, one in variables(made).items() if one["type"] == "datasource"}
    for panel in panels(made):
        used = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        if any(source["uid"] not in allowed for source in used):
            yield f"{panel['title']} does not use a templated data source"


def panel_title_description_rule(made: Json) -> Iterator[str]:
    for panel in panels(made):
        if not panel.get("title") or not panel.get("description"):
            yield f"panel {panel['id']} has no title or description"


def panel_units_rule(made: Json) -> Iterator[str]:
    for panel in panels(made):
        config = panel["fieldConfig"]
        units = [config["defaults"].get("unit")]
        units += [
            one["value"]
            for override in config["overrides"]
            for one in override["properties"]
            if one["id"] == "unit"
        ]
        if not set(units) <= UNITS:
            yield f"{panel['title']} has units {units}"


def panel_no_targets_rule(made: Json) -> Iterator[str]:
    for panel in panels(made):
        if not panel.get("targets"):
            yield f"{panel['title']} asks nothing"


def _expressions(made: Json, kind: str) -> Iterator[tuple[str, str]]:
    for panel in panels(made):
        for target in panel["targets"]:
            if target["datasource"]["type"] == kind:
                yield panel["title"], target["expr"]


def target_promql_rule(made: Json) -> Iterator[str]:
    for title, expr in _expressions(made, "prometheus"):
        try:
            promql_parser.parse(filled(expr))
        except ValueError as error:
            yield f"{title}: {error}"


def target_rate_interval_rule(made: Json) -> Iterator[str]:
    for title, expr in _expressions(made, "prometheus"):
        if re.search(r"\b(i?rate|increase)\([^[]*\[(?!\$__rate_interval)", expr):
            yield f"{title}: a rate over something else than $__rate_interval"


def target_logql_auto_rule(made: Json) -> Iterator[str]:
    for title, expr in _expressions(made, "loki"):
        if re.search(r"\[(?!\$__auto\])", expr):
            yield f"{title}: a range that is not $__auto"


def _matched(name: str) -> Callable[[Json], Iterator[str]]:
    def rule(made: Json) -> Iterator[str]:
        for title, expr in _expressions(made, "prometheus"):
            if f'{name}=~"${name}"' not in expr:
                yield f"{title} does not match {name}"

    return rule


def target_counter_agg_rule(made: Json) -> Iterator[str]:
    for title, expr in _expressions(made, "prometheus"):
        for metric in re.findall(r"\w+_total\b", expr):
            if not re.search(rf"(rate|increase)\({metric}", expr):
                yield f"{title}: {metric} without rate or increase"


def uneditable_dashboard_rule(made: Json) -> Iterator[str]:
    if made["editable"]:
        yield "can be edited, and the change would be lost"


RULES: dict[str, Callable[[Json], Iterator[str]]] = {
    "template-datasource-rule": template_datasource_rule,
    "template-job-rule": template_job_rule,
    "template-instance-rule": template_instance_rule,
    "template-label-promql-rule": template_label_promql_rule,
    "template-on-time-change-reload-rule": template_on_time_change_reload_rule,
    "panel-datasource-rule": panel_datasource_rule,
    "panel-title-description-rule": panel_title_description_rule,
    "panel-units-rule": panel_units_rule,
    "panel-no-targets-rule": panel_no_targets_rule,
    # target-logql-rule is test_logql.py: it needs Grafana's grammar.
    "target-promql-rule": target_promql_rule,
    "target-rate-interval-rule": target_rate_interval_rule,
    "target-logql-auto-rule": target_logql_auto_rule,
    "target-job-rule": _matched("job"),
    "target-instance-rule": _matched("instance"),
    "target-counter-agg-rule": target_counter_agg_rule,
    "uneditable-dashboard": uneditable_dashboard_rule,
}


@pytest.mark.parametrize(
    ("rule", "uid"),
    [
        (rule, uid)
        for rule in RULES
        for uid in DASHBOARDS
        if not {(rule, "*"), (rule, uid)} & EXCEPTIONS.keys()
    ],
)
def test_a_rule_of_grafanas_linter_holds(rule: str, uid: str) -> None:
    assert list(RULES[rule](DASHBOARDS[uid])) == []


def test_every_exception_is_needed() -> None:
    for rule, uid in EXCEPTIONS:
        within = DASHBOARDS.values() if uid == "*" else [DASHBOARDS[uid]]
        assert any(list(RULES[rule](made)) for made in within), (rule, uid)


def test_the_rules_find_what_they_are_for() -> None:
    broken: Json = {
        "editable": True,
        "templating": {
            "list": [
                {"name": "ds", "type": "datasource", "query": "prometheus", "label": "x"},
                {"name": "m", "type": "query", "query": "label_values(a{, b)", "refresh": 1},
            ]
        },
        "panels": [
            {
                "id": 1,
                "type": "stat",
                "title": "",
                "datasource": {"uid": "prometheus"},
                "fieldConfig": {"defaults": {"unit": "furlong"}, "overrides": []},
                "targets": [
                    {"expr": "rate(a_total[5m]", "datasource": {"type": "prometheus", "uid": "p"}},
                    {"expr": "rate({}[5m])", "datasource": {"type": "loki", "uid": "l"}},
                ],
            },
            {
                "id": 2,
                "type": "stat",
                "title": "t",
                "datasource": {"uid": "x"},
                "targets": [],
                "fieldConfig": {"defaults": {}, "overrides": []},
            },
        ],
    }
    silent = [name for name, rule in RULES.items() if not list(rule(broken))]
    assert silent == ["target-counter-agg-rule"]
