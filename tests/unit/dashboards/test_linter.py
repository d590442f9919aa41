"""The rules of github.com/grafana/dashboard-linter (lint/rules.go), which is a Go program.

Not followed are the rules about `job` and `instance` (one job by contract, no instance behind a
Pushgateway), the one about rates of counters (`compile_breaks_total` is the count of the latest
run) and `$__auto` in LogQL, which Grafana 9 does not know. That queries parse is test_queries.py's
and test_logql.py's.
"""

import re

import pytest

from dashboards.queries import MILLIONS, MINUTES, SECONDS
from tests.reading import DASHBOARDS, PUBLIC, panels, queries, variables

UNITS = {
    *("none", "short", "percentunit", "bytes", "s", "dateTimeAsIso", "dtdurations", "currencyUSD"),
    *(MILLIONS, SECONDS, MINUTES),
}
"""Those of Grafana's units (valueFormats/categories.ts) that are used here."""

EVERY = pytest.mark.parametrize("uid", DASHBOARDS)


@EVERY
def test_variables_are_read_again_and_name_their_data_source(uid: str) -> None:
    made = DASHBOARDS[uid]
    assert made["editable"] is False, "a change would be lost"
    sources = [one for one in variables(made).values() if one["type"] == "datasource"]
    # Externally shared dashboards take no variables.
    assert bool(sources) == (uid != PUBLIC)
    for one in sources:
        kind = one["query"]
        assert (one["name"], one["label"]) == (f"{kind}_datasource", f"{kind.title()} data source")
    for one in variables(made).values():
        assert one["type"] != "query" or one["refresh"] == 2, one["name"]
    allowed = {f"${{{one['name']}}}" for one in sources} or {"prometheus"}
    for panel in panels(made):
        used = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in used} <= allowed, panel["title"]


@EVERY
def test_panels_are_described_have_a_unit_and_ask_something(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        assert panel["title"], panel["id"]
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]
        config = panel["fieldConfig"]
        looks = [one for override in config["overrides"] for one in override["properties"]]
        units = {one["value"] for one in looks if one["id"] == "unit"}
        assert {config["defaults"]["unit"], *units} <= UNITS, panel["title"]


def test_rates_are_over_the_rate_interval() -> None:
    for query in queries("prometheus"):
        other = re.search(r"\b(i?rate|increase)\([^[]*\[(?!\$__rate_interval)", query.expr)
        assert not other, query
