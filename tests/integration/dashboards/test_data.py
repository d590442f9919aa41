"""Every PromQL query has an answer from a Prometheus that scraped two runs of a Pushgateway.

The runs are recorded ones: `library`, with everything that can occur, compared with a baseline and
cut short; `manifest`, whole and never compared.
"""

import json
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest

from compilewatch.extras.fixes.records import (
    Fix,
    FixChange,
    FixKind,
    FixOrigin,
    FixStatus,
    RunFix,
)
from compilewatch.extras.fixes.run_fixes import RunFixes, cases_of
from compilewatch.extras.gate.of_run import GateResult
from compilewatch.extras.papers.publication import push_papers
from compilewatch.records import Mode, Part, Performance, RunView, Target
from compilewatch.sinks.pushgateway import PushgatewaySink, push_health
from compilewatch.store import RunFolder, Spool
from dashboards.panels import STATES
from dashboards.queries import FAILED, STALE_SECONDS
from tests import example_run, factories, paper_summaries, profiled, reading, services
from tests.services import Service

pytestmark = pytest.mark.services

CHOICES = [
    {"model": model, "reason": "GB0170 Data-dependent branching"}
    for model in ("RowModel", "BertModel", "CompiledModel")
]
"""Values of variables that hold one value; others are "All"."""

NO_ANSWER = {
    ("compilewatch-overview", "Alerts"): "no rules are loaded, and none fires without evidence",
    ("compilewatch-health", "Alerts"): "no rules are loaded; tests/integration/stack has them fire",
}
"""Queries that rightly have nothing to say about these runs."""


def manifest() -> RunView:
    """A whole run with nothing to compare with, and with repositories of the Hub in its list."""
    targets = [Target(name="dynamo"), Target(name="dynamo", mode=Mode.TRAIN), Target(name="export")]
    answers = [
        factories.result(
            f"team/{n}",
            target=target,
            family="custom",
            source="manifest",
            checkpoint=f"team/{n}",
            part=Part.WHOLE,
        )
        for target in targets
        for n in range(3)
    ]
    slow = [
        factories.result(
            f"team/{n}",
            target=Target(name="inductor"),
            source="manifest",
            details=Performance(cold_compile_seconds=seconds, warm_compile_seconds=0.5),
        )
        for n, seconds in enumerate((1.0, 1.0, 10.0))
    ]
    view = factories.view(*answers, *slow, source="manifest")
    judged = GateResult(
        baseline="compilewatch.baseline.json",
        models=3,
        known=1,
        baseline_changed_at="2026-11-01T12:00:00+00:00",
    )
    return replace(view, parts={"gate": judged, "fixes": fixes()})


def fixes() -> RunFixes:
    """One model with a verified fix, and one that no search has come to."""
    results = [
        factories.result(name, breaks=(factories.graph_break(),), downloads=7)
        for name in ("team/fixed", "team/open")
    ]
    cases, _ = cases_of(results)
    change = FixChange(name="x=1", kind=FixKind.SETTING, summary="x.", lines=("pass",))
    found = RunFix(
        key=cases[0].request.key,
        search="",
        max_evaluations=1,
        max_seconds=1.0,
        model="team/fixed",
        target=cases[0].request.target,
        origin=FixOrigin.SEARCH,
        fix=Fix(model="team/fixed", target="dynamo", status=FixStatus.VERIFIED, changes=(change,)),
    )
    return RunFixes(cases=cases, found=(found,))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("services")
    with services.pushgateway(folder) as gateway:
        settings = factories.settings(pushgateway_url=gateway.url, publish_retry_seconds=0.0)
        library = profiled.with_everything(example_run.view(*example_run.row()))
        for view in (library, manifest()):
            PushgatewaySink(settings).publish(view, RunFolder(folder / "none"))
        papers = [
            paper_summaries.summary(number, paper_summaries.FULL, unfaithful=number > 3)
            for number in range(6)
        ]
        push_papers(settings, papers)
        spool = Spool(folder)
        with mock.patch("compilewatch.store.outputs.now", return_value=factories.run().started_at):
            spool.delivered("pushgateway", factories.run().id)
        push_health(settings, spool, [])
        config = folder / "prometheus.yml"
        config.write_text(
            "scrape_configs:\n- job_name: pushgateway\n  honor_labels: true\n"
            f"  scrape_interval: 200ms\n  static_configs: [{{targets: ['{gateway.url[7:]}']}}]\n"
        )
        with services.prometheus(folder, config) as started:
            # The publisher's group comes last in a scrape, so the others are there too; the whole
            # second that the shortest subquery looks at must have come since.
            services.query(started, "last_over_time(compilewatch_spooled_publications[1h:1s])")
            yield started


def answer(prometheus: Service, query: reading.Query, **choice: str) -> list[Any]:
    """As Grafana asks: now for numbers and tables, over a range for trends."""
    # What came a second ago is no change, but all is new since an hour.
    expr = query.expr.replace("offset $__interval", "offset 1h")
    if query.instant:
        return asked(prometheus, expr, choice=choice)
    now = time.time()
    step = reading.INTERVALS["$__interval"]
    times = {"start": str(now - 30), "end": str(now), "step": step}
    return asked(prometheus, expr, "query_range", times, choice)


