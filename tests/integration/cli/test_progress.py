"""What a sweep says while it runs, as a log and on a terminal."""

import io
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from compilewatch.cli import progress
from compilewatch.cli.progress import ProgressBar
from compilewatch.launchers import Running
from compilewatch.records import Result
from tests import factories

EAGER = {"compile": 4.0}


RUNNING = [
    Running(name="B", doing="create", seconds=1.2),
    Running(name="A", doing="compile", seconds=72.0),
]


def broken(name: str) -> Result:
    return factories.result(name, breaks=(factories.graph_break(),), durations=EAGER)


@pytest.fixture
def bar() -> ProgressBar:
    made = ProgressBar()
    launcher: Any = SimpleNamespace(jobs=2, running=lambda: RUNNING)
    made.on_launcher(launcher)
    return made


def test_a_failure_is_one_line_when_it_happens_and_a_pass_is_none(
    bar: ProgressBar, capsys: pytest.CaptureFixture[str]
) -> None:
    bar.on_plan(4, 1)
    bar.on_result(factories.result("A"), 2, 4)
    bar.on_result(broken("B" * 300), 3, 4)
    bar.on_result(msgspec.structs.replace(broken("C"), expectation="known"), 4, 4)
    first, failure = capsys.readouterr().err.splitlines()
    assert first == "4 requests, 1 of them reused from earlier runs."
    assert failure.startswith("graph break  BBB")
    assert "modeling_bert.py:12 in forward  Data-dependent branching" in failure


def test_a_line_has_counts_in_words_the_rest_and_what_runs_oldest_first(
    bar: ProgressBar, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar.on_plan(4, 0)
    assert bar.line() == "0:00  0 of 4; now A compile 1:12, B create 0:01"
    bar.on_result(factories.result("A", durations=EAGER), 1, 4)
    bar.on_result(broken("B"), 2, 4)
    now = time.monotonic() + 8.5
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert bar.line() == (
        "0:08  2 of 4: 1 pass · 1 graph break; 0:08 left; now A compile 1:12, B create 0:01"
    )


def test_a_log_has_a_line_now_and_then_and_names_the_model_that_is_profiled(
    bar: ProgressBar, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    bar.on_plan(4, 0)
    with bar:
        time.sleep(0.1)
    assert "0:00  0 of 4; now A compile" in capsys.readouterr().err
    bar.on_step("BertModel (1 of 1)", 0.0)
    assert bar.line() == "0:00  0 of 4; now profiling BertModel (1 of 1)"
    assert "profiling BertModel (1 of 1)" in capsys.readouterr().err


def test_a_terminal_shows_tally_and_running_models_and_quiet_nothing(
    bar: ProgressBar, capsys: pytest.CaptureFixture[str]
) -> None:
    bar.on_plan(3, 0)
    bar.on_result(broken("A"), 1, 3)
    out = Console(width=80, record=True, file=io.StringIO())
    out.print(bar._shown())
    text = out.export_text()
    assert all(part in text for part in ("1/3", "1 graph break", "  A compile 1:12\n"))
    capsys.readouterr()
    with ProgressBar(quiet=True) as bar:
        bar.on_plan(4, 1)
        bar.on_result(broken("A"), 2, 4)
        bar.on_step("BertModel (1 of 1)", 0.0)
    assert capsys.readouterr().err == ""
    assert bar.said_done() == "2 of 4 results are"
