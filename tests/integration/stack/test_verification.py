"""What scripts/verify_stack.sh would call a fault, it does."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.verify_stack import checks, grafana
from scripts.verify_stack.services import CheckError, Report
from tests.reading import DASHBOARDS, panels

OVERVIEW = "compilewatch-overview"
ROWS: dict[str, Any] = {"frames": [{"data": {"values": [[1], [2]]}}]}
EMPTY: dict[str, Any] = {"frames": []}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("ab", ""),
        ("aab", "0 are missing and 1 too many: a"),
        ("a", "1 are missing and 0 too many: b"),
    ],
)
def test_a_line_that_is_missing_or_twice_is_a_fault(tmp_path: Path, answer: str, said: str) -> None:
    log = tmp_path / "20260102-030405-0001" / "logs" / "run.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("a\nb\n")
    response = {"data": {"result": [{"values": [["1", line] for line in answer]}]}}
    stack: Any = SimpleNamespace(
        outputs=tmp_path, get=lambda *_, **__: SimpleNamespace(json=lambda: response)
    )
    with pytest.raises(CheckError, match=said) if said else nullcontext():
        assert checks.lines_are_in_loki_once(stack) == "2 lines"


class Panels:
    """Grafana, which answers all queries alike."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.asked: list[dict[str, Any]] = []

    def dashboards(self) -> Any:
        return DASHBOARDS

    def ask(self, path: str, body: Any = None, params: Any = None) -> Any:
        if body is None:
            return {"data": ["bert"] if "label" in path else {"result": []}}
        self.asked += body["queries"]
        return {"results": {query["refId"]: self.result for query in body["queries"]}}


def test_panels_are_queried_with_every_variable_filled_in() -> None:
    client: Any = Panels(ROWS)
    there = {(uid, panel["title"]) for uid, made in DASHBOARDS.items() for panel in panels(made)}
    assert set(grafana.MAY_BE_EMPTY) <= there
    for uid, dashboard in DASHBOARDS.items():
        grafana.panels_answer(client, uid, dashboard)
    for query in client.asked:
        text = json.dumps(query["expr"])
        for name in ("$__interval", "$__rate_interval", "$__range", "$__auto", "$1"):
            text = text.replace(name, "")
        assert "$" not in text, query["expr"]


@pytest.mark.parametrize(
    ("result", "said"), [(EMPTY, "empty"), ({"error": "parse error\nat"}, "parse error;")]
)
def test_a_panel_that_is_empty_or_cannot_be_queried_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(grafana, "SCRAPES_SECONDS", -1.0)
    client: Any = Panels(result)
    with pytest.raises(CheckError, match=said):
        grafana.panels_answer(client, OVERVIEW, DASHBOARDS[OVERVIEW])


def test_a_panel_that_claims_something_without_its_source_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checked(result: dict[str, Any]) -> str:
        client: Any = Panels(result)
        return grafana.panels_say_that_their_source_is_down(client, "loki")

    refused = {"error": "connection refused"}
    assert checked(refused) == "8 panels"
    for answer in (ROWS, EMPTY):
        with pytest.raises(CheckError, match="has an answer"):
            checked(answer)
    monkeypatch.setattr(grafana, "NEUTRAL", "another text")
    with pytest.raises(CheckError, match="says 'no data'"):
        checked(refused)


def test_the_exit_status_separates_a_fault_from_what_is_not_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> str:
        raise CheckError("why")

    report = Report("loki")
    assert report.check("one", lambda: "a fact", needs=["loki"])
    assert not report.check("two", fails, needs=["loki", "grafana"])
    assert report.status == 3
    assert not report.check("three", fails)
    assert report.status == 1
    assert capsys.readouterr().out.splitlines() == [
        "verified      one: a fact",
        "not verified  two: grafana is not installed",
        "FAILED        three: why",
    ]
