"""The committed JSON is what the code makes, and is laid out so that it can be read."""

from __future__ import annotations

import ast
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.extras.papers.records import PipelineStage
from compilewatch.records import Status
from dashboards import build, frame, states
from dashboards.panels import NO_DATA, TARGETS, tiles
from dashboards.queries import MILLIONS, MINUTES, SECONDS
from dashboards.sources import SCRAPE, now
from tests.reading import DASHBOARDS, PUBLIC, links, panels, variables

EVERY = pytest.mark.parametrize("uid", DASHBOARDS)


def test_the_committed_dashboards_are_those_that_the_code_makes() -> None:
    made = {f"{d['uid']}.json": build.text(d) for d in (each() for each in build.DASHBOARDS)}
    committed = {path.name: path.read_text() for path in build.FOLDER.glob("*.json")}
    assert committed == made, "run `make generate`"


def test_check_says_what_is_out_of_date_and_writing_updates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_uids_are_fixed_and_the_format_is_the_classic_one() -> None:
    assert set(DASHBOARDS) == set(frame.TITLES)
    for made in DASHBOARDS.values():
        assert made["schemaVersion"] == 42
        assert "id" not in made


@EVERY
def test_no_two_panels_overlap_and_every_line_fills_the_width(uid: str) -> None:
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
def test_ids_are_unique_and_refs_too(uid: str) -> None:
    made = DASHBOARDS[uid]
    ids = [*{id(p): p["id"] for p in [*made["panels"], *panels(made)]}.values()]
    assert len(set(ids)) == len(ids)
    for panel in panels(made):
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert panel["title"]


@EVERY
def test_an_empty_response_claims_nothing(uid: str) -> None:
    """Grafana shows this text during an outage of the data source, too."""
    for panel in panels(DASHBOARDS[uid]):
        assert panel["fieldConfig"]["defaults"]["noValue"] == NO_DATA, panel["title"]


NEWS = {
    "compilewatch-overview": {
        "Worse than in the last good state",
        "Alerts",
        "Models that do not pass, most downloaded first",
        "Reasons, by models",
        "Reasons, by downloads",
        "Families, by models",
        "Changed families",
        "Changed results",
        "New graph breaks in own code",
    },
    "compilewatch-model": {"Where it breaks", "Why it breaks"},
    "compilewatch-reasons": {"What to fix first", "Where it breaks"},
    "compilewatch-cost": {"Outliers"},
    "compilewatch-targets": {"Neuron failures by class"},
    "compilewatch-profiles": {"Calls until compiling has paid", "Slower models"},
    "compilewatch-papers": {"Failures by class"},
    "compilewatch-health": {"Alerts", "Problems of the monitor"},
}
"""Panels in which nothing is news."""


@pytest.mark.parametrize("uid", NEWS)
def test_where_nothing_is_news_a_row_says_so_on_evidence(uid: str) -> None:
    said = {
        panel["title"]
        for panel in panels(DASHBOARDS[uid])
        if any(" or on () label_replace(" in target["expr"] for target in panel["targets"])
    }
    assert said == NEWS[uid]


@EVERY
def test_a_bar_keeps_its_name_and_its_height_when_it_is_the_only_one(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] == "bargauge":
            named = re.findall(r"{{(\w+)}}", panel["targets"][0]["legendFormat"])
            shown = panel["fieldConfig"]["defaults"]["displayName"]
            assert named == re.findall(r"\${__field\.labels\.(\w+)}", shown), panel["title"]
            options = panel["options"]
            above = options["namePlacement"] == "top"
            assert (options["sizing"], options["maxVizHeight"]) == ("manual", 40 if above else 24)


def test_names_that_are_sentences_have_a_line_of_their_own() -> None:
    """Beside its bar a name has two fifths of the width, and is cut off there."""
    for made in DASHBOARDS.values():
        for panel in panels(made):
            if panel["type"] == "bargauge" and "{{reason}}" in panel["targets"][0]["legendFormat"]:
                assert panel["options"]["namePlacement"] == "top", panel["title"]


def test_a_full_bar_is_not_drawn_as_if_a_part_were_missing() -> None:
    """Grafana draws the rest of a bar below its number, too."""
    for made in DASHBOARDS.values():
        for panel in panels(made):
            if panel["type"] == "bargauge":
                assert panel["options"]["showUnfilled"] is False, panel["title"]


def test_no_data_is_not_red() -> None:
    """Without a mapping, the text has the colour of the lowest value."""
    for made in DASHBOARDS.values():
        for panel in panels(made):
            if panel["type"] in ("stat", "bargauge"):
                texts = mapped(panel["fieldConfig"]["defaults"]["mappings"])
                assert [colour for text, colour in texts if text == NO_DATA] == ["text"] * 2


def test_times_that_are_compared_have_one_unit() -> None:
    """Grafana's own unit writes 59 s beside 1.66 mins."""
    made = DASHBOARDS["compilewatch-cost"]
    units = {panel["fieldConfig"]["defaults"]["unit"] for panel in panels(made)}
    assert "s" not in units
    assert {SECONDS, MINUTES} <= units


def test_only_what_is_about_graph_breaks_has_their_colour() -> None:
    orange = {
        panel["title"]
        for made in DASHBOARDS.values()
        for panel in panels(made)
        if panel["fieldConfig"]["defaults"]["color"].get("fixedColor") == states.ORANGE
    }
    assert orange == {
        "Reasons, by models",
        "Reasons, by downloads",
        "Why it breaks",
        "Models, by breaks",
    }


