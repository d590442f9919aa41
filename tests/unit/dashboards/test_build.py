"""The committed JSON is what the code makes, and is laid out so that it can be read."""

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.records import Status
from dashboards import build, frame
from dashboards import panels as states
from dashboards.panels import NO_DATA
from dashboards.queries import MILLIONS, MINUTES, SCRAPE, SECONDS
from tests.reading import DASHBOARDS, PUBLIC, Json, links, panels, variables

EVERY = pytest.mark.parametrize("uid", DASHBOARDS)
PANELS = [(uid, panel) for uid, made in DASHBOARDS.items() for panel in panels(made)]


def panel(title: str, uid: str = "compilewatch-overview") -> Json:
    (found,) = (one for one in panels(DASHBOARDS[uid]) if one["title"] == title)
    return found


def test_check_says_what_is_out_of_date_and_writing_updates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build", "--check"])
    assert build.main() == 0, "run `make generate`"
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    (tmp_path / "retired.json").write_text("{}")
    assert build.main() == 1
    said = capsys.readouterr().out
    assert "retired.json is out of date: run `make generate`" in said
    assert "compilewatch-overview.json is out of date" in said
    monkeypatch.setattr(sys, "argv", ["build"])
    assert build.main() == 0
    assert len(list(tmp_path.iterdir())) == len(build.DASHBOARDS)
    monkeypatch.setattr(sys, "argv", ["build", "--check"])
    assert build.main() == 0


def test_uids_are_fixed_and_the_format_is_the_classic_one() -> None:
    assert set(DASHBOARDS) == set(frame.TITLES)
    for made in DASHBOARDS.values():
        assert made["schemaVersion"] == 42
        assert "id" not in made
    for path in build.FOLDER.glob("*.json"):  # what the oldest Grafana does not know
        assert not re.search("palette-classic-by-name|__auto", path.read_text()), path


@EVERY
def test_no_two_panels_overlap_and_every_line_fills_the_width(uid: str) -> None:
    placed = [panel["gridPos"] for panel in DASHBOARDS[uid]["panels"]]
    cells = [
        (x, y)
        for at in placed
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    height = max(at["y"] + at["h"] for at in placed)
    assert sorted(cells) == sorted(itertools.product(range(24), range(height)))


def test_an_empty_response_claims_nothing_and_is_not_red() -> None:
    """Grafana shows this text during an outage; without a mapping it has the lowest colour."""
    for _, panel in PANELS:
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["noValue"] == NO_DATA, panel["title"]
        if panel["type"] in ("stat", "bargauge"):
            texts = mapped(defaults["mappings"])
            assert [colour for text, colour in texts if text == NO_DATA] == ["text"] * 2
    for path in build.FOLDER.glob("*.json"):
        assert "vector(0)" not in path.read_text(), "a query makes a zero of nothing"


def test_units_are_english_comparable_and_shares_near_one_are_not_rounded_to_it() -> None:
    cost = {p["fieldConfig"]["defaults"]["unit"] for p in panels(DASHBOARDS["compilewatch-cost"])}
    assert "s" not in cost, "Grafana's own unit writes 59 s beside 1.66 mins"
    assert {SECONDS, MINUTES} <= cost
    for _, panel in PANELS:
        defaults = panel["fieldConfig"]["defaults"]
        if "downloads" in panel["title"].lower() and defaults["unit"] != "percentunit":
            assert defaults["unit"] == MILLIONS, panel["title"]
        shares = panel["type"] in ("stat", "bargauge") and defaults["unit"] == "percentunit"
        if shares and panel["title"] != "Share of a call":
            assert states.NEARLY_ALL in defaults["mappings"], panel["title"]


@EVERY
def test_the_controls_are_the_choices_and_one_menu(uid: str) -> None:
    """In one row: four choices of 120 pixels and a menu, beside the time."""
    made = DASHBOARDS[uid]
    shown = [one["name"] for one in variables(made).values() if one.get("hide") != 2]
    assert set(shown) <= {"source", "target", "mode", "family", "model", "reason", "replies"}
    assert len(shown) <= 5
    menus = [link for link in made["links"] if link["type"] == "dashboards"]
    assert len(menus) == (uid != PUBLIC)
    # Versions are marked on every dashboard of runs but the public one.
    marks = made["annotations"].get("list", [])
    assert len(marks) == (uid not in (PUBLIC, "compilewatch-papers"))


def test_the_shortest_step_is_that_of_the_scrape() -> None:
    alloy = (Path(build.__file__).parents[1] / "alloy" / "config.alloy").read_text()
    scrape = alloy.partition('prometheus.scrape "pushgateway"')[2].partition("}\n\n")[0]
    assert f'scrape_interval = "{SCRAPE}"' in scrape
    assert {panel["interval"] for _, panel in PANELS} == {SCRAPE}


def mapped(value: object) -> Iterator[tuple[str, str]]:
    """Text and colour of every value mapping, and of every series named like a status."""
    if isinstance(value, list):
        for one in value:
            yield from mapped(one)
    elif isinstance(value, dict):
        if "text" in value and "color" in value:
            yield value["text"], value["color"]
        if value.get("matcher", {}).get("id") == "byName":
            given = {one["id"]: one["value"] for one in value["properties"]}
            if "displayName" in given:
                yield given["displayName"], given["color"]["fixedColor"]
        for one in value.values():
            yield from mapped(one)


def test_a_status_has_the_same_words_symbol_and_colour_everywhere() -> None:
    wanted = {state.text: state.colour for state in states.STATES}
    assert {state.status for state in states.STATES} == set(Status)
    assert len({state.text for state in states.STATES}) == len(states.STATES)
    symbols = {state.colour: state.text[0] for state in states.STATES}
    assert len(set(symbols.values())) == len(symbols), "a colour that its symbol does not tell"
    assert all(not state.text[0].isascii() for state in states.STATES)
    for made in DASHBOARDS.values():
        for text, colour in mapped(made["panels"]):
            if text[2:] in {known[2:] for known in wanted}:
                assert wanted[text] == colour


def test_the_public_dashboard_can_be_shared() -> None:
    """grafana.com, "Externally shared dashboards": no variables, no annotations but Grafana's."""
    made = DASHBOARDS[PUBLIC]
    assert variables(made) == {}
    assert made["links"] == []
    assert made["time"] == {"from": "now-30d", "to": "now"}, "what a young installation has"
    used = {target["datasource"]["uid"] for p in panels(made) for target in p["targets"]}
    assert used == {"prometheus"}
    text = (build.FOLDER / f"{PUBLIC}.json").read_text()
    assert set(re.findall(r"\$\w+", text)) == {"$__range", "$__interval"}
    assert not list(links(made))
    assert "/d/" not in text
