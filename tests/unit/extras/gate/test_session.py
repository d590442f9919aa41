"""The end of a session: the table, what is resolved, and the renewed baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.gate.baseline import KnownBreak, load, save
from compilewatch.extras.gate.findings import BreakPlace, CheckReport, Finding
from compilewatch.extras.gate.session import GateSession

KNOWN = KnownBreak(file="net.py", function="Net.old", code="GB0059", reason="r", checks=("t::a",))


def finding(function: str = "Net.forward", *, line: int = 3, own: bool = True) -> Finding:
    return Finding(
        own=own,
        new=own,
        place=BreakPlace(file="net.py" if own else "timm/a.py", line=line, function=function),
        code="GB0170",
        reason="GB0170 Data-dependent branching",
        fingerprint="0123456789ab",
    )


def report(name: str, *findings: Finding, status: str = "graph_break") -> CheckReport:
    return CheckReport(name=name, status=status, findings=findings, recompilations=1)


def session(
    root: Path, *reports: CheckReport, partial: frozenset[str] = frozenset()
) -> GateSession:
    by_name: dict[str, list[CheckReport]] = {}
    for each in reports:
        by_name.setdefault(each.name, []).append(each)
    return GateSession.of(root, by_name, update="pytest --compilewatch-update", partial=partial)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save(tmp_path / "compilewatch.baseline.json", [KNOWN])
    return tmp_path


def test_a_place_that_several_checks_meet_counts_once(root: Path) -> None:
    found = session(root, report("t::a", finding()), report("t::b", finding(), finding(own=False)))
    first, *others = found.lines()
    assert first == (
        "checks: 2  new: 1  known: 0  resolved: 1  in other packages: 1  recompilations: 2"
    )
    assert others == [
        "resolved: r in Net.old, net.py",
        "renew compilewatch.baseline.json with: pytest --compilewatch-update",
    ]


def test_a_renewed_baseline_has_what_was_met_and_says_what_changed(root: Path) -> None:
    found = session(root, report("t::a", finding(), finding(line=4)))
    found.renew()
    (known,) = load(found.path).values()
    assert (known.function, known.places, known.checks) == ("Net.forward", 2, ("t::a",))
    assert found.changes == [
        "compilewatch.baseline.json written: 1 known break",
        "  + GB0170 Data-dependent branching in Net.forward, net.py",
        "  - r in Net.old, net.py",
    ]
    again = session(root, report("t::a", finding(), finding(line=4)))
    again.renew()
    assert again.changes == ["compilewatch.baseline.json is up to date"]


def test_a_baseline_without_breaks_is_written_once(tmp_path: Path) -> None:
    clean = session(tmp_path, report("t::a", status="pass"))
    clean.renew()
    assert clean.changes == ["compilewatch.baseline.json written: 0 known breaks"]
    assert load(clean.path) == {}
    clean.renew()
    assert clean.changes[1:] == ["compilewatch.baseline.json is up to date"]


@pytest.mark.parametrize("status", ["error", "oom"])
def test_a_check_without_a_verdict_resolves_nothing(root: Path, status: str) -> None:
    failed = session(root, report("t::a", status=status))
    assert failed.resolved == ()
    failed.renew()
    assert KNOWN in load(failed.path).values()


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
