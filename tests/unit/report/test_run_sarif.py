"""A run's breaks as SARIF: valid, each place once, with its state relative to the baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from compilewatch.records import Change, ChangeKind, GraphBreak, Result, RunView, Status
from compilewatch.report.sarif import results_of, write_run
from tests import example_run, factories
from tests.schemas import sarif_errors


def broken(fingerprint: str, file: str = "transformers/a.py") -> GraphBreak:
    return msgspec.structs.replace(
        factories.graph_break(), fingerprint=fingerprint, file=file, user_stack=()
    )


def compared(*results: Result, before: Result) -> RunView:
    key = (before.request.model.name, before.request.target)
    change = Change(
        kind=ChangeKind.REGRESSION,
        model=key[0],
        target=key[1],
        before=before.status,
        after=Status.GRAPH_BREAK,
        reason="",
    )
    view = factories.view(*results)
    return replace(view, baseline=view.run, changes=(change,), before={key: before})


def test_a_run_with_everything_is_a_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "run.sarif"
    view = example_run.view(*example_run.row())
    write_run(path, view)
    log = json.loads(path.read_text())
    assert sarif_errors(log) == []
    found = {each["ruleId"] for each in log["runs"][0]["results"]}
    assert {each.code for result in view.results for each in result.breaks} <= found
    assert log["runs"][0]["invocations"][0]["toolExecutionNotifications"]


def test_states_are_relative_to_the_baseline() -> None:
    new, old, gone = broken("0" * 12), broken("1" * 12), broken("2" * 12)
    before = factories.result("A", breaks=(old, gone))
    view = compared(
        factories.result("A", breaks=(new, old)),
        factories.result("B", breaks=(old,)),
        before=before,
    )
    found = {each.fingerprint: each for each in results_of(view)}
    assert {k[0]: each.state for k, each in found.items()} == {
        "0": "new",
        "1": "unchanged",
        "2": "absent",
    }
    assert found["1" * 12].checks == ("A on dynamo", "B on dynamo")
    without = replace(view, baseline=None, changes=(), before={})
    assert {each.state for each in results_of(without)} == {None}


def test_code_below_the_current_folder_is_the_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "mypkg").mkdir(parents=True)
    (tmp_path / "src" / "mypkg" / "net.py").touch()
    breaks = (broken("0" * 12, "mypkg/net.py"), broken("1" * 12))
    own, other = results_of(factories.view(factories.result("A", breaks=breaks)))
    assert (own.location.file, own.level) == ("src/mypkg/net.py", "warning")
    assert (other.location.installed, other.level) == (True, "note")
