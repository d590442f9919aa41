"""Every link leads to a dashboard that is there, and hands over what that one takes."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from compilewatch.report.wording import REGISTRY_PAGE
from tests.reading import DASHBOARDS, Json, links, variables

LINKS = [
    pytest.param(uid, link, panel, id=f"{uid}/{where}/{link['title']}")
    for uid, made in DASHBOARDS.items()
    for where, link, panel in links(made)
]


def _url(param: Any) -> str:
    return str(param.values[1]["url"])


INTERNAL = [param for param in LINKS if _url(param).startswith("/d/")]
EXTERNAL = [param for param in LINKS if not _url(param).startswith("/d/") and _url(param)]
MENUS = [param for param in LINKS if not _url(param)]


def columns(panel: Json) -> set[str]:
    """The columns that a table shows, as far as its queries name them."""
    shown: set[str] = set()
    for step in panel.get("transformations", ()):
        shown |= set(step["options"].get("indexByName", {}))
        shown |= {step["options"][name] for name in ("rowField",) if name in step["options"]}
        shown -= set(step["options"].get("excludeByName", {}))
    return shown


def labels(panel: Json) -> set[str]:
    """What the series of a panel are called by: each has these labels."""
    return set.intersection(
        *(
            set(re.findall(r"{{(\w+)}}", t["legendFormat"]))
            for t in panel["targets"]
            if t["legendFormat"] != "whole"
        )
    )


@pytest.mark.parametrize(("uid", "link", "panel"), INTERNAL)
def test_a_link_leads_somewhere_and_passes_what_is_taken(uid: str, link: Json, panel: Json) -> None:
    url = urlsplit(link["url"])
    target = url.path.removeprefix("/d/")
    assert target in DASHBOARDS
    taken, here = variables(DASHBOARDS[target]), variables(DASHBOARDS[uid])
    for name, value in parse_qsl(re.sub(r"(?<=&)\$\{([^}]*)\}", r"whole=${\1}", url.query)):
        if name == "whole" and value != "${__url_time_range}":
            variable = re.fullmatch(r"\$\{(\w+):queryparam\}", value)
            assert variable, value
            assert variable[1] in taken
            assert variable[1] in here
        elif name == "viewPanel":
            assert int(value) in {panel["id"] for panel in DASHBOARDS[target]["panels"]}
        elif name != "whole":
            assert name.removeprefix("var-") in taken, name
            field = re.fullmatch(
                r"\$\{__(data\.fields|field\.labels)\.(\w+):percentencode\}", value
            )
            assert field, value
            there = columns(panel) if field[1] == "data.fields" else labels(panel)
            assert field[2] in there, f"{panel['title']} has no {field[2]}"
    assert "${__url_time_range}" in link["url"]


@pytest.mark.parametrize(("uid", "link", "panel"), MENUS)
def test_the_menu_lists_all_dashboards_and_keeps_what_is_selected(
    uid: str, link: Json, panel: Json
) -> None:
    assert not panel
    assert link["keepTime"]
    assert link["includeVars"]
    assert all(set(link["tags"]) <= set(made["tags"]) for made in DASHBOARDS.values())


@pytest.mark.parametrize(("uid", "link", "panel"), EXTERNAL)
def test_a_link_out_opens_a_tab_of_its_own(uid: str, link: Json, panel: Json) -> None:
    assert link["targetBlank"]
    # `code` is made in the query, of Transformers' and PyTorch's repositories.
    made = ("${__data.fields.code:raw}", "${__data.fields.link:raw}")
    known = (REGISTRY_PAGE.partition("gb/gb")[0], "${build_url:raw}/", *made)
    assert link["url"].startswith(known)
    for name in re.findall(r"\$\{(\w+):raw\}", link["url"]):
        assert name in variables(DASHBOARDS[uid])
    for name in re.findall(r"__data\.fields\.(\w+)", link["url"]):
        assert name in columns(panel)


def steps(start: str, through: str) -> set[str]:
    """Dashboards that links on a column lead to."""
    return {
        urlsplit(link["url"]).path.removeprefix("/d/")
        for where, link, _ in links(DASHBOARDS[start])
        if f".{through}:" in link["url"] and link["url"].startswith("/d/")
    }


def test_the_way_from_family_to_build_is_there() -> None:
    overview, model = "compilewatch-overview", "compilewatch-model"
    assert overview in steps(overview, "family")
    assert model in steps(overview, "model")
    assert "compilewatch-reasons" in steps(overview, "reason")
    assert "compilewatch-reasons" in steps(model, "reason")
    assert model in steps("compilewatch-reasons", "model")
    out: list[Any] = [_url(param) for param in EXTERNAL if param.values[0] == model]
    assert any(url.endswith("/report/index.html") for url in out)
    assert any("compile-graph-break-site" in url for url in out)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_links_use_columns_that_are_shown(uid: str) -> None:
    for where, _, panel in links(DASHBOARDS[uid]):
        if column := where.rpartition("/")[2] if panel else "":
            assert column in columns(panel), where


BUILT_IN = {
    "__all",
    "__interval",
    "__rate_interval",
    "__range",
    "__auto",
    "__url_time_range",
    "__data",
    "__field",
}


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_variable_that_is_used_is_there_and_every_one_there_is_used(uid: str) -> None:
    made = DASHBOARDS[uid]
    text = json.dumps(made)
    used = set(re.findall(r"\$\{?([a-z_]\w*)", text))
    assert used - BUILT_IN <= variables(made).keys()
    # A page without logs hands the choice of Loki on to those that have them.
    assert variables(made).keys() <= used | {"loki_datasource"}
