"""What the report, the commands of the core and the metrics see of the fixes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from compilewatch.api.publish import stored_fix_for, stored_fixes, view
from compilewatch.errors import StoreError
from compilewatch.extras.fixes.of_run.command import exit_status, summarised, summary_text
from compilewatch.extras.fixes.of_run.view import (
    DEFINITIONS,
    FILE,
    FixJournal,
    cases_of,
    fixes_of_run,
    model_fix,
    samples,
    tried_hints,
    view_of_run,
)
from compilewatch.extras.fixes.records import Fix, FixStatus, FixTrial, Rejection
from compilewatch.records import GraphBreak, Result
from compilewatch.report import html
from compilewatch.sinks.prometheus import exposition
from compilewatch.store import Store, StoredRun
from tests import factories
from tests.fake_launcher import FakeLauncher
from tests.sweeping import breaking, run_sweep
from tests.unit.cli.test_tables import piped
from tests.unit.extras.fixes.of_run.finding import FakeFinder
from tests.unit.extras.fixes.of_run.test_driver import SCALARS, work

HINT = "Set `torch._dynamo.config.capture_scalar_outputs = True`"
ITEM = factories.graph_break("item", hints=(HINT,))
HOPELESS = factories.graph_break("hopeless", "GB0025", hints=("Restructure the code.", HINT))
NAMES = ("A", "B", "C")
BREAKS: dict[str, Sequence[GraphBreak]] = {"A": (ITEM,), "B": (ITEM,), "C": (HOPELESS,)}


def swept(tmp_path: Path) -> StoredRun:
    """A stored run in which A and B break at one place and C at another."""

    launcher = FakeLauncher(answers=breaking(BREAKS))
    specs = [factories.spec(name, downloads=100) for name in NAMES]
    made = run_sweep(tmp_path, launcher, specs=specs)
    return Store(tmp_path / "outputs").open(made.run.id)


def searched(tmp_path: Path) -> StoredRun:
    stored = swept(tmp_path)
    breaks = {name: tuple(each.function for each in found) for name, found in BREAKS.items()}
    finder = FakeFinder(breaks=breaks, removing={"item": SCALARS})
    work(stored.path, stored.results(), finder)
    return stored


def test_a_run_without_the_file_has_no_part_and_no_metric(tmp_path: Path) -> None:
    stored = swept(tmp_path)
    seen = view(Store(tmp_path / "outputs"), stored)
    assert seen.fixes == ()
    assert b"compilewatch_fix" not in exposition(seen)
    assert stored_fixes(stored) == ((), ())


def test_the_report_shows_a_verified_fix_instead_of_the_hints(tmp_path: Path) -> None:
    seen = view(Store(tmp_path / "outputs"), searched(tmp_path))
    files = {name: data.decode() for name, data in html.render(seen)}
    page = files["models/A.html"]
    assert "<h5>Verified fix</h5>" in page
    assert "Suggested fixes" not in page
    assert page.index("Code to paste") < page.index("Hints of PyTorch") < page.index(HINT[:3])
    assert 'href="../../fixes/A/dynamo.py"' in page
    other = files["models/C.html"]
    assert "Verified fix" not in other
    assert "Suggested fixes" in other
    assert "Search for a fix: nothing: nothing that was tried is verified" in other
    reasons = files["reasons.html"]
    assert "capture_scalar_outputs=True (2 of 2 models)" in reasons
    assert "Verified: this change leaves 2 more models without graph breaks" in reasons


def test_a_hint_that_failed_says_what_it_led_to(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    found = FixJournal(stored.path).read()[0]
    (failed,) = [each for each in found.values() if each.model == "C"]
    trial = FixTrial(
        changes=(SCALARS.name,),
        status="error",
        detail="",
        breaks=None,
        seconds=1.0,
        error="GuardOnDataDependentSymNode: Could not guard",
    )
    fix = msgspec.structs.replace(failed.fix, breaks=(HOPELESS,), trials=(trial,))
    assert tried_hints(fix) == {HINT: f"compiler error {trial.error}"}
    FixJournal(stored.path).append(msgspec.structs.replace(failed, fix=fix))
    seen = view(Store(tmp_path / "outputs"), stored)
    page = dict(html.render(seen))["models/C.html"].decode()
    assert "tried: compiler error GuardOnDataDependentSymNode: Could not guard" in page


@pytest.mark.parametrize(
    ("status", "breaks", "changes", "said"),
    [
        ("graph_break", 2, (SCALARS.name,), "2 graph breaks"),
        ("pass", 0, (SCALARS.name,), "one graph, but the script rejects it: results: differ"),
        ("pass", 0, (SCALARS.name, "x_y=1"), f"one graph, with {SCALARS.name} and x_y=1, but not"),
    ],
)
def test_the_outcome_of_a_hint(
    status: str, breaks: int, changes: tuple[str, ...], said: str
) -> None:
    trial = FixTrial(changes=changes, status=status, detail="d", breaks=breaks, seconds=1.0)
    rejected = Rejection(changes=(SCALARS.name,), reason="results: differ")
    fix = Fix(
        model="C",
        target="dynamo",
        status=FixStatus.NOTHING,
        breaks=(HOPELESS,),
        trials=(trial,),
        rejections=(rejected,),
    )
    assert tried_hints(fix)[HINT].startswith(said)


def test_a_hint_that_is_part_of_the_fix_did_not_fail(tmp_path: Path) -> None:
    del tmp_path
    trial = FixTrial(
        changes=(SCALARS.name,), status="graph_break", detail="", breaks=1, seconds=1.0
    )
    fix = Fix(
        model="C",
        target="dynamo",
        status=FixStatus.VERIFIED,
        breaks=(HOPELESS,),
        trials=(trial,),
        changes=(SCALARS,),
    )
    assert tried_hints(fix) == {}


def test_captured_but_not_verified_is_no_fix_and_says_why(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    found = next(iter(FixJournal(stored.path).read()[0].values()))
    rejected = Rejection(changes=("x",), reason="results of Inductor: differ")
    fix = Fix(model="A", target="dynamo", status=FixStatus.CAPTURED, rejections=(rejected,))
    shown = model_fix(msgspec.structs.replace(found, fix=fix))
    assert not shown.verified
    assert shown.detail == "captured, not verified: results of Inductor: differ"


def test_the_metrics_count_models_by_state_and_kind_of_change(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    part, notes = view_of_run(stored, None)
    assert notes == ()
    values = {(name, *labels): value for name, labels, value in samples(part)}
    where = ("dynamo", "eval")
    assert values["compilewatch_fixes_models", "verified", *where] == 2
    assert values["compilewatch_fixes_models", "nothing", *where] == 1
    assert values["compilewatch_fixes_models", "not_searched", *where] == 0
    assert values["compilewatch_fix_changes_models", "setting", *where] == 2
    assert values["compilewatch_fix_changes_models", "rewrite", *where] == 0
    assert {name for name, *_ in values} <= {each.name for each in DEFINITIONS}
    text = exposition(view(Store(tmp_path / "outputs"), stored)).decode()
    line = 'compilewatch_fixes_models{fix_state="verified",mode="eval",source="library",'
    assert line in text


def test_models_that_no_search_came_to_are_counted_too(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    path = stored.path / FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    part, _ = view_of_run(stored, None)
    values = {labels[0]: n for name, labels, n in samples(part) if name.endswith("fixes_models")}
    assert values["not_searched"] == 2
    cases, more = cases_of(stored.results())
    summary = summarised(stored, cases, more)
    assert exit_status(summary) == 3
    assert "not searched" in piped(summary_text(summary))


def test_the_summary_counts_places_searches_and_what_they_give(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    cases, notes = cases_of(stored.results())
    found = summarised(stored, cases, notes)
    assert (found.places, found.removed, found.searches) == (2, 1, 2)
    assert found.states[FixStatus.VERIFIED] == 2
    assert exit_status(found) == 1
    text = piped(summary_text(found))
    assert "1 of 2 places removed; 2 searches" in text
    assert "Verified: this change leaves 2 more models without graph breaks" in text
    assert msgspec.json.decode(msgspec.json.encode(found))["states"]["verified"] == 2


def test_a_damaged_line_is_a_note_of_the_view(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    with (stored.path / FILE).open("ab") as file:
        file.write(b'{"key": "half')
    assert "incomplete last line" in view_of_run(stored, None)[1][0]
    fixes, notes = fixes_of_run(stored)
    assert (len(fixes), len(notes)) == (3, 1)


def test_a_file_of_a_newer_program_is_a_note_and_no_fix(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    path = stored.path / FILE
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":99'))
    with pytest.raises(StoreError, match="newer compilewatch"):
        fixes_of_run(stored)
    fixes, notes = stored_fixes(stored)
    assert fixes == ()
    assert "newer compilewatch" in notes[0]


def test_a_stored_fix_is_found_for_the_same_graph_breaks(tmp_path: Path) -> None:
    stored = searched(tmp_path)
    store = Store(tmp_path / "outputs")

    def found(name: str, *breaks: object) -> str | None:
        result: Result = factories.result(name, breaks=breaks)  # type: ignore[arg-type]
        fix = stored_fix_for(store, result)
        return None if fix is None else f"{fix.run} {fix.model}"

    assert found("B", ITEM) == f"{stored.run.id} B"
    assert found("Other", ITEM, HOPELESS) in {f"{stored.run.id} {n}" for n in "AB"}
    assert found("C", HOPELESS) is None
    assert found("C") is None
