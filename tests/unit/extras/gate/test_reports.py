"""What a session leaves for code scanning, GitHub and GitLab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compilewatch.extras.gate.reports import Outputs, error_commands, markdown
from tests.schemas import sarif_errors
from tests.unit.extras.gate.sessions import example


@pytest.fixture(autouse=True)
def outside_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def test_sarif_has_each_break_once_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, path = example(tmp_path), tmp_path / "found.sarif"
    assert list(Outputs(sarif=str(path)).write(session)) == []
    log = json.loads(path.read_text())
    assert sarif_errors(log) == []
    (run,) = log["runs"]
    states = {
        (each["level"], each.get("baselineState"), each["properties"]["checks"][0])
        for each in run["results"]
    }
    assert len(run["results"]) == 4
    assert states == {
        ("error", "new", "t::a"),
        ("warning", "unchanged", "t::a"),
        ("note", None, "t::a"),
        ("none", "absent", "t::a"),
    }
    assert run["results"][0]["properties"]["checks"] == ["t::a", "t::b"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "t::b: captured share 75.0%"
    # GitHub ignores the state, and would show a resolved break as an open alert.
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    list(Outputs(sarif=str(path)).write(session))
    (run,) = json.loads(path.read_text())["runs"]
    assert {each.get("baselineState") for each in run["results"]} == {"new", "unchanged", None}


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


def test_a_job_of_github_gets_summary_and_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, page = example(tmp_path), tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    list(Outputs().write(session))
    assert page.read_text().startswith("before\n### compilewatch")
    assert list(error_commands(session, {})) == []
    (line,) = error_commands(session, {"GITHUB_ACTIONS": "true"})
    assert line == (
        "::error file=net.py,line=12,title=New graph break::GB0170 Data-dependent branching in "
        "Net.helper%0Aif y.sum() > 0:  # ```"
    )


def test_code_quality_has_the_new_breaks(tmp_path: Path) -> None:
    path = tmp_path / "out" / "quality.json"
    list(Outputs(code_quality=str(path)).write(example(tmp_path)))
    (entry,) = json.loads(path.read_text())
    assert entry["location"] == {"path": "net.py", "lines": {"begin": 12}}
    assert entry["severity"] == "major"
    assert len(entry["fingerprint"]) == 64


def test_a_file_that_cannot_be_written_is_said_and_the_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outputs = Outputs(sarif=str(tmp_path / "file" / "x"), summary=str(tmp_path / "s.md"))
    (line,) = outputs.write(example(tmp_path))
    assert line.endswith("cannot be written: File exists")
    assert (tmp_path / "s.md").exists()


def test_paths_count_from_the_top_of_the_clone(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    project = tmp_path / "python" / "mypkg"
    project.mkdir(parents=True)
    session, path = example(project), tmp_path / "found.sarif"
    list(Outputs(sarif=str(path)).write(session))
    (run,) = json.loads(path.read_text())["runs"]
    physical = run["results"][0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "python/mypkg/net.py"
    (line,) = error_commands(session, {"GITHUB_ACTIONS": "true"})
    assert "file=python/mypkg/net.py,line=12" in line
