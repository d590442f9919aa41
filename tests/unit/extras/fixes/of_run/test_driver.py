"""The work on a run with a finder that has no processes: what is searched, tried, stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.of_run.driver import FixProgress, RunSearch
from compilewatch.extras.fixes.of_run.view import FixJournal, cases_of
from compilewatch.extras.fixes.records import LATE, FixOrigin, FixStatus, Rejection, RunFix
from compilewatch.records import Result, Target
from tests.unit.extras.fixes.of_run.finding import FakeFinder, broken, change

SCALARS = change("capture_scalar_outputs=True")
SHAPES = change("capture_dynamic_output_shape_ops=True")


def finder(results: Sequence[Result], **fields: Any) -> FakeFinder:
    breaks = {r.request.model.name: tuple(b.function for b in r.breaks) for r in results}
    given = {"removing": {"item": SCALARS, "nonzero": SHAPES}, **fields}
    return FakeFinder(breaks=breaks, **given)


def work(
    tmp_path: Path, results: Sequence[Result], *finders: FakeFinder, **given: Any
) -> dict[str, RunFix]:
    journal = FixJournal(tmp_path)
    cases, _ = cases_of(results)
    fields = {"limits": Limits(evaluations=4, seconds=9.0), **given}
    search = RunSearch(cases=cases, journal=journal, progress=FixProgress(), **fields)
    search.begin()
    search.run(finders, "default")
    return {each.model: each for each in journal.read()[0].values()}


def many(number: int, *places: str) -> list[Result]:
    """Models `M0`, `M1` …, the first the most downloaded, that break at the same places."""
    return [broken(f"M{n}", *places, downloads=1000 - n, key=f"key {n}") for n in range(number)]


def test_one_model_of_a_place_is_searched_and_the_others_get_its_changes(tmp_path: Path) -> None:
    results = many(5, "item")
    finding = finder(results)
    found = work(tmp_path, results, finding)
    assert finding.searched == ["M0"]
    assert finding.evaluated == [(name, (SCALARS.name,)) for name in ("M1", "M2", "M3", "M4")]
    assert finding.verified == ["M1", "M2", "M3", "M4"]
    assert {each.fix.status for each in found.values()} == {FixStatus.VERIFIED}
    assert [found[n].origin for n in ("M0", "M1")] == [FixOrigin.SEARCH, FixOrigin.KNOWN]
    assert found["M4"].after == ("M0",)
    assert (tmp_path / found["M4"].script_file).read_text() == "# verification of M4\n"
    assert found["M4"].fix.script == ""
    assert "capture_scalar_outputs" in found["M4"].fix.changes[0].name


def test_captured_is_not_verified_and_a_search_for_the_model_itself_follows(tmp_path: Path) -> None:
    results = many(5, "item")
    finding = finder(results, unverified=frozenset({"M4"}))
    found = work(tmp_path, results, finding)
    assert finding.searched == ["M0", "M4"]
    assert found["M4"].fix.status is FixStatus.CAPTURED
    (rejected,) = found["M4"].fix.rejections
    assert rejected.reason == "results of Inductor: differ"
    assert found["M4"].fix.changes == ()
    assert found["M4"].script_file == ""


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
    found = work(tmp_path, results, finding)
    assert finding.searched == ["A", "B"]
    both = (SHAPES.name, SCALARS.name)
    assert ("C", tuple(sorted(both))) in finding.evaluated
    assert {each.name for each in found["C"].fix.changes} == set(both)
    assert found["C"].after == ("A", "B")
    assert [each.name for each in found["D"].fix.changes] == [SCALARS.name]


def test_a_place_is_searched_on_three_models_only(tmp_path: Path) -> None:
    results = many(6, "hopeless")
    finding = finder(results)
    found = work(tmp_path, results, finding)
    assert finding.searched == ["M0", "M1", "M2"]
    assert finding.evaluated == []
    assert [found[f"M{n}"].origin for n in (2, 3)] == [FixOrigin.SEARCH, FixOrigin.PLACES]
    assert found["M5"].fix.status is FixStatus.NOTHING
    assert found["M5"].fix.detail == "its graph breaks were searched in vain on M0, M1, M2"


def test_of_models_with_equal_downloads_the_smallest_is_searched_first(tmp_path: Path) -> None:
    sizes = {"Large": 900, "Small": 9, "Unknown": None}
    results = [broken(n, "hopeless", parameters=s, key=n) for n, s in sizes.items()]
    finding = finder(results)
    work(tmp_path, results, finding)
    assert finding.searched == ["Small", "Large", "Unknown"]


def test_the_places_that_many_models_share_come_first(tmp_path: Path) -> None:
    results = [broken("Rare", "nonzero", downloads=10_000), *many(4, "item")]
    finding = finder(results)
    work(tmp_path, results, finding)
    assert finding.searched == ["M0", "Rare"]


def test_fewer_breaks_are_an_improvement_that_others_can_use(tmp_path: Path) -> None:
    results = [
        *(broken(f"H{n}", "item", "hopeless", downloads=99 - n, key=f"h{n}") for n in range(4)),
        broken("Only", "item", downloads=1),
    ]
    finding = finder(results)
    found = work(tmp_path, results, finding)
    assert {found[f"H{n}"].fix.status for n in range(4)} == {FixStatus.IMPROVES}
    assert found["Only"].fix.status is FixStatus.VERIFIED
    assert found["Only"].origin is FixOrigin.KNOWN


def test_what_is_stored_is_not_done_again(tmp_path: Path) -> None:
    results = [*many(3, "item"), broken("N", "hopeless", downloads=1)]
    work(tmp_path, results, finder(results))
    again = finder(results)
    assert len(work(tmp_path, results, again)) == 4
    assert again.searched == []
    assert again.evaluated == []


def test_an_interrupted_driver_goes_on_where_it_was(tmp_path: Path) -> None:
    results = many(3, "hopeless")

    def stops(name: str) -> None:
        if name == "M1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, results, finder(results, then=stops))
    again = finder(results)
    assert len(work(tmp_path, results, again)) == 3
    assert again.searched == ["M1", "M2"]


def test_a_torn_line_costs_its_model_only(tmp_path: Path) -> None:
    results = many(3, "hopeless")
    work(tmp_path, results, finder(results))
    path = tmp_path / "fixes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = finder(results)
    assert len(work(tmp_path, results, again)) == 3
    assert again.searched == ["M2"]
    (note,) = FixJournal(tmp_path).read()[1]
    assert "damaged line left out" in note


def test_a_larger_limit_searches_again_what_a_limit_had_ended(tmp_path: Path) -> None:
    results = many(1, "hopeless")
    work(tmp_path, results, finder(results, limit="4 evaluations"))
    same, larger = finder(results), finder(results)
    work(tmp_path, results, same)
    work(tmp_path, results, larger, limits=Limits(evaluations=5, seconds=9.0))
    assert (same.searched, larger.searched) == ([], ["M0"])


def test_another_version_of_the_search_tries_again_where_nothing_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [broken("A", "item"), broken("N", "hopeless")]
    work(tmp_path, results, finder(results))
    for module in ("view", "driver"):
        name = f"compilewatch.extras.fixes.of_run.{module}.search_digest"
        monkeypatch.setattr(name, lambda: "other")
    again = finder(results)
    work(tmp_path, results, again)
    assert again.searched == ["N"]


def test_after_the_limit_of_time_nothing_new_is_begun(tmp_path: Path) -> None:
    results = many(2, "item")
    finding = finder(results)
    assert work(tmp_path, results, finding, max_seconds=-1.0) == {}
    assert finding.searched == []


def test_a_search_that_the_limit_of_all_models_ended_is_not_stored(tmp_path: Path) -> None:
    results = many(1, "hopeless")
    finding = finder(results, limit="3 seconds")
    assert work(tmp_path, results, finding, max_seconds=5.0) == {}
    assert finding.limits[0].seconds <= 5.0


def test_several_finders_work_at_a_time(tmp_path: Path) -> None:
    results = [*many(8, "hopeless"), broken("A", "item", downloads=1)]
    one, other = finder(results), finder(results)
    found = work(tmp_path, results, one, other)
    assert len(found) == 9
    assert sorted(one.searched + other.searched) == ["A", "M0", "M1", "M2"]


def test_an_error_of_one_finder_ends_the_others(tmp_path: Path) -> None:
    results = many(3, "hopeless")

    def fails(name: str) -> None:
        raise OSError(name)

    with pytest.raises(OSError, match="M"):
        work(tmp_path, results, finder(results, then=fails), finder(results, then=fails))


@pytest.mark.parametrize(
    "late",
    [
        {"status": FixStatus.NO_VERDICT, "detail": "timeout"},
        {"rejections": (Rejection(changes=("x",), reason=f"{LATE}: not within 900 s"),)},
    ],
)
def test_a_timeout_is_searched_again(tmp_path: Path, late: dict[str, Any]) -> None:
    results = many(1, "hopeless")
    work(tmp_path, results, finder(results))
    found = next(iter(FixJournal(tmp_path).read()[0].values()))
    fix = msgspec.structs.replace(found.fix, **late)
    FixJournal(tmp_path).append(msgspec.structs.replace(found, fix=fix))
    again = finder(results)
    work(tmp_path, results, again)
    assert again.searched == ["M0"]


def test_what_cannot_be_searched_here_is_left_out_and_named() -> None:
    results = [
        broken("A", "item", target=Target(device="cuda")),
        broken("B", "item"),
        broken("C", "item", source="papers"),
        broken("D", "item", target=Target(name="xla")),
    ]
    cases, notes = cases_of(results)
    assert [case.name for case in cases] == ["B"]
    devices, generated = notes
    assert devices.startswith("1 result on declared devices not searched")
    assert generated.startswith("1 result of generated code not searched")