def test_lines_that_coincide_are_both_seen() -> None:
    (trend,) = (
        panel
        for panel in panels(DASHBOARDS["compilewatch-overview"])
        if panel["title"] == "Share without graph breaks"
    )
    widths = {
        override["matcher"]["options"]: one["value"]
        for override in trend["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "custom.lineWidth"
    }
    drawn = [widths[rf"/\b{name}\b/"] for name in sorted(TARGETS)]
    assert drawn == sorted(set(drawn), reverse=True)


@EVERY
def test_the_controls_are_the_choices_and_one_menu(uid: str) -> None:
    """In one row: four choices of 120 pixels and a menu, beside the time."""
    made = DASHBOARDS[uid]
    shown = [one["name"] for one in variables(made).values() if one.get("hide") != 2]
    assert set(shown) <= {"source", "target", "mode", "family", "model", "reason", "replies"}
    assert len(shown) <= 5
    menus = [link for link in made["links"] if link["type"] == "dashboards"]
    assert len(menus) == (uid != PUBLIC)
    assert all(menu["asDropdown"] for menu in menus)
    assert len(made["links"]) - len(menus) == (uid == "compilewatch-model")
    assert all(mark["hide"] for mark in made["annotations"].get("list", []))


def test_units_are_english_and_shares_near_one_are_not_rounded_to_it() -> None:
    for made in DASHBOARDS.values():
        for panel in panels(made):
            defaults = panel["fieldConfig"]["defaults"]
            if "downloads" in panel["title"].lower() and defaults["unit"] != "percentunit":
                assert defaults["unit"] == MILLIONS, panel["title"]
            shares = panel["type"] in ("stat", "bargauge") and defaults["unit"] == "percentunit"
            if shares and panel["title"] != "Share of a call":
                assert states.NEARLY_ALL in defaults["mappings"], panel["title"]


def test_the_funnel_is_in_the_order_of_the_stages() -> None:
    (funnel,) = (p for p in panels(DASHBOARDS["compilewatch-papers"]) if p["title"] == "Funnel")
    stages = re.findall(r'stage=\\?"(\w+)\\?", outcome', json.dumps(funnel["targets"]))
    assert stages == [stage.value for stage in PipelineStage]


def test_no_query_makes_a_zero_of_nothing() -> None:
    for path in build.FOLDER.glob("*.json"):
        assert "vector(0)" not in path.read_text()


def test_the_overview_begins_with_what_broke_and_the_alerts() -> None:
    shown = panels(DASHBOARDS["compilewatch-overview"])
    assert [panel["title"] for panel in shown][:6] == [
        "Worse and better",
        "Worse than in the last good state",
        "Alerts",
        "Models without graph breaks",
        "Weighted by downloads",
        "Last complete run",
    ]
    (link,) = shown[0]["fieldConfig"]["defaults"]["links"]
    assert f"viewPanel={shown[1]['id']}&" in link["url"]


@EVERY
def test_a_number_is_of_this_instant(uid: str) -> None:
    """The newest value within a step would count statuses that a new run no longer has."""
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] in ("stat", "bargauge", "table"):
            for target in panel["targets"]:
                assert target.get("instant") or target.get("queryType") == "instant"


@EVERY
def test_the_shortest_step_is_that_of_the_scrape(uid: str) -> None:
    alloy = (Path(build.__file__).parents[1] / "alloy" / "config.alloy").read_text()
    scrape = alloy.partition('prometheus.scrape "pushgateway"')[2].partition("}\n\n")[0]
    assert f'scrape_interval = "{SCRAPE}"' in scrape
    assert {panel["interval"] for panel in panels(DASHBOARDS[uid])} == {SCRAPE}


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


@EVERY
def test_no_timeline_merges_its_states_by_threshold(uid: str) -> None:
    """Grafana 9 shows one grey bar then, without a name."""
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] == "state-timeline":
            assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic"


def test_nothing_is_used_that_the_oldest_grafana_does_not_know() -> None:
    for path in build.FOLDER.glob("*.json"):
        assert not re.search("palette-classic-by-name|__auto", path.read_text()), path


def test_versions_are_marked_on_every_dashboard_of_runs_but_the_public_one() -> None:
    for uid, made in DASHBOARDS.items():
        marks = made["annotations"].get("list", [])
        assert bool(marks) == (uid not in (PUBLIC, "compilewatch-papers"))
        for mark in marks:
            assert all(name in mark["expr"] for name in ("torch", "transformers", "harness"))


def test_the_public_dashboard_can_be_shared() -> None:
    """grafana.com, "Externally shared dashboards": no variables, no annotations but Grafana's."""
    made = DASHBOARDS[PUBLIC]
    assert variables(made) == {}
    assert made["annotations"].get("list", []) == []
    assert made["links"] == []
    used = {target["datasource"]["uid"] for p in panels(made) for target in p["targets"]}
    assert used == {"prometheus"}
    text = (build.FOLDER / f"{PUBLIC}.json").read_text()
    assert set(re.findall(r"\$\w+", text)) == {"$__range", "$__interval"}
    assert not list(links(made))
    assert "/d/" not in text


def test_a_line_that_does_not_fill_the_width_is_rejected() -> None:
    with pytest.raises(ValueError, match="7 columns"):
        frame.place([[tiles("t", "d", (7, 4), now("up"))]])


def test_modules_stay_readable() -> None:
    for path in Path(build.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) <= 400, path
        assert ast.get_docstring(ast.parse(source)), path
