"""The end of a session: the table, what is resolved, the renewed baseline, and files for others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.extras.gate.baseline import NAME, KnownBreak, load, save
from compilewatch.extras.gate.judgement import CheckReport, JudgedBreak, State
from compilewatch.extras.gate.session import GateSession, error_commands, markdown, write_outputs
from compilewatch.records import StackFrame
from tests import factories
from tests.schemas import sarif_errors

SOURCE = ("def helper(self, y):", "    if y.sum() > 0:  # ```", "        y = y * 2")


def judged(
    function: str = "Net.helper", code: str = "GB0170", state: State = "known", **fields: Any
) -> JudgedBreak:
    file, line = fields.pop("file", "net.py"), fields.pop("line", 12)
    frames = (("forward", 9), ("f", line))
    stack = tuple(StackFrame(file=file, line=number, function=name) for name, number in frames)
    place = {"file": file, "line": line, "user_stack": stack}
    graph_break = factories.graph_break(
        function, code, source=SOURCE, source_start=line - 1, **place
    )
    values = {"statement_line": line, "text": "if y.sum() > 0:"} | fields
    return JudgedBreak(**msgspec.structs.asdict(graph_break), state=state, **values)


def known_break(function: str, **fields: str) -> KnownBreak:
    values = {"code": "GB0059", "file": "net.py", "text": "if y.sum() > 0:", "check": "t::a"}
    return KnownBreak(function=function, **values | fields)


KNOWN = known_break("Net.old", reason="r", text="print(x)")
NEW = judged("Net.forward", line=3, state="new")
ELSEWHERE = judged("f", file="timm/a.py", line=3, state="elsewhere")


def report(name: str, *breaks: JudgedBreak, status: str = "graph_break") -> CheckReport:
    return CheckReport(name=name, status=status, breaks=breaks, recompilations=1)


def session(
    root: Path, *reports: CheckReport, partial: frozenset[str] = frozenset()
) -> GateSession:
    by_name = {name: [r for r in reports if r.name == name] for name in (r.name for r in reports)}
    return GateSession(root, by_name, update="pytest --compilewatch-update", partial=partial)


def example(root: Path) -> GateSession:
    """A session with a new, a known and a resolved break, one of a package, and a problem."""
    known = known_break("Net.known")
    save(root / NAME, [known, known_break("Net.gone", reason="GB0059 a|b")])
    new = judged(state="new")
    elsewhere = judged("f", "GB0059", "elsewhere", file="timm/a.py")
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


def test_a_check_without_a_verdict_resolves_nothing(root: Path) -> None:
    for status in ("error", "oom"):
        failed = session(root, report("t::a", status=status))
        assert failed.resolved == ()
        failed.renew()
        assert KNOWN in load(failed.path)


def test_a_test_that_failed_may_not_have_made_all_of_its_checks(root: Path) -> None:
    assert session(root, report("t::a"), partial=frozenset({"t::a"})).resolved == ()
    assert session(root, report("t::a")).resolved == (KNOWN,)


def test_a_baseline_that_is_damaged_or_cannot_be_written_is_left(root: Path) -> None:
    ended = session(root, report("t::a", NEW))
    ended.path = root / "file" / "x.json"
    (root / "file").touch()
    _, (line,) = ended.end(update=True, strict=False)
    assert line.startswith("the baseline is not renewed: cannot write ")
    (root / NAME).write_text("{")  # as each check has said
    ended = session(root, report("t::a"))
    ended.renew()
    assert (ended.counts()["known"], (root / NAME).read_text()) == (0, "{")


def run_of(path: Path) -> Any:
    log = json.loads(path.read_text())
    assert sarif_errors(log) == []
    (run,) = log["runs"]
    return run


def test_sarif_has_each_break_once_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    ended, path = example(tmp_path), tmp_path / "breaks.sarif"
    (tmp_path / "file").touch()
    (line,) = write_outputs(ended, sarif=str(path), summary=str(tmp_path / "file" / "x"))
    assert line.endswith("cannot be written: File exists")  # and the others are written
    run = run_of(path)
    states = [
        (r["level"], r.get("baselineState"), r["properties"]["checks"]) for r in run["results"]
    ]
    assert sorted(states, key=str) == [
        ("error", "new", ["t::a", "t::b"]),
        ("note", None, ["t::a"]),
        ("warning", "unchanged", ["t::a"]),
    ]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "t::b: captured share 75.0%"


def test_the_summary_shows_new_code_and_lets_none_of_it_be_markup(tmp_path: Path) -> None:
    text = markdown(example(tmp_path))
    fenced = text[text.index("````text") : text.index("````", text.index("````text") + 5)]
    assert "  > 12 |     if y.sum() > 0:  # ```\n" in fenced
    assert "| 2 | 1 | 1 | 0 | 1 | 1 | 2 |" in text
    assert "resolved: GB0059 a|b in Net.gone, net.py" in text
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
    places = [r["locations"][0]["physicalLocation"] for r in run_of(sarif)["results"]]
    uris = {place["artifactLocation"]["uri"] for place in places}
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
