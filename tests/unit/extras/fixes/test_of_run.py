"""`fix --all-of` with a finder that has no processes: what is searched, tried, stored, printed."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click.testing
import msgspec
import pytest

from compilewatch.cli import group
from compilewatch.extras.fixes import of_run, run_fixes
from compilewatch.extras.fixes.of_run import FixProgress, RunSearch
from compilewatch.extras.fixes.records import LATE, FixOrigin, FixStatus, Rejection, RunFix
from compilewatch.extras.fixes.search import Limits
from compilewatch.records import GraphBreak, Result, Target
from compilewatch.store import Store, StoredRun
from tests import factories
from tests.fake_launcher import FakeLauncher
from tests.sweeping import breaking, run_sweep
from tests.unit.extras.fixes.finding import SCALARS, SHAPES, FakeFinder, broken, finder

HINT = "Set `torch._dynamo.config.capture_scalar_outputs = True`"
ITEM = factories.graph_break("item", hints=(HINT,))
HOPELESS = factories.graph_break("hopeless", "GB0025", hints=("Restructure the code.", HINT))
BREAKS: dict[str, Sequence[GraphBreak]] = {"A": (ITEM,), "B": (ITEM,), "C": (HOPELESS,)}


def swept(tmp_path: Path) -> StoredRun:
    """A stored run in which A and B break at one place and C at another."""
    specs = [factories.spec(name, downloads=100) for name in BREAKS]
    run = run_sweep(tmp_path, FakeLauncher(answers=breaking(BREAKS)), specs=specs).run
    return Store(tmp_path / "outputs").open(run.id)


def work(
    folder: Path, results: Sequence[Result], *finders: FakeFinder, **fields: Any
) -> dict[str, RunFix]:
    limits = fields.pop("limits", Limits(evaluations=4, seconds=9.0))
    cases, _ = run_fixes.cases_of(results)
    RunSearch(cases, folder, FixProgress(), limits, **fields).run(finders, "default")
    return {run_fix.model: run_fix for run_fix in run_fixes.read(folder)[0].values()}


def many(number: int, *places: str) -> list[Result]:
    """Models `M0`, `M1` …, the first the most downloaded, that break at the same places."""
    return [broken(f"M{n}", *places, downloads=1000 - n, key=f"key {n}") for n in range(number)]


def test_one_model_of_a_place_is_searched_and_the_others_get_its_changes(tmp_path: Path) -> None:
    results = many(5, "item")
    finding = finder(results, unverified=frozenset({"M4"}))
    fixes = work(tmp_path, results, finding)
    assert finding.searched == ["M0", "M4"]
    assert finding.evaluated == [(name, (SCALARS.name,)) for name in ("M1", "M2", "M3", "M4")]
    assert finding.verified == ["M1", "M2", "M3", "M4"]
    assert {fixes[f"M{n}"].fix.status for n in range(4)} == {FixStatus.VERIFIED}
    assert [fixes[n].origin for n in ("M0", "M1")] == [FixOrigin.SEARCH, FixOrigin.KNOWN]
    assert (tmp_path / fixes["M3"].script_file).read_text() == "# verification of M3\n"
    assert fixes["M3"].fix.script == ""
    # Captured is not verified: a search for the model itself follows.
    assert (fixes["M4"].fix.status, fixes["M4"].fix.changes) == (FixStatus.CAPTURED, ())
    assert [r.reason for r in fixes["M4"].fix.rejections] == ["results of Inductor: differ"]
    assert fixes["M4"].script_file == ""


def test_changes_of_several_models_are_joined_and_what_is_not_needed_is_left_out(
    tmp_path: Path,
) -> None:
    results = [
        broken("A", "item", downloads=9),
        broken("B", "nonzero", downloads=8),
        broken("C", "item", "nonzero", downloads=7),
        broken("D", "item", downloads=6),
    ]
    finding = finder(results)
    fixes = work(tmp_path, results, finding)
    assert finding.searched == ["A", "B"]
    both = {SHAPES.name, SCALARS.name}
    assert ("C", tuple(sorted(both))) in finding.evaluated
    assert {change.name for change in fixes["C"].fix.changes} == both
    assert fixes["D"].fix.changes == (SCALARS,)


def test_a_place_is_searched_on_three_models_only(tmp_path: Path) -> None:
    results = many(6, "hopeless")
    finding = finder(results)
    fixes = work(tmp_path, results, finding)
    assert finding.searched == ["M0", "M1", "M2"]
    assert finding.evaluated == []
    assert [fixes[f"M{n}"].origin for n in (2, 3)] == [FixOrigin.SEARCH, FixOrigin.PLACES]
    assert fixes["M5"].fix.status is FixStatus.NOTHING
    assert fixes["M5"].fix.detail == "its graph breaks were searched in vain on M0, M1, M2"


def test_what_is_searched_first(tmp_path: Path) -> None:
    sizes = {"Large": 900, "Small": 9, "Unknown": None}
    for name, results, order in (
        # the place that many models share
        ("a", [broken("Rare", "nonzero", downloads=10_000), *many(4, "item")], ["M0", "Rare"]),
        # of models with equal downloads the smallest
        (
            "b",
            [broken(name, "hopeless", parameters=n, key=name) for name, n in sizes.items()],
            ["Small", "Large", "Unknown"],
        ),
    ):
        (tmp_path / name).mkdir()
        finding = finder(results)
        work(tmp_path / name, results, finding)
        assert finding.searched == order


def test_fewer_breaks_are_an_improvement_that_others_can_use(tmp_path: Path) -> None:
    results = [
        *(broken(f"H{n}", "item", "hopeless", downloads=99 - n, key=f"h{n}") for n in range(4)),
        broken("Only", "item", downloads=1),
    ]
    fixes = work(tmp_path, results, finder(results))
    assert {fixes[f"H{n}"].fix.status for n in range(4)} == {FixStatus.IMPROVES}
    assert fixes["Only"].fix.status is FixStatus.VERIFIED
    assert fixes["Only"].origin is FixOrigin.KNOWN


def test_an_interrupted_command_goes_on_where_it_was(tmp_path: Path) -> None:
    results = many(3, "hopeless")

    def stops(name: str) -> None:
        if name == "M1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, results, finder(results, then=stops))
    again = finder(results)
    assert len(work(tmp_path, results, again)) == 3
    assert again.searched == ["M1", "M2"]
    path = tmp_path / run_fixes.FILE
    path.write_bytes(path.read_bytes()[:-20])  # a torn line costs its model only
    again = finder(results)
    assert len(work(tmp_path, results, again)) == 3
    assert again.searched == ["M2"]
    (note,) = run_fixes.read(tmp_path)[1]
    assert "damaged line left out" in note


@pytest.mark.parametrize(
    ("stored", "evaluations", "again"),
    [
        ({}, 5, []),
        ({"limit": "4 evaluations"}, 4, []),
        ({"limit": "4 evaluations"}, 5, ["N"]),
        ({"status": FixStatus.NO_VERDICT, "detail": "timeout"}, 4, ["N"]),
        (
            {"rejections": (Rejection(changes=("x",), reason=f"{LATE}: not within 900 s"),)},
            4,
            ["N"],
        ),
        (None, 4, ["N"]),  # another version of the search, where nothing was verified
    ],
)
def test_what_is_searched_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: dict[str, Any] | None,
    evaluations: int,
    again: list[str],
) -> None:
    results = [broken("A", "item"), broken("N", "hopeless")]
    run_fix = work(tmp_path, results, finder(results))["N"]
    if stored is None:
        monkeypatch.setattr(run_fixes, "search_digest", lambda: "other")
    fix = msgspec.structs.replace(run_fix.fix, **stored or {})
    run_fixes.append(tmp_path, msgspec.structs.replace(run_fix, fix=fix))
    finding = finder(results)
    work(tmp_path, results, finding, limits=Limits(evaluations=evaluations, seconds=9.0))
    assert finding.searched == again


def test_a_search_that_the_limit_of_all_models_ended_is_not_stored(tmp_path: Path) -> None:
    results = many(1, "hopeless")
    finding = finder(results, limit="3 seconds")
    assert work(tmp_path, results, finding, max_seconds=5.0) == {}
    assert finding.limits[0].seconds <= 5.0
    assert work(tmp_path, results, finding, max_seconds=-1.0) == {}
    assert finding.searched == ["M0"]  # after the limit nothing new is begun


def test_several_finders_work_at_a_time_until_one_fails(tmp_path: Path) -> None:
    results = [*many(8, "hopeless"), broken("A", "item", downloads=1)]
    one, other = finder(results), finder(results)
    assert len(work(tmp_path, results, one, other)) == 9
    assert sorted(one.searched + other.searched) == ["A", "M0", "M1", "M2"]

    def fails(name: str) -> None:
        raise OSError(name)

    (tmp_path / run_fixes.FILE).unlink()
    with pytest.raises(OSError, match=r"M|A"):
        work(tmp_path, results, finder(results, then=fails), finder(results, then=fails))


def test_what_cannot_be_searched_here_is_left_out_and_named() -> None:
    results = [
        broken("A", "item", target=Target(device="cuda")),
        broken("B", "item"),
        broken("C", "item", source="papers"),
        broken("D", "item", target=Target(name="xla")),
    ]
    cases, (devices, generated) = run_fixes.cases_of(results)
    assert [case.request.model.name for case in cases] == ["B"]
    assert devices.startswith("1 result on declared devices not searched")
    assert generated.startswith("1 result of generated code not searched")


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch) -> FakeFinder:
    results = [factories.result(name, breaks=tuple(breaks)) for name, breaks in BREAKS.items()]
    finding = finder(results)

    @contextlib.contextmanager
    def searching(*_: Any, **__: Any) -> Iterator[FakeFinder]:
        yield finding

    monkeypatch.setattr(of_run, "searching", searching)
    return finding


def run(*words: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(group, ["fix", *words], standalone_mode=False)


def run_all(stored: StoredRun, *words: str) -> click.testing.Result:
    return run("--all-of", "latest", "--output", str(stored.path.parent), "--jobs", "1", *words)


def test_it_prints_a_line_a_model_and_what_the_fixes_give(
    tmp_path: Path, finding: FakeFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = swept(tmp_path)
    ended = run_all(stored, "--max-evaluations", "7", "--max-model-seconds", "5")
    assert ended.return_value == 1
    assert "3 models and targets with graph breaks." in ended.stderr
    assert "1 of 3  A  verified  capture_scalar_outputs=True" in ended.stderr
    assert "Verified: this change leaves 2 more models without graph breaks" in ended.stdout
    assert "1 of 2 places removed; 2 searches" in ended.stdout
    assert {(limits.evaluations, limits.seconds) for limits in finding.limits} == {(7, 5.0)}
    # When all is known, no worker is started.
    monkeypatch.setattr(of_run, "searching", None)
    ended = run_all(stored, "--json", "--max-evaluations", "7", "--max-model-seconds", "5")
    assert "3 of them known from before" in ended.stderr
    summary = json.loads(ended.stdout)
    states = {"verified": 2, "improves": 0, "captured": 0, "nothing": 1, "no_verdict": 0}
    assert summary["states"] == {**states, "not_searched": 0}
    assert summary["run"] == stored.run.id
    assert (summary["places"], summary["removed"], summary["searches"]) == (2, 1, 2)
    assert summary["total"]["models"] == ["A", "B"]
    assert [fix["model"] for fix in summary["fixes"]] == ["A", "B", "C"]


def test_a_limit_that_leaves_models_has_a_status_of_its_own(
    tmp_path: Path, finding: FakeFinder
) -> None:
    finding.limit = "1 seconds"  # every search ends by what is left of the time
    ended = run_all(swept(tmp_path), "--max-seconds", "1")
    assert ended.return_value == 3
    assert "not searched" in ended.stdout


def test_what_an_earlier_run_verified_of_the_same_versions_is_taken_over(
    tmp_path: Path, finding: FakeFinder
) -> None:
    first = swept(tmp_path)
    run_all(first)
    second = swept(tmp_path)
    finding.searched.clear()
    ended = run_all(second, "--json")
    assert "3 of them known from before" in ended.stderr
    assert finding.searched == []
    fixes = json.loads(ended.stdout)["fixes"]
    assert {fix["reused_from"] for fix in fixes} == {first.run.id}
    scripts = [second.path / fix["script_file"] for fix in fixes if fix["script_file"]]
    texts = sorted(path.read_text() for path in scripts)
    assert texts == ["# verification\n", "# verification of B\n"]
    # A merged run keeps them, once.
    (tmp_path / "merged").mkdir()
    for _ in range(2):
        run_fixes.adopt_fixes(first.path, tmp_path / "merged")
    by_key, damaged = run_fixes.read(tmp_path / "merged")
    assert (len(by_key), damaged) == (3, ())
    assert (tmp_path / "merged" / "fixes" / "A" / "dynamo.py").exists()
    # A fix whose verification was deleted is searched again.
    for stored in Store(first.path.parent).runs():
        for path in (stored.path / "fixes").rglob("*.py"):
            path.unlink()
    run_all(swept(tmp_path))
    assert finding.searched == ["A"]
