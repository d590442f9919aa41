"""`fix --all-of` as it is typed, with a finder that has no processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from compilewatch.cli import group
from compilewatch.errors import CompilewatchError
from compilewatch.extras.fixes.of_run import command
from compilewatch.extras.fixes.of_run.view import FixJournal, adopt_fixes
from compilewatch.store import StoredRun
from tests.unit.extras.fixes.of_run.finding import FakeFinder
from tests.unit.extras.fixes.of_run.test_driver import SCALARS
from tests.unit.extras.fixes.of_run.test_view import BREAKS, swept


@pytest.fixture
def stored(tmp_path: Path) -> StoredRun:
    return swept(tmp_path)


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> FakeFinder:
    breaks = {name: tuple(each.function for each in found) for name, found in BREAKS.items()}
    made = FakeFinder(breaks=breaks, removing={"item": SCALARS})

    @contextlib.contextmanager
    def searching(*_: Any, **__: Any) -> Iterator[FakeFinder]:
        yield made

    monkeypatch.setattr(command, "searching", searching)
    return made


def run(stored: StoredRun, *arguments: str) -> Result:
    output = str(stored.path.parent)
    words = ["fix", "--all-of", "latest", "--output", output, "--jobs", "1", *arguments]
    return CliRunner().invoke(group, words, standalone_mode=False)


def test_it_prints_a_line_a_model_and_what_the_fixes_give(
    stored: StoredRun, finder: FakeFinder
) -> None:
    done = run(stored, "--max-evaluations", "7", "--max-model-seconds", "5")
    assert done.return_value == 1
    assert "3 models and targets with graph breaks." in done.stderr
    assert "1 of 3  A  verified  capture_scalar_outputs=True" in done.stderr
    assert "Verified: this change leaves 2 more models without graph breaks" in done.stdout
    assert {(each.evaluations, each.seconds) for each in finder.limits} == {(7, 5.0)}


def test_json_has_the_summary_and_each_fix(stored: StoredRun, finder: FakeFinder) -> None:
    found = json.loads(run(stored, "--json").stdout)
    assert found["run"] == stored.run.id
    assert found["states"] == {
        "verified": 2,
        "improves": 0,
        "captured": 0,
        "nothing": 1,
        "no_verdict": 0,
        "not_searched": 0,
    }
    assert found["total"]["models"] == ["A", "B"]
    assert [each["model"] for each in found["fixes"]] == ["A", "B", "C"]
    assert finder.searched


def test_when_all_is_known_no_worker_is_started(
    stored: StoredRun, finder: FakeFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(stored)
    before = list(finder.searched)

    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(command, "searching", started)
    done = run(stored)
    assert "3 of them known from before" in done.stderr
    assert finder.searched == before


def test_a_limit_that_leaves_models_has_a_status_of_its_own(
    stored: StoredRun, finder: FakeFinder
) -> None:
    finder.limit = "1 seconds"  # every search ends by what is left of the time
    done = run(stored, "--max-seconds", "1")
    assert done.return_value == 3
    assert "not searched" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fix"], "name a model, or a run with --all-of"),
        (
            ["fix", "BertModel", "--all-of", "latest"],
            "with --all-of, not both",
        ),
        (["fix", "--all-of", "latest", "--mode", "train"], "--mode is about one model"),
        (["fix", "--all-of", "latest", "--save", "x.py"], "--save is about one model"),
    ],
)
def test_what_cannot_be_meant_is_an_error(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(group, arguments, standalone_mode=False)
    assert isinstance(done.exception, CompilewatchError)
    assert said in str(done.exception)


def test_what_an_earlier_run_verified_of_the_same_versions_is_taken_over(
    tmp_path: Path, finder: FakeFinder
) -> None:
    first = swept(tmp_path)
    run(first)
    second = swept(tmp_path)
    finder.searched.clear()
    done = run(second, "--json")
    assert "3 of them known from before" in done.stderr
    assert finder.searched == []
    found = json.loads(done.stdout)["fixes"]
    assert {each["reused_from"] for each in found} == {first.run.id}
    scripts = [second.path / each["script_file"] for each in found if each["script_file"]]
    assert sorted(each.read_text() for each in scripts) == [
        "# verification\n",
        "# verification of B\n",
    ]


def test_a_fix_whose_verification_was_deleted_is_searched_again(
    tmp_path: Path, finder: FakeFinder
) -> None:
    first = swept(tmp_path)
    run(first)
    for path in (first.path / "fixes").rglob("*.py"):
        path.unlink()
    finder.searched.clear()
    run(swept(tmp_path))
    assert finder.searched == ["A"]


def test_the_fixes_of_merged_runs_are_kept(tmp_path: Path, finder: FakeFinder) -> None:
    del finder
    first = swept(tmp_path)
    run(first)
    (tmp_path / "merged").mkdir()
    for _ in range(2):
        adopt_fixes(first.path, tmp_path / "merged")
    found, damaged = FixJournal(tmp_path / "merged").read()
    assert (len(found), damaged) == (3, ())
    assert (tmp_path / "merged" / "fixes" / "A" / "dynamo.py").exists()
