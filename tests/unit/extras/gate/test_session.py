"""The end of a session: the table, what is resolved, and the renewed baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from compilewatch.extras.gate.baseline import NAME, load, save
from compilewatch.extras.gate.judgement import CheckReport, JudgedBreak
from compilewatch.extras.gate.session import GateSession
from tests.unit.extras.gate.sessions import judged, known_break

KNOWN = known_break("Net.old", reason="r", text="print(x)")
NEW = judged("Net.forward", line=3, state="new")
ELSEWHERE = judged("f", file="timm/a.py", line=3, state="elsewhere")


def report(name: str, *breaks: JudgedBreak, status: str = "graph_break") -> CheckReport:
    return CheckReport(name=name, status=status, breaks=breaks, recompilations=1)


def session(
    root: Path, *reports: CheckReport, partial: frozenset[str] = frozenset()
) -> GateSession:
    by_name: dict[str, list[CheckReport]] = {}
    for each in reports:
        by_name.setdefault(each.name, []).append(each)
    return GateSession.of(root, by_name, update="pytest --compilewatch-update", partial=partial)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text("class Net:\n    def old(self, x):\n        print(x)\n")
    save(tmp_path / "compilewatch.baseline.json", [KNOWN])
    return tmp_path


def test_a_place_that_several_checks_meet_counts_once(root: Path) -> None:
    found = session(root, report("t::a", NEW), report("t::b", NEW, ELSEWHERE))
    assert list(found.lines()) == [
        "checks: 2  new: 1  known: 0  moved: 0  resolved: 1  in other packages: 1  "
        "recompilations: 2",
        "in another package: timm/a.py:3 in f: GB0170 Data-dependent branching",
        "resolved: r in Net.old, net.py: print(x)",
        "renew compilewatch.baseline.json with: pytest --compilewatch-update",
    ]


def test_a_renewed_baseline_has_what_was_met_and_says_what_changed(root: Path) -> None:
    second = judged("Net.forward", line=4, state="new")
    found = session(root, report("t::a", NEW, second))
    found.renew()
    known = load(found.path)
    assert [(each.function, each.check) for each in known] == [("Net.forward", "t::a")] * 2
    line = "GB0170 Data-dependent branching in Net.forward, net.py: if y.sum() > 0:"
    assert found.changes == [
        "compilewatch.baseline.json written: 2 known breaks",
        *[f"  + {line}"] * 2,
        "  - r in Net.old, net.py: print(x)",
    ]
    again = session(root, report("t::a", judged("Net.forward", line=3), second))
    again.renew()
    assert again.changes == ["compilewatch.baseline.json is up to date"]


def test_two_places_cannot_both_have_moved_from_one(root: Path) -> None:
    """Each check has seen one of them only."""
    moved = [judged(name, line=9, file=f"{name}.py", state="moved", known=KNOWN) for name in "ab"]
    assert session(root, report("t::a", moved[0])).twice == ()
    (line,) = session(root, report("t::a", moved[0]), report("t::b", moved[1])).twice
    assert line.startswith("2 places cannot all have moved from r in Net.old")


def test_strict_wants_a_reason_and_a_link(root: Path) -> None:
    met = judged("Net.old", "GB0059", known=KNOWN)
    met = msgspec.structs.replace(met, text=KNOWN.text)
    (line,) = session(root, report("t::a", met)).strict_problems()
    assert line == (
        "strict: compilewatch.baseline.json has no why and no link for r in Net.old, net.py: "
        "print(x)"
    )
    save(root / NAME, [replace(KNOWN, why="slow path", link="https://example.org/1")])
    assert list(session(root, report("t::a", met)).strict_problems()) == []
    assert list(session(root, report("t::a")).strict_problems()) == [
        "strict: 1 known break resolved"
    ]


def test_a_baseline_that_cannot_be_written_is_one_line(root: Path) -> None:
    found = session(root, report("t::a", NEW))
    found.path = root / "file" / "x.json"
    (root / "file").touch()
    found.renew()
    (line,) = found.problems
    assert line.startswith("the baseline is not renewed: cannot write ")


def test_a_baseline_without_breaks_is_written_once(tmp_path: Path) -> None:
    clean = session(tmp_path, report("t::a", status="pass"))
    clean.renew()
    assert clean.changes == [
        "compilewatch.baseline.json written: 0 known breaks",
        ".gitattributes written: git merges two updates line by line",
    ]
    assert load(clean.path) == ()
    clean.renew()
    assert clean.changes[2:] == ["compilewatch.baseline.json is up to date"]


@pytest.mark.parametrize("status", ["error", "oom"])
def test_a_check_without_a_verdict_resolves_nothing(root: Path, status: str) -> None:
    failed = session(root, report("t::a", status=status))
    assert failed.resolved == ()
    failed.renew()
    assert KNOWN in load(failed.path)


def test_a_test_that_failed_may_not_have_made_all_of_its_checks(root: Path) -> None:
    found = session(root, report("t::a"), partial=frozenset({"t::a"}))
    assert found.resolved == ()
    assert session(root, report("t::a")).resolved == (KNOWN,)


def test_a_damaged_baseline_is_left_to_the_checks(root: Path) -> None:
    (root / "compilewatch.baseline.json").write_text("{")
    found = session(root, report("t::a"))
    assert found.counts()["known"] == 0
    found.renew()
    assert (root / "compilewatch.baseline.json").read_text() == "{"