def asked(
    prometheus: Service,
    expr: str,
    kind: str = "query",
    times: Mapping[str, str] | None = None,
    choice: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    given = {"query": reading.filled(expr, **choice), **(times or {})}
    path = f"/api/v1/{kind}?{urllib.parse.urlencode(given)}"
    result: list[Any] = json.loads(prometheus.get(path))["data"]["result"]
    return result


def titled(title: str, part: str = "", uid: str = "compilewatch-overview") -> reading.Query:
    """The first query of a panel that contains a text."""
    return next(
        one
        for one in reading.queries("prometheus")
        if (one.uid, one.where) == (uid, title) and part in one.expr
    )


def number(prometheus: Service, title: str) -> list[tuple[dict[str, str], float]]:
    """What the first query of a panel of the overview answers."""
    found = answer(prometheus, titled(title))
    return [(series["metric"], float(series["value"][1])) for series in found]


def test_every_query_has_data(prometheus: Service) -> None:
    empty = {
        (query.uid, query.where)
        for query in (*reading.queries("prometheus"), *reading.around())
        if not any(answer(prometheus, query, **choice) for choice in CHOICES)
    }
    assert empty == set(NO_ANSWER)


def test_a_run_that_was_never_compared_has_no_changes_and_not_none(prometheus: Service) -> None:
    both = [q.expr for q in reading.queries("prometheus") if q.where == "Worse and better"]
    assert len(both) == 2
    for expr in both:
        compared = expr.replace('source=~"$source"', 'source="manifest"')
        assert expr != compared
        assert asked(prometheus, compared) == []
    assert number(prometheus, "Worse and better") == [({}, 1.0)]


def test_only_a_complete_run_has_a_last_success(prometheus: Service) -> None:
    found = number(prometheus, "Last complete run")
    # By target and mode, so that one that is not run any more does not colour the others.
    assert {(labels["target"], labels["mode"]) for labels, _ in found} == {
        ("dynamo", "eval"),
        ("dynamo", "train"),
        ("export", "eval"),
        ("inductor", "eval"),
    }
    assert min(age for _, age in found) > STALE_SECONDS
    stale = titled("Runs", "> bool", "compilewatch-health")
    answered = answer(prometheus, stale)
    assert {series["metric"]["source"] for series in answered} == {"manifest"}
    assert {series["value"][1] for series in answered} == {"1"}


def test_models_that_do_not_pass_come_first_and_every_cell_is_a_state(prometheus: Service) -> None:
    states = [int(value) for _, value in number(prometheus, "Models by target")]
    assert states == sorted(states, reverse=True)
    assert set(states) <= set(range(1, len(STATES) + 1))
    assert {STATES[0].status, STATES[-1].status} <= {STATES[code - 1].status for code in states}


def test_a_forecast_is_right_or_wrong_where_a_device_has_a_verdict_too(
    prometheus: Service,
) -> None:
    columns = [q for q in reading.queries("prometheus") if q.where == "Forecast against verdict"]
    compiles, error, right = (
        {series["metric"]["forecast"]: series["value"][1] for series in answer(prometheus, query)}
        for query in columns
    )
    assert (compiles, error) == ({"lowers": "1"}, {"does not lower": "1"})
    assert right == {"lowers": "1", "does not lower": "1"}


def test_compilations_are_those_of_the_run_and_no_rise_is_a_finding(prometheus: Service) -> None:
    (worst, *others) = answer(
        prometheus, titled("Most compilations", "topk", "compilewatch-targets")
    )
    assert (worst["metric"]["model"], worst["value"][1]) == ("model--A", "9")
    assert [other["value"][1] for other in others] == ["6"]
    tiles = [q for q in reading.queries("prometheus") if q.where == "Compilations for ten sizes"]
    values = [series["value"][1] for query in tiles for series in answer(prometheus, query)]
    assert values == ["0", "1", "0"]


def test_the_model_page_opens_with_one_that_does_not_pass(prometheus: Service) -> None:
    page = reading.variables(reading.DASHBOARDS["compilewatch-model"])["model"]
    first, *others = asked(prometheus, reading.filled(reading.bare(page["query"])))
    failing = asked(prometheus, f"compilewatch_model_status{{{FAILED}}}")
    assert first["metric"]["model"] in {series["metric"]["model"] for series in failing}
    assert others
    assert re.search(page["regex"].strip("/"), f'{{model="{first["metric"]["model"]}"}} 1 2')


def test_variables_offer_what_was_published(prometheus: Service) -> None:
    offered = next(one for one in reading.around() if one.where == "variable source")
    matched = urllib.parse.urlencode({"match[]": reading.filled(offered.expr)})
    path = f"/api/v1/label/source/values?{matched}"
    assert json.loads(prometheus.get(path))["data"] == ["library", "manifest"]
