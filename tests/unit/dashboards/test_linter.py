"""The rules of github.com/grafana/dashboard-linter (lint/rules.go), which is a Go program.

Each function is one rule under its own name and yields what breaks it. Not followed are the rules
about `job` and `instance` (one job by contract, no instance behind a Pushgateway), the one about
rates of counters (`compile_breaks_total` is the count of the latest run) and `$__auto` in LogQL,
which Grafana 9 does not know.
"""

import re
from collections.abc import Callable, Iterator

import promql_parser

from dashboards.queries import MILLIONS, MINUTES, SECONDS
from tests.reading import DASHBOARDS, PUBLIC, Json, bare, filled, panels, variables

UNITS = {
    *("none", "short", "percentunit", "bytes", "s", "dateTimeAsIso", "dtdurations", "currencyUSD"),
    *(MILLIONS, SECONDS, MINUTES),
}
"""Those of Grafana's units (valueFormats/categories.ts) that are used here."""

EXCEPTIONS = {
    ("template-datasource-rule", PUBLIC): "externally shared dashboards take no variables",
    ("panel-datasource-rule", PUBLIC): "externally shared dashboards take no variables",
}


def template_datasource_rule(made: Json) -> Iterator[str]:
    sources = [one for one in variables(made).values() if one["type"] == "datasource"]
    if not sources:
        yield "has no templated data source"
    for one in sources:
        kind = one["query"]
        if one["name"] != f"{kind}_datasource" or one["label"] != f"{kind.title()} data source":
            yield f"data source variable {one['name']} is misnamed"


def template_variables_rule(made: Json) -> Iterator[str]:
    """Their queries parse (template-label-promql) and are read again when the time changes."""
    for one in variables(made).values():
        if one["type"] == "query":
            try:
                promql_parser.parse(filled(bare(one["query"])))
            except ValueError as error:
                yield f"variable {one['name']}: {error}"
            if one["refresh"] != 2:
                yield f"variable {one['name']} is not read again when the time changes"


def panel_datasource_rule(made: Json) -> Iterator[str]:
    allowed = {f"${{{n}}}" for n, one in variables(made).items() if one["type"] == "datasource"}
    for panel in panels(made):
        used = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        if any(source["uid"] not in allowed for source in used):
            yield f"{panel['title']} does not use a templated data source"


def panel_description_rule(made: Json) -> Iterator[str]:
    for panel in panels(made):
        if not panel.get("title") or not panel.get("description") or not panel.get("targets"):
            yield f"panel {panel['id']} has no title or description, or asks nothing"


def panel_units_rule(made: Json) -> Iterator[str]:
    for panel in panels(made):
        config = panel["fieldConfig"]
        units = [config["defaults"].get("unit")]
        for override in config["overrides"]:
            units += [one["value"] for one in override["properties"] if one["id"] == "unit"]
        if not set(units) <= UNITS:
            yield f"{panel['title']} has units {units}"


def target_promql_rule(made: Json) -> Iterator[str]:
    for panel in panels(made):
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                expr = target["expr"]
                try:
                    promql_parser.parse(filled(expr))
                except ValueError as error:
                    yield f"{panel['title']}: {error}"
                if re.search(r"\b(i?rate|increase)\([^[]*\[(?!\$__rate_interval)", expr):
                    yield f"{panel['title']}: a rate over something else than $__rate_interval"


def uneditable_dashboard_rule(made: Json) -> Iterator[str]:
    if made["editable"]:
        yield "can be edited, and the change would be lost"


RULES: dict[str, Callable[[Json], Iterator[str]]] = {
    name.replace("_", "-"): rule for name, rule in list(globals().items()) if name.endswith("_rule")
}
"""target-logql-rule is test_logql.py: it needs Grafana's grammar."""


def test_the_rules_of_grafanas_linter_hold() -> None:
    broken = {
        (name, uid): complaints
        for name, rule in RULES.items()
        for uid, made in DASHBOARDS.items()
        if (complaints := list(rule(made)))
    }
    assert broken.keys() == EXCEPTIONS.keys(), broken


def test_the_rules_find_what_they_are_for() -> None:
    source = {"type": "prometheus", "uid": "p"}
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
                "targets": [{"expr": "rate(a_total[5m]", "datasource": source}],
            }
        ],
    }
    assert [name for name, rule in RULES.items() if not list(rule(broken))] == []
