"""What scripts/verify_stack.sh would call a fault, it does; and real services where they are."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.verify_stack import checks, grafana
from scripts.verify_stack.__main__ import main
from scripts.verify_stack.services import CheckError, Programs, Report, listens_on
from tests.reading import DASHBOARDS, panels


class Answers:
    """Of a stack that nobody started: what each path answers."""

    def __init__(self, folder: Path, **answers: Any) -> None:
        self.outputs = folder
        self.answers = answers
        self.ports = {"alloy": 1}

    def get(self, service: str, path: str, **params: str) -> Any:
        del path, params
        return self

    def json(self) -> Any:
        return self.answers

    def listening(self) -> Iterator[tuple[str, str, int]]:
        yield from self.answers["listening"]


def stored(lines: list[str]) -> dict[str, Any]:
    return {"result": [{"values": [["1", line] for line in lines]}]}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (["a", "b"], None),
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
    stack: Any = Answers(tmp_path, data=stored(held))
    if said is None:
        assert checks.lines_are_in_loki_once(stack) == "2 lines"
        return
    with pytest.raises(CheckError, match=said):
        checks.lines_are_in_loki_once(stack)


@pytest.mark.parametrize(
    ("address", "port", "said"),
    [
        ("127.0.0.1", 1, None),
        ("::", 1, "open to others"),
        ("0.0.0.0", 1, "open to others"),
        ("127.0.0.1", 2, "which nobody has configured"),
    ],
)
def test_a_port_that_is_open_or_unknown_is_a_fault(
    tmp_path: Path, address: str, port: int, said: str | None
) -> None:
    stack: Any = Answers(tmp_path, listening=[("alloy", address, port)])
    if said is None:
        checks.ports_are_the_configured_ones(stack)
        return
    with pytest.raises(CheckError, match=said):
        checks.ports_are_the_configured_ones(stack)


def test_all_that_a_process_listens_on_is_seen() -> None:
    with socket.socket() as one, socket.socket(socket.AF_INET6) as other:
        one.bind(("0.0.0.0", 0))
        other.bind(("::1", 0))
        for each in (one, other):
            each.listen()
        found = set(listens_on(os.getpid()))
        assert found >= {("0.0.0.0", one.getsockname()[1]), ("::1", other.getsockname()[1])}


def test_what_may_be_empty_is_a_panel_that_exists() -> None:
    there = {(uid, panel["title"]) for uid, made in DASHBOARDS.items() for panel in panels(made)}
    assert set(grafana.MAY_BE_EMPTY) <= there


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
    for uid, dashboard in DASHBOARDS.items():
        grafana.panels_answer(client, uid, dashboard)
    own = {f"${name}" for name in ("__interval", "__rate_interval", "__range", "__auto")}
    for query in client.asked:
        text = json.dumps(query["expr"])
        for name in own:
            text = text.replace(name, "")
        assert "$" not in text.replace("$1", ""), query["expr"]


@pytest.mark.parametrize(
    ("result", "said"),
    [({"frames": []}, "empty"), ({"error": "parse error\nat"}, "parse error")],
)
def test_a_panel_that_is_empty_or_cannot_be_queried_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(grafana, "SCRAPES_SECONDS", -1.0)
    uid = "compilewatch-overview"
    client: Any = Panels(result)
    with pytest.raises(CheckError) as caught:
        grafana.panels_answer(client, uid, DASHBOARDS[uid])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_steps_are_those_of_a_browser() -> None:
    """Grafana renders another one as a fraction of a second, which Prometheus rejects."""
    week, month = 7 * 24 * 3_600_000, 30 * 24 * 3_600_000
    for made in DASHBOARDS.values():
        for panel in panels(made):
            for span in (week, month, 3 * month):
                step = grafana._step(panel, span)
                assert step % 60_000 == 0
                assert step >= 120_000
    wide = {"targets": [{}], "gridPos": {"w": 24}, "interval": "2m"}
    assert grafana._step(wide, week) == 5 * 60_000
    assert grafana._step(wide, 3 * month) == 3_600_000


@pytest.mark.parametrize(
    ("result", "said"),
    [({"error": "connection refused"}, None), (ROWS, "has an answer"), ({"frames": []}, "empty")],
)
def test_a_panel_that_claims_something_without_its_source_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], said: str | None
) -> None:
    client: Any = Panels(result)
    client.dashboards = lambda: DASHBOARDS
    if said is None:
        assert grafana.panels_say_that_their_source_is_down(client, "loki") == "8 panels"
        monkeypatch.setattr(grafana, "NEUTRAL", "another text")
        with pytest.raises(CheckError, match="says 'no data'"):
            grafana.panels_say_that_their_source_is_down(client, "loki")
        return
    with pytest.raises(CheckError, match="has an answer"):
        grafana.panels_say_that_their_source_is_down(client, "loki")


def test_late_lines_that_are_missing_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_push", lambda *arguments: None)
    monkeypatch.setattr(checks, "logged", lambda *arguments: ["1 hours old"])
    stack: Any = None
    with pytest.raises(CheckError, match="accepted and not returned: 100 hours old, 216 hours"):
        checks.late_lines_are_returned(stack)


def test_the_exit_status_separates_a_fault_from_what_is_not_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> str:
        raise CheckError("why")

    report = Report()
    assert report.check("one", lambda: "a fact")
    assert report.status == 0
    report.not_verified("two", "it is not installed")
    assert report.status == 3
    assert not report.check("three", fails)
    assert report.status == 1
    assert capsys.readouterr().out.splitlines() == [
        "verified      one: a fact",
        "not verified  two: it is not installed",
        "FAILED        three: why",
    ]


def test_wrong_use_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["verify_stack", "podman"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.services
@pytest.mark.parametrize("service", ["loki", "grafana"])
def test_a_service_that_no_package_brings(service: str, tmp_path: Path) -> None:
    """Some seconds: that it starts from our files, on our ports, only the real one can tell."""
    program = shutil.which(service)
    if program is None:
        pytest.skip(f"{service} is not installed")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / service).symlink_to(program)
    stack = Programs(tmp_path)
    stack.environment["PATH"] = f"{folder}:/usr/bin:/bin"
    stack.run("scripts/stack_setup.sh")
    try:
        stack.up()
        assert checks.version(stack, service)
        if service == "grafana":
            grafana.only_the_password_logs_in(stack)
    finally:
        stack.down()
