"""What the report, the commands of the core and the metrics see of the fixes of a run."""

from pathlib import Path

import msgspec
import pytest

from compilewatch.api.publish import stored_fix_for, stored_fixes, view
from compilewatch.errors import StoreError
from compilewatch.extras.fixes import run_fixes
from compilewatch.extras.fixes.records import Fix, FixChange, FixStatus, FixTrial, Rejection
from compilewatch.records import GraphBreak
from compilewatch.report import html
from compilewatch.sinks.prometheus import exposition
from compilewatch.store import Store, StoredRun
from tests import factories
from tests.unit.extras.fixes.finding import SCALARS, finder
from tests.unit.extras.fixes.test_of_run import BREAKS, HINT, HOPELESS, ITEM, swept, work


@pytest.fixture
def searched(tmp_path: Path) -> StoredRun:
    stored = swept(tmp_path)
    results = [factories.result(name, breaks=tuple(breaks)) for name, breaks in BREAKS.items()]
    work(stored.path, stored.results(), finder(results))
    return stored


def test_a_run_without_the_file_has_no_part_and_no_metric(tmp_path: Path) -> None:
    stored = swept(tmp_path)
    seen = view(Store(tmp_path / "outputs"), stored)
    assert seen.fixes == ()
    assert b"compilewatch_fix" not in exposition(seen)
    assert stored_fixes(stored) == ((), ())


def test_the_report_shows_a_verified_fix_instead_of_the_hints(searched: StoredRun) -> None:
    (failed,) = [f for f in run_fixes.read(searched.path)[0].values() if f.model == "C"]
    (trial,) = failed.fix.trials
    trial = msgspec.structs.replace(trial, changes=(SCALARS.name,), error="Guard: x")
    fix = msgspec.structs.replace(failed.fix, breaks=(HOPELESS,), trials=(trial,))
    run_fixes.append(searched.path, msgspec.structs.replace(failed, fix=fix))
    seen = view(Store(searched.path.parent), searched)
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
    assert "tried: compiler error Guard: x" in other
    reasons = files["reasons.html"]
    assert "capture_scalar_outputs=True (2 of 2 models)" in reasons
    assert "Verified: this change leaves 2 more models without graph breaks" in reasons


def test_the_outcome_of_a_hint() -> None:
    both = (SCALARS.name, "x_y=1")
    part_of_fix: tuple[FixChange, ...] = (SCALARS,)
    for status, breaks, tried, changes, outcome in (
        ("graph_break", 2, both[:1], (), "2 graph breaks"),
        ("pass", 0, both[:1], (), "one graph, but the script rejects it: results: differ"),
        ("pass", 0, both, (), f"one graph, with {SCALARS.name} and x_y=1, but not verified"),
        ("graph_break", 1, both[:1], part_of_fix, ""),  # a part of the fix did not fail
    ):
        trial = FixTrial(changes=tried, status=status, detail="d", breaks=breaks, seconds=1.0)
        fix = Fix(
            model="C",
            target="dynamo",
            status=FixStatus.NOTHING,
            breaks=(HOPELESS,),
            trials=(trial,),
            rejections=(Rejection(changes=both[:1], reason="results: differ"),),
            changes=changes,
        )
        assert run_fixes.tried_hints(fix) == ({HINT: outcome} if outcome else {})


def test_captured_but_not_verified_is_no_fix_and_says_why(searched: StoredRun) -> None:
    run_fix = next(iter(run_fixes.read(searched.path)[0].values()))
    rejected = Rejection(changes=("x",), reason="results of Inductor: differ")
    fix = Fix(model="A", target="dynamo", status=FixStatus.CAPTURED, rejections=(rejected,))
    shown = run_fixes.model_fix(msgspec.structs.replace(run_fix, fix=fix))
    assert not shown.verified
    assert shown.detail == "captured, not verified: results of Inductor: differ"


def test_the_metrics_count_models_by_state_and_kind_of_change(searched: StoredRun) -> None:
    def values() -> dict[tuple[str, ...], float]:
        part, notes = run_fixes.view_of_run(searched, None)
        assert notes == ()
        samples = {(name, *labels): value for name, labels, value in run_fixes.samples(part)}
        assert {name for name, *_ in samples} <= {each.name for each in run_fixes.DEFINITIONS}
        return samples

    where = ("dynamo", "eval")
    samples = values()
    assert samples["compilewatch_fixes_models", "verified", *where] == 2
    assert samples["compilewatch_fixes_models", "nothing", *where] == 1
    assert samples["compilewatch_fixes_models", "not_searched", *where] == 0
    assert samples["compilewatch_fix_changes_models", "setting", *where] == 2
    assert samples["compilewatch_fix_changes_models", "rewrite", *where] == 0
    text = exposition(view(Store(searched.path.parent), searched)).decode()
    line = 'compilewatch_fixes_models{fix_state="verified",mode="eval",source="library",'
    assert line in text
    path = searched.path / run_fixes.FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    assert values()["compilewatch_fixes_models", "not_searched", *where] == 2


def test_a_damaged_line_is_a_note_and_a_file_of_a_newer_program_has_no_fix(
    searched: StoredRun,
) -> None:
    path = searched.path / run_fixes.FILE
    complete = path.read_bytes()
    path.write_bytes(complete + b'{"key": "half')
    assert "incomplete last line" in run_fixes.view_of_run(searched, None)[1][0]
    fixes, notes = run_fixes.fixes_of_run(searched)
    assert (len(fixes), len(notes)) == (3, 1)
    path.write_bytes(complete.replace(b'"schema_version":1', b'"schema_version":99'))
    with pytest.raises(StoreError, match="newer compilewatch"):
        run_fixes.fixes_of_run(searched)
    stored, notes = stored_fixes(searched)
    assert stored == ()
    assert "newer compilewatch" in notes[0]


def test_a_stored_fix_is_found_for_the_same_graph_breaks(searched: StoredRun) -> None:
    store = Store(searched.path.parent)

    def found(name: str, *breaks: GraphBreak) -> str | None:
        fix = stored_fix_for(store, factories.result(name, breaks=breaks))
        return None if fix is None else f"{fix.run} {fix.model}"

    assert found("B", ITEM) == f"{searched.run.id} B"
    assert found("Other", ITEM, HOPELESS) in {f"{searched.run.id} {n}" for n in "AB"}
    assert found("C", HOPELESS) is None
    assert found("C") is None
