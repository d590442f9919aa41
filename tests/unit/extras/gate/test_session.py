"""The end of a session: the table, what is resolved, the renewed baseline, and files for others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from compilewatch.extras.gate.baseline import NAME, KnownBreak, load, save
from compilewatch.extras.gate.judgement import CheckReport, JudgedBreak, State
from compilewatch.extras.gate.session import (
    GateSession,
    error_commands,
    markdown,
    write_outputs,
)
from compilewatch.records import StackFrame
from tests.schemas import sarif_errors

SOURCE = ("def helper(self, y):", "    if y.sum() > 0:  # ```", "        y = y * 2")


def judged(
    function: str = "Net.helper",
    code: str = "GB0170",
    *,
    file: str = "net.py",
    line: int = 12,
    state: State = "known",
    known: KnownBreak | None = None,
) -> JudgedBreak:
    return JudgedBreak(
        state=state,
        file=file,
        line=line,
        statement_line=line,
        function=function,
        text="if y.sum() > 0:",
        known=known,
        code=code,
        gb_id=code,
        gb_type="Data-dependent branching",
        reason="why",
        fingerprint="0123456789ab",
        user_stack=(
            StackFrame(file=file, line=9, function="forward"),
            StackFrame(file=file, line=line, function="f"),
        ),
        source_start=line - 1,
        source=SOURCE,
    )


def known_break(function: str, code: str = "GB0059", **fields: str) -> KnownBreak:
    values = {"file": "net.py", "text": "if y.sum() > 0:", "check": "t::a"} | fields
    return KnownBreak(function=function, code=code, **values)


KNOWN = known_break("Net.old", reason="r", text="print(x)")
NEW = judged("Net.forward", line=3, state="new")
ELSEWHERE = judged("f", file="timm/a.py", line=3, state="elsewhere")


def report(name: str, *breaks: JudgedBreak, status: str = "graph_break") -> CheckReport:
    return CheckReport(name=name, status=status, breaks=breaks, recompilations=1)


def session(
    root: Path, *reports: CheckReport, partial: frozenset[str] = frozenset()
) -> GateSession:
    by_name: dict[str, list[CheckReport]] = {}
    for one in reports:
        by_name.setdefault(one.name, []).append(one)
    return GateSession.of(root, by_name, update="pytest --compilewatch-update", partial=partial)


def example(root: Path) -> GateSession:
    """A session with a new, a known and a resolved break, one of a package, and a problem."""
    known = known_break("Net.known")
    save(root / NAME, [known, known_break("Net.gone", reason="GB0059 a|b")])
    new = judged(state="new")
    elsewhere = judged("f", "GB0059", file="timm/a.py", state="elsewhere")
    breaks = (new, judged("Net.known", "GB0059", known=known), elsewhere)
    failed = msgspec.structs.replace(report("t::b", new), problems=("captured share 75.0%",))
    return session(root, report("t::a", *breaks), failed)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text("class Net:\n    def old(self, x):\n        print(x)\n")
    save(tmp_path / NAME, [KNOWN])
    return tmp_path


def test_a_place_that_several_checks_meet_counts_once(root: Path) -> None:
    ended = session(root, report("t::a", NEW), report("t::b", NEW, ELSEWHERE))
    assert list(ended.lines()) == [
        "checks: 2  new: 1  known: 0  moved: 0  resolved: 1  in other packages: 1  "
        "recompilations: 2",
        "in another package: timm/a.py:3 in f: GB0170 Data-dependent branching",
        "resolved: r in Net.old, net.py: print(x)",
        "renew compilewatch.baseline.json with: pytest --compilewatch-update",
    ]


def test_a_renewed_baseline_has_what_was_met_and_says_what_changed(root: Path) -> None:
    second = judged("Net.forward", line=4, state="new")
    updated = session(root, report("t::a", NEW, second))
    updated.renew()
    assert [(k.function, k.check) for k in load(updated.path)] == [("Net.forward", "t::a")] * 2
    line = "GB0170 Data-dependent branching in Net.forward, net.py: if y.sum() > 0:"
    assert updated.changes == [
        "compilewatch.baseline.json written: 2 known breaks",
        *[f"  + {line}"] * 2,
        "  - r in Net.old, net.py: print(x)",
    ]
    again = session(root, report("t::a", judged("Net.forward", line=3), second))
    again.renew()
    assert again.changes == ["compilewatch.baseline.json is up to date"]


def test_a_baseline_without_breaks_is_written_once(tmp_path: Path) -> None:
    clean = session(tmp_path, report("t::a", status="pass"))
    clean.renew()
    assert clean.changes == [
        "compilewatch.baseline.json written: 0 known breaks",
        ".gitattributes written: git merges two updates line by line",
    ]
    assert load(clean.path) == ()


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
    assert line.startswith("strict: compilewatch.baseline.json has no why and no link for r in ")
    save(root / NAME, [replace(KNOWN, why="slow path", link="https://example.org/1")])
    assert list(session(root, report("t::a", met)).strict_problems()) == []
    (line,) = session(root, report("t::a")).strict_problems()
    assert line == "strict: 1 known break resolved"


def test_a_baseline_that_cannot_be_written_is_one_line(root: Path) -> None:
    ended = session(root, report("t::a", NEW))
    ended.path = root / "file" / "x.json"
    (root / "file").touch()
    _, (line,) = ended.end(update=True, strict=False)
    assert line.startswith("the baseline is not renewed: cannot write ")


@pytest.mark.parametrize("status", ["error", "oom"])
def test_a_check_without_a_verdict_resolves_nothing(root: Path, status: str) -> None:
    failed = session(root, report("t::a", status=status))
    assert failed.resolved == ()
    failed.renew()
    assert KNOWN in load(failed.path)


def test_a_test_that_failed_may_not_have_made_all_of_its_checks(root: Path) -> None:
    assert session(root, report("t::a"), partial=frozenset({"t::a"})).resolved == ()
    assert session(root, report("t::a")).resolved == (KNOWN,)


def test_a_damaged_baseline_is_left_to_the_checks(root: Path) -> None:
    (root / NAME).write_text("{")
    ended = session(root, report("t::a"))
    assert ended.counts()["known"] == 0
    ended.renew()
    assert (root / NAME).read_text() == "{"


@pytest.fixture
def outside_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("outside_of_github")
def test_sarif_has_each_break_once_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, path = example(tmp_path), tmp_path / "breaks.sarif"
    assert list(write_outputs(ended, sarif=str(path))) == []
    log = json.loads(path.read_text())
    assert sarif_errors(log) == []
    (run,) = log["runs"]
    states = [
        (r["level"], r.get("baselineState"), r["properties"]["checks"]) for r in run["results"]
    ]
    assert sorted(states, key=str) == [
        ("error", "new", ["t::a", "t::b"]),
        ("none", "absent", ["t::a"]),
        ("note", None, ["t::a"]),
        ("warning", "unchanged", ["t::a"]),
    ]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "t::b: captured share 75.0%"
    # GitHub ignores the state, and would show a resolved break as an open alert.
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    list(write_outputs(ended, sarif=str(path)))
    (run,) = json.loads(path.read_text())["runs"]
    assert {r.get("baselineState") for r in run["results"]} == {"new", "unchanged", None}


def test_the_summary_shows_new_code_and_lets_none_of_it_be_markup(tmp_path: Path) -> None:
    text = markdown(example(tmp_path))
    assert (
        "| checks | new | known | moved | resolved | in other packages | recompilations |" in text
    )
    assert "| 2 | 1 | 1 | 0 | 1 | 1 | 2 |" in text
    assert "**New:** [GB0170](" in text
    fenced = text[text.index("````text") : text.index("````", text.index("````text") + 5)]
    assert "net.py:12 in Net.helper: GB0170 Data-dependent branching" in fenced
    assert "  > 12 |     if y.sum() > 0:  # ```" in fenced
    assert "    net.py:9 in forward" in fenced
    assert "resolved: GB0059 a|b in Net.gone, net.py" in text
    assert "in another package: timm/a.py:12 in f: GB0059" in text
    assert "captured share 75.0%" in text
    failed = CheckReport(name="test_x[<a|b>]", status="error", problems=("p",))
    assert "**test\\_x\\[&lt;a\\|b>\\]**" in markdown(session(tmp_path, failed))


def test_paths_of_files_count_from_the_top_of_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    project, page = tmp_path / "python" / "mypkg", tmp_path / "summary.md"
    project.mkdir(parents=True)
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    ended, sarif, quality = example(project), tmp_path / "b.sarif", tmp_path / "out" / "q.json"
    list(write_outputs(ended, sarif=str(sarif), code_quality=str(quality)))
    assert page.read_text().startswith("before\n### compilewatch")
    (run,) = json.loads(sarif.read_text())["runs"]
    uris = {
        r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]
    }
    assert uris == {"python/mypkg/net.py", "timm/a.py"}
    (entry,) = json.loads(quality.read_text())
    assert entry["location"] == {"path": "python/mypkg/net.py", "lines": {"begin": 12}}
    assert (entry["severity"], len(entry["fingerprint"])) == ("major", 64)
    assert list(error_commands(ended, {})) == []
    (line,) = error_commands(ended, {"GITHUB_ACTIONS": "true"})
    assert line == (
        "::error file=python/mypkg/net.py,line=12,title=New graph break::GB0170 Data-dependent "
        "branching in Net.helper%0Aif y.sum() > 0:  # ```"
    )


@pytest.mark.usefixtures("outside_of_github")
def test_a_file_that_cannot_be_written_is_said_and_the_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    names = {"sarif": str(tmp_path / "file" / "x"), "summary": str(tmp_path / "s.md")}
    (line,) = write_outputs(example(tmp_path), **names)
    assert line.endswith("cannot be written: File exists")
    assert (tmp_path / "s.md").exists()
