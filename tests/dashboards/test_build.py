"""The committed JSON is what the code makes, and is laid out so that it can be read."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from pathlib import Path

import pytest

from dashboards import build, frame
from dashboards.panels import NOT_RUN
from tests.dashboards.reading import DASHBOARDS, PUBLIC, panels, variables

EVERY = pytest.mark.parametrize("uid", DASHBOARDS)

OTHER_WORDS = {
    "no baseline": "changes are not there where no baseline was compared",
    "none, or no baseline": "only changes that happened have a series",
    "none, or not run": "only what happened has a series",
    "none": "an alert or a line that is not there did not happen",
    "no whole run in this time": "says which of the two things is missing",
    "never published": "the publisher reports for itself, without a run",
    "not known": "a source that knows no downloads",
    "not seen in this time": "a reason was chosen, so that something ran",
    "no breaks, or not run": "only breaks that happened have a series",
    "no breaks, or not run in this time": "only breaks that happened have a line",
    "–": "a cell of a table that other columns fill: no result of that status",
}
"""What panels say instead of "not run", and why that is truer."""


def test_the_committed_dashboards_are_those_that_the_code_makes():
    made = {f"{d.uid}.json": build.text(d) for d in (each() for each in build.DASHBOARDS)}
    committed = {path.name: path.read_text() for path in build.FOLDER.glob("*.json")}
    assert committed == made, "run `make generate`"


def test_check_says_what_is_out_of_date_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    (tmp_path / "retired.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["build", "--check"])
    assert build.main() == 1
    said = capsys.readouterr().out
    assert "retired.json is out of date: run `make generate`" in said
    assert "compilewatch-overview.json is out of date" in said
    monkeypatch.setattr(sys, "argv", ["build"])
    assert build.main() == 0
    assert len(list(tmp_path.iterdir())) == len(build.DASHBOARDS)
    monkeypatch.setattr(sys, "argv", ["build", "--check"])
    assert build.main() == 0


def test_uids_are_fixed_and_the_format_is_the_classic_one():
    assert set(DASHBOARDS) == set(frame.TITLES)
    for made in DASHBOARDS.values():
        assert made["schemaVersion"] == 42
        assert "id" not in made


@EVERY
def test_no_two_panels_overlap_and_every_line_fills_the_width(uid: str):
    placed = [panel["gridPos"] for panel in DASHBOARDS[uid]["panels"]]
    for one, other in itertools.combinations(placed, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    cells = {
        (x, y)
        for at in placed
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    }
    height = max(at["y"] + at["h"] for at in placed)
    assert cells == set(itertools.product(range(24), range(height)))


@EVERY
def test_ids_are_unique_and_refs_too(uid: str):
    made = DASHBOARDS[uid]
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(made):
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert panel["title"]


@EVERY
def test_what_is_not_there_is_said_in_words(uid: str):
    for panel in panels(DASHBOARDS[uid]):
        said = panel["fieldConfig"]["defaults"]["noValue"]
        assert said == NOT_RUN or said in OTHER_WORDS, panel["title"]


def test_no_query_makes_a_zero_of_nothing():
    for path in build.FOLDER.glob("*.json"):
        assert "vector(0)" not in path.read_text()


def test_the_overview_answers_in_the_order_of_a_morning():
    rows = [p["title"] for p in DASHBOARDS["compilewatch-overview"]["panels"] if p["type"] == "row"]
    assert rows == [
        "Is the monitor alive?",
        "What changed since the baseline?",
        "Where is it going?",
        "Which families?",
        "Why?",
        "Which models?",
    ]
    first = panels(DASHBOARDS["compilewatch-overview"])
    assert [panel["title"] for panel in first][:2] == ["Monitor", "Since the last whole run"]


def test_versions_are_marked_on_every_dashboard_but_the_public_one():
    for uid, made in DASHBOARDS.items():
        marks = made["annotations"].get("list", [])
        assert bool(marks) == (uid != PUBLIC)
        for mark in marks:
            assert all(name in mark["expr"] for name in ("torch", "transformers", "harness"))


def test_the_public_dashboard_can_be_shared():
    """grafana.com, "Externally shared dashboards": no variables, no annotations but Grafana's."""
    made = DASHBOARDS[PUBLIC]
    assert variables(made) == {}
    assert made["annotations"].get("list", []) == []
    assert made["links"] == []
    used = {target["datasource"]["uid"] for p in panels(made) for target in p["targets"]}
    assert used == {"prometheus"}
    text = (build.FOLDER / f"{PUBLIC}.json").read_text()
    assert set(re.findall(r"\$\w+", text)) == {"$__range"}
    assert "/d/" not in text


def test_a_line_that_does_not_fill_the_width_is_refused():
    kit = frame.FIXED
    from dashboards.panels import Size, Text

    narrow = kit.stat(Text(title="t", description="d"), Size(width=7), "up")
    with pytest.raises(ValueError, match="7 columns"):
        frame.place([frame.Section(title="s", lines=[[narrow]])])


def test_modules_stay_readable():
    for path in Path(build.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) <= 400, path
        assert ast.get_docstring(ast.parse(source)), path
