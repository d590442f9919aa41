"""`fix MODEL` as it is typed, with a search that is made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compilewatch.cli import group, main
from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.fixes import command
from compilewatch.extras.fixes.records import Fix, FixChange, FixKind, FixStatus
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
    given = (factories.request("BertModel"), factories.settings())
    monkeypatch.setattr(command, "one_request", lambda *_, **__: given)


def run(*words: str) -> Any:
    return CliRunner().invoke(group, ["fix", "BertModel", *words], standalone_mode=False)


def test_a_diff_has_its_conditions_in_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_fix", lambda *_, **__: FOUND)
    run("--patch", str(tmp_path / "net.patch"))
    text = (tmp_path / "net.patch").read_text()
    assert text == f"Holds if:\n- Nobody needs the message.\n\n{FOUND.patch}"


def test_a_place_that_cannot_be_written_is_rejected_before_the_search(tmp_path: Path) -> None:
    done = run("--patch", str(tmp_path / "missing" / "net.patch"))
    assert isinstance(done.exception, UsageError)
    assert "net.patch cannot be written: No such file or directory" in str(done.exception)


def test_what_is_found_is_printed_although_it_can_be_written_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "folder" / "net.patch"
    place.parent.mkdir()

    def find(*_: Any, **__: Any) -> Fix:
        place.parent.rmdir()
        return FOUND

    monkeypatch.setattr(command, "find_fix", find)
    done = run("--patch", str(place))
    assert isinstance(done.exception, StoreError)
    assert "one graph" in done.output


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
