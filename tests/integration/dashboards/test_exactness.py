"""After a fix, numbers and trends are those of the new run alone, at whatever time range.

A real Prometheus holds three days of a run with broken models, scraped every two minutes, and then
half an hour of the run that repaired them. Statuses and reasons of the broken run have no series
any more, as after a push that replaces its group. Only a real Prometheus can tell what a query
over time makes of that.
"""

import json
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards.panels import STATES
from tests import services
from tests.reading import Query, filled, queries
from tests.services import Service

pytestmark = [pytest.mark.services, pytest.mark.matrix]

SCRAPE = 120
HOUR, DAY = 3600, 24 * 3600
FIXED_AGO = 30 * 60
MODE = 'job="compilewatch",source="library",target="dynamo",mode="eval"'

BROKEN = {
    f'compilewatch_results{{{MODE},status="pass"}}': 19,
    f'compilewatch_results{{{MODE},status="graph_break"}}': 5,
    f'compilewatch_results{{{MODE},status="error"}}': 1,
    f"compilewatch_verdicts{{{MODE}}}": 25,
    f'compilewatch_downloads{{{MODE},status="pass"}}': 490e6,
    f'compilewatch_downloads{{{MODE},status="graph_break"}}': 500e6,
    f'compilewatch_downloads{{{MODE},status="error"}}': 10e6,
    f'compilewatch_reason_models{{{MODE},reason="GB0170 Data-dependent branching"}}': 5,
    f'compilewatch_model_status{{{MODE},model="A",family="f",status="error",phase="compile"}}': 1,
    f'compile_breaks_total{{{MODE},model="A",family="f",commit="",reason="GB0170 D"}}': 4,
    f'compile_breaks_total{{{MODE},model="A",family="f",commit="",reason="GB0124 U"}}': 3,
    f"compilewatch_regressed_models{{{MODE}}}": 5,
}
FIXED = {
    f'compilewatch_results{{{MODE},status="pass"}}': 24,
    f'compilewatch_results{{{MODE},status="graph_break"}}': 1,
    f"compilewatch_verdicts{{{MODE}}}": 25,
    f'compilewatch_downloads{{{MODE},status="pass"}}': 995e6,
    f'compilewatch_downloads{{{MODE},status="graph_break"}}': 5e6,
    f'compilewatch_model_status{{{MODE},model="A",family="f",status="pass",phase="done"}}': 1,
    f'compile_breaks_total{{{MODE},model="A",family="f",commit="",reason="GB0001 X"}}': 2,
    f"compilewatch_regressed_models{{{MODE}}}": 0,
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("services")
    end = int(time.time())
    fixed = end - FIXED_AGO
    lines = [
        f"{series} {value} {at}"
        for run, times in (
            (BROKEN, range(fixed - 3 * DAY, fixed, SCRAPE)),
            # A push leaves markers that end series at once; a file of samples has none, and
            # Prometheus would show a series for five minutes more.
            (FIXED, range(fixed + 6 * 60, end, SCRAPE)),
        )
        for series, value in run.items()
        for at in times
    ]
    # Samples of one metric must be together.
    lines.sort(key=lambda line: line.partition("{")[0])
    (folder / "samples").write_text("\n".join([*lines, "# EOF"]) + "\n")
    promtool = services.program("promtool", package="prometheus")
    made = ["tsdb", "create-blocks-from", "openmetrics", f"{folder}/samples", f"{folder}/tsdb"]
    subprocess.run([promtool, *made], check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("")
    with services.prometheus(folder, folder / "prometheus.yml") as started:
        yield started


def of(title: str, uid: str = "compilewatch-overview") -> Query:
    return next(q for q in queries("prometheus") if (q.uid, q.where) == (uid, title))


def ask(prometheus: Service, kind: str, **asked: Any) -> list[dict[str, Any]]:
    path = f"/api/v1/{kind}?{urllib.parse.urlencode(asked)}"
    found: list[dict[str, Any]] = json.loads(prometheus.get(path))["data"]["result"]
    return found


def at(expr: str, step: int) -> str:
    """The query with the variables as Grafana fills them in at this step."""
    for name, seconds in (("$__interval", step), ("$__rate_interval", step + SCRAPE)):
        expr = expr.replace(name, f"{seconds}s")
    return filled(
        expr.replace("$__range", f"{7 * DAY}s"), model="A", failing="A", reason="GB0170 D"
    )


def drawn(prometheus: Service, query: Query, days: int, step: int) -> list[tuple[str, float]]:
    """The points of the only series, at full multiples of the step, as Grafana requests them."""
    end = int(time.time()) // step * step
    times = {"start": end - days * DAY // step * step, "end": end, "step": step}
    (series,) = ask(prometheus, "query_range", query=at(query.expr, step), **times)
    return [(str(when), float(value)) for when, value in series["values"]]


def test_headline_numbers_are_those_of_the_new_run(prometheus: Service) -> None:
    for title, share, named in (
        ("Models without graph breaks", 24 / 25, ("24", "25")),
        ("Weighted by downloads", 0.995, ("995", "1000")),
    ):
        (found,) = ask(prometheus, "query", query=at(of(title).expr, 2 * HOUR))
        assert float(found["value"][1]) == pytest.approx(share)
        assert (found["metric"]["part"], found["metric"]["whole"]) == named


@pytest.mark.parametrize(("days", "step"), [(1, SCRAPE), (7, 2 * HOUR), (30, 7 * HOUR), (90, DAY)])
def test_the_last_point_of_a_trend_is_that_of_the_new_run_and_the_others_of_the_old(
    prometheus: Service, days: int, step: int
) -> None:
    error, passed = (
        1 + next(n for n, one in enumerate(STATES) if (one.status, one.phase[:6]) == state)
        for state in (("error", "phase="), ("pass", ""))
    )
    for title, uid, before, after in (
        ("Share without graph breaks", "compilewatch-overview", 19 / 25, 24 / 25),
        ("Graph breaks over time", "compilewatch-model", 7, 2),
        ("$model over time", "compilewatch-model", error, passed),
    ):
        values = [value for _, value in drawn(prometheus, of(title, uid), days, step)]
        assert values[-1] == pytest.approx(after), title
        assert values[0] == pytest.approx(before), title
        assert {round(value, 9) for value in values} == {round(before, 9), round(after, 9)}, title


def test_what_is_no_longer_there_is_said_to_be_none_and_an_empty_source_is_not(
    prometheus: Service,
) -> None:
    """The row has the value 0; without any data there is no row at all."""
    reasons = of("Reasons, by models")
    (found,) = ask(prometheus, "query", query=at(reasons.expr, SCRAPE))
    assert found["metric"] == {"reason": "no graph breaks"}
    worse = of("Worse than in the last good state")
    (none,) = ask(prometheus, "query", query=at(worse.expr, SCRAPE))
    assert (none["metric"], none["value"][1]) == ({"model": "none is worse"}, "0")
    for query in (reasons, worse):
        long_ago = time.time() - 300 * DAY
        assert ask(prometheus, "query", query=at(query.expr, SCRAPE), time=long_ago) == []
