"""What a reader must be able to see in single panels, each from a page that was misread."""

from __future__ import annotations

from typing import Any

import pytest

from compilewatch.extras.papers.records import PipelineStage
from dashboards.panels import OF_PAPERS
from dashboards.queries import MILLIONS
from dashboards.states import GREEN
from tests.reading import DASHBOARDS, PUBLIC, panels

Json = dict[str, Any]


def panel(title: str, uid: str = "compilewatch-overview") -> Json:
    (found,) = (one for one in panels(DASHBOARDS[uid]) if one["title"] == title)
    return found


def looks(made: Json) -> dict[str, Json]:
    """Properties by the column or series that they are of."""
    return {
        one["matcher"]["options"]: {each["id"]: each["value"] for each in one["properties"]}
        for one in made["fieldConfig"]["overrides"]
    }


@pytest.mark.parametrize(
    ("title", "unit"), [("Models without graph breaks", ""), ("Weighted by downloads", " M")]
)
def test_a_share_is_shown_with_the_numbers_that_it_is_made_of(title: str, unit: str) -> None:
    """100 % of two models is not better than 96 % of 25."""
    for uid in ("compilewatch-overview", PUBLIC):
        (asked, *_) = panel(title, uid)["targets"]
        assert asked["legendFormat"] == "{{target}} {{mode}}: {{part}} of {{whole}}" + unit


def test_the_age_of_data_is_that_of_each_target_and_mode() -> None:
    """The age of the oldest one alone would hide that the others are fresh."""
    made = panel("Last complete run")
    assert "max by (target, mode) ((time() - " in made["targets"][0]["expr"]
    assert made["fieldConfig"]["defaults"]["unit"] == "dtdurations"


def test_a_single_point_is_larger_than_its_line() -> None:
    """Grafana draws no other one: the newest run of a new reason was invisible."""
    made = panel("Share without graph breaks")
    custom = made["fieldConfig"]["defaults"]["custom"]
    assert custom["pointSize"] > custom["lineWidth"]
    widths = [look for look in looks(made).values() if "custom.lineWidth" in look]
    assert len(widths) == 5
    for look in widths:
        assert look["custom.pointSize"] > look["custom.lineWidth"]


def test_columns_of_many_targets_keep_their_names() -> None:
    """The table scrolls to the side instead."""
    made = panel("Models by target")
    assert made["fieldConfig"]["defaults"]["custom"]["minWidth"] >= 140


def test_only_the_name_in_a_matrix_is_a_link() -> None:
    """Grafana underlines what is linked, which would be each coloured cell."""
    for title, uid in (
        ("Models by target", "compilewatch-overview"),
        ("Families by target", "compilewatch-targets"),
    ):
        made = panel(title, uid)
        assert made["fieldConfig"]["defaults"]["links"] == []
        assert [name for name, look in looks(made).items() if look.get("links")] == [
            title.split()[0].lower().replace("models", "model").replace("families", "family")
        ]


def test_a_table_of_one_model_fits_on_a_screen() -> None:
    """Fourteen columns were cut off at 1680 pixels; figures that few targets measure are rows."""
    made = panel("Now", "compilewatch-model")
    shown = 4 + sum(target["expr"] != "" for target in made["targets"])
    hidden = {
        name
        for step in made["transformations"]
        for name in step["options"].get("excludeByName", ())
    }
    assert shown - len(hidden - {"Time"}) <= 9


def test_money_and_millions_have_their_units() -> None:
    assert MILLIONS == "suffix:M"
    for title in ("Cost", "Cost per success"):
        made = panel(title, "compilewatch-papers")
        assert made["fieldConfig"]["defaults"]["unit"] == "currencyUSD"


def test_the_public_page_shows_no_longer_time_than_a_young_installation_has() -> None:
    assert DASHBOARDS[PUBLIC]["time"] == {"from": "now-30d", "to": "now"}


def test_what_passes_is_green_in_the_funnel() -> None:
    made = panel("Funnel", "compilewatch-papers")
    assert made["fieldConfig"]["defaults"]["color"] == {"mode": "fixed", "fixedColor": GREEN}
    assert len(made["targets"]) == len(PipelineStage) + 1


def test_series_about_papers_can_be_separated() -> None:
    given = looks(panel("Tokens", "compilewatch-papers"))
    colours = [given[name]["color"]["fixedColor"] for name in ("input", "output")]
    assert len(set(colours)) == 2
    repairs = looks(panel("Repairs needed", "compilewatch-papers"))
    shades = [repairs[name]["color"]["fixedColor"] for name in OF_PAPERS if "repairs" in name]
    assert len(set(shades)) == len(shades) == 4


def test_papers_are_listed_with_a_link() -> None:
    given = looks(panel("The papers", "compilewatch-papers"))
    (link,) = given["paper"]["links"]
    assert link["url"] == "${__data.fields.link:raw}"
    assert given["link"]["custom.hidden"]


def test_batch_sizes_are_in_the_order_of_their_numbers() -> None:
    """As text, 16 comes before 4; against time, each profile was a single dot."""
    for what in ("Latency", "Throughput", "Memory"):
        made = panel(f"{what} by batch size", "compilewatch-profiles")
        assert made["type"] == "barchart"
        assert made["options"]["xField"] == "batch_size"
        kinds = [
            step["options"]["conversions"][0]["destinationType"]
            if "conversions" in step["options"]
            else step["id"]
            for step in made["transformations"]
        ]
        assert kinds[-3:] == ["number", "sortBy", "string"]
        assert looks(made)["batch_size"] == {"unit": "none"}


def test_a_profiled_model_that_compiling_never_repays_is_not_called_unprofiled() -> None:
    made = panel("Calls until compiling has paid", "compilewatch-profiles")
    assert '"model", "none has paid"' in made["targets"][0]["expr"]
