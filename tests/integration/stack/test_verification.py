"""What scripts/verify_stack.sh would call a fault, it does."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.verify_stack import checks, grafana
from scripts.verify_stack.__main__ import main
from scripts.verify_stack.services import CheckError, Report
from tests.reading import DASHBOARDS, panels


class Answers:
    """Of a stack that nobody started: what Loki answers, or what listens."""

    def __init__(self, folder: Path, answer: Any) -> None:
        self.outputs = folder
        self.answer = answer
        self.ports = {"alloy": 1}

    def get(self, *_: str, **__: str) -> Any:
        return SimpleNamespace(json=lambda: self.answer)

    def listening(self) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (["a", "b"], ""),
        (["a", "a", "b"], "0 are missing and 1 too many: a"),
        (["a"], "1 are missing and 0 too many: b"),
    ],
)
def test_a_line_that_is_missing_or_twice_is_a_fault(
    tmp_path: Path, held: list[str], said: str | None
) -> None:
    log = tmp_path / "20260102-030405-0001" / "logs" / "run.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("a\nb\n")
    answer = {"data": {"result": [{"values": [["1", line] for line in held]}]}}
    stack: Any = Answers(tmp_path, answer)
    with pytest.raises(CheckError, match=said) if said else nullcontext():
        assert checks.lines_are_in_loki_once(stack) == "2 lines"


@pytest.mark.parametrize(
    ("address", "port", "said"),
    [
        ("127.0.0.1", 1, ""),
        ("::", 1, "open to others"),
        ("0.0.0.0", 1, "open to others"),
        ("127.0.0.1", 2, "which nobody has configured"),
    ],
)
def test_a_port_that_is_open_or_unknown_is_a_fault(
    tmp_path: Path, address: str, port: int, said: str
) -> None:
    stack: Any = Answers(tmp_path, [("alloy", address, port)])
    with pytest.raises(CheckError, match=said) if said else nullcontext():
        checks.ports_are_the_configured_ones(stack)


class Panels:
    """Grafana, which answers all queries alike."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.asked: list[dict[str, Any]] = []

    def ask(self, path: str, body: Any = None, params: Any = None) -> Any:
        if body is None:
            return {"data": ["bert"] if "label" in path else {"result": []}}
        self.asked += body["queries"]
        return {"results": {query["refId"]: self.result for query in body["queries"]}}


ROWS = {"frames": [{"data": {"values": [[1], [2]]}}]}


def test_panels_are_queried_with_every_variable_filled_in() -> None:
    client: Any = Panels(ROWS)
    there = {(uid, panel["title"]) for uid, made in DASHBOARDS.items() for panel in panels(made)}
    assert set(grafana.MAY_BE_EMPTY) <= there
    for uid, dashboard in DASHBOARDS.items():
        grafana.panels_answer(client, uid, dashboard)
    own = {f"${name}" for name in ("__interval", "__rate_interval", "__range", "__auto")}
    for query in client.asked:
        text = json.dumps(query["expr"])
        for name in own:
            text = text.replace(name, "")
        assert "$" not in text.replace("$1", ""), query["expr"]


def test_a_panel_that_is_empty_or_cannot_be_queried_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grafana, "SCRAPES_SECONDS", -1.0)
    uid = "compilewatch-overview"
    answers: list[tuple[dict[str, Any], str]] = [
        ({"frames": []}, "empty"),
        ({"error": "parse error\nat"}, "parse error"),
    ]
    for result, said in answers:
        client: Any = Panels(result)
        with pytest.raises(CheckError) as caught:
            grafana.panels_answer(client, uid, DASHBOARDS[uid])
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_steps_are_those_of_a_browser() -> None:
    """Grafana renders another one as a fraction of a second, which Prometheus rejects."""
    week = 7 * 24 * 3_600_000
    for panel in (panel for made in DASHBOARDS.values() for panel in panels(made)):
        for span in (week, 4 * week, 13 * week):
            step = grafana._step(panel, span)
            assert step % 60_000 == 0
            assert step >= 120_000
    wide = {"targets": [{}], "gridPos": {"w": 24}, "interval": "2m"}
    assert grafana._step(wide, week) == 5 * 60_000
    assert grafana._step(wide, 13 * week) == 3_600_000


def test_a_panel_that_claims_something_without_its_source_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checked(result: dict[str, Any]) -> str:
        client: Any = Panels(result)
        client.dashboards = lambda: DASHBOARDS
        return grafana.panels_say_that_their_source_is_down(client, "loki")

    refused = {"error": "connection refused"}
    assert checked(refused) == "8 panels"
    empty: dict[str, Any] = {"frames": []}
    for answer in (ROWS, empty):
        with pytest.raises(CheckError, match="has an answer"):
            checked(answer)
    monkeypatch.setattr(grafana, "NEUTRAL", "another text")
    with pytest.raises(CheckError, match="says 'no data'"):
        checked(refused)


def test_the_exit_status_separates_a_fault_from_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        raise CheckError("why")

    report = Report("loki")
    assert report.check("one", lambda: "a fact", needs=["loki"])
    assert report.status == 0
    assert not report.check("two", fails, needs=["loki", "grafana"])
    assert report.status == 3
    assert not report.check("three", fails)
    assert report.status == 1
    assert capsys.readouterr().out.splitlines() == [
        "verified      one: a fact",
        "not verified  two: grafana is not installed",
        "FAILED        three: why",
    ]
    monkeypatch.setattr("sys.argv", ["verify_stack", "podman"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.count("\n") == 1
