"""`fix MODEL` and `compilewatch.fix` with a search that is made here, and what they refuse."""

import os
import select
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import compilewatch
from compilewatch.cli import group, main
from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.fixes import command, fixing
from compilewatch.extras.fixes.fixing import run_verification
from compilewatch.extras.fixes.records import LATE, Fix, FixChange, FixKind, FixStatus
from compilewatch.extras.fixes.search import Limits
from compilewatch.records import Request
from tests import factories

CHANGE = FixChange(
    name="a rule",
    kind=FixKind.REWRITE,
    summary="What it does.",
    lines=("pass",),
    holds_if=("Nobody needs the message.",),
)
FOUND = Fix(
    model="Net",
    target="dynamo",
    status=FixStatus.VERIFIED,
    detail="one graph",
    changes=(CHANGE,),
    code="def compilable(): ...",
    patch="--- a/net.py\n+++ b/net.py\n",
)


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("extras.fixes.command", "api.check"):
        monkeypatch.setattr(
            f"compilewatch.{module}.one_request",
            lambda name, **_: (factories.request(name), factories.settings()),
        )


def run(*words: str) -> Any:
    return CliRunner().invoke(group, ["fix", "BertModel", *words], standalone_mode=False)


def test_a_diff_has_its_conditions_in_its_file_which_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "folder" / "net.patch"
    ended = run("--patch", str(place))  # it is rejected before the search
    assert isinstance(ended.exception, UsageError)
    assert "net.patch cannot be written: No such file or directory" in str(ended.exception)
    place.parent.mkdir()
    monkeypatch.setattr(command, "find_fix", lambda *_, **__: FOUND)
    run("--patch", str(place))
    assert place.read_text() == f"Holds if:\n- Nobody needs the message.\n\n{FOUND.patch}"

    def find(*_: Any, **__: Any) -> Fix:
        shutil.rmtree(place.parent)
        return FOUND

    monkeypatch.setattr(command, "find_fix", find)
    ended = run("--patch", str(place))
    assert isinstance(ended.exception, StoreError)
    assert "one graph" in ended.output  # what was found is printed all the same


def test_an_interrupted_search_keeps_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(*_: Any, **__: Any) -> Fix:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "find_fix", find)
    monkeypatch.setattr("sys.argv", ["compilewatch", "fix", "BertModel"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "interrupted; the search was not at its end, and nothing" in capsys.readouterr().err


def build() -> None: ...


class Built: ...


def test_limits_in_python_are_those_of_the_command_unless_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits_of_calls: list[Limits] = []

    def find(request: Request, limits: Limits, *, rewrites: bool, report: Any) -> Fix:
        assert rewrites
        limits_of_calls.append(limits)
        name = request.model.name
        return Fix(model=name, target="dynamo", status=FixStatus.NOTHING, detail="no fix")

    monkeypatch.setattr(fixing, "searching", lambda *_, **__: nullcontext(find))
    fix = compilewatch.fix("BertModel")
    compilewatch.fix("BertModel", max_evaluations=3, max_seconds=5)
    assert limits_of_calls == [Limits(), Limits(evaluations=3, seconds=5)]
    assert (fix.status, fix.code, fix.verification) == ("nothing", "", None)
    assert "no fix" in str(fix)
    assert '"status":"nothing"' in fix.to_json()
    # What builds a model is found again by its file.
    assert [compilewatch.fix(model).model for model in (build, Built)] == [
        f"{__file__}:build",
        f"{__file__}:Built",
    ]


FORKS = """
import os, sys, time
holds = os.open({fifo!r}, os.O_WRONLY)  # and so does the fork
if os.fork() == 0:
    time.sleep(600)
time.sleep(600 if "--one-at-a-time" in sys.argv else 0)
sys.exit("no model")
"""


@pytest.mark.process
def test_forks_of_a_verification_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork has the output, too: waiting for its end would take as long as the model hangs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = FORKS.format(fifo=str(fifo))
    for alone, seconds, failure in (
        (True, 30, "the verification runs: no model"),
        (False, 0.5, f"{LATE}: not within 0.5 s"),
    ):
        monkeypatch.setattr(fixing, "VERIFICATION_SECONDS", seconds)
        with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
            assert run_verification(script, sys.executable, {}, alone=alone).failure == failure
            assert select.select([held], [], [], 5)[0]
            assert held.read() == b""  # nobody holds it any more
