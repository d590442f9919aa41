"""Every link leads to a dashboard that is there, and hands over what that one takes."""

import json
import re
from urllib.parse import urlsplit

from compilewatch.report.wording import REGISTRY_PAGE
from tests.reading import DASHBOARDS, Json, links, variables

LINKS = [
    (uid, link, panel, f"{uid}/{where}/{link['title']}")
    for uid, made in DASHBOARDS.items()
    for where, link, panel in links(made)
]
INTERNAL = [one for one in LINKS if one[1]["url"].startswith("/d/")]
EXTERNAL = [one for one in LINKS if one[1]["url"] and one not in INTERNAL]


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


def test_a_link_leads_somewhere_and_passes_what_is_taken() -> None:
    for uid, link, panel, name in INTERNAL:
        url = urlsplit(link["url"])
        target = url.path.removeprefix("/d/")
        assert target in DASHBOARDS, name
        taken, here = variables(DASHBOARDS[target]), variables(DASHBOARDS[uid])
        assert "${__url_time_range}" in link["url"], name
        for part in url.query.split("&"):
            if variable := re.fullmatch(r"\$\{(\w+):queryparam\}", part):
                assert variable[1] in taken.keys() & here.keys(), name
            elif part.startswith("viewPanel="):
                assert int(part[10:]) in {one["id"] for one in DASHBOARDS[target]["panels"]}, name
            elif part != "${__url_time_range}":
                passed = re.fullmatch(
                    r"var-(\w+)=\$\{__(data\.fields|field\.labels)\.(\w+):percentencode\}", part
                )
                assert passed, name
                assert passed[1] in taken, name
                there = columns(panel) if passed[2] == "data.fields" else labels(panel)
                assert passed[3] in there, name


def test_the_menu_lists_all_dashboards_and_keeps_what_is_selected() -> None:
    for _, link, panel, name in LINKS:
        if not link["url"]:
            assert (panel, link["keepTime"], link["includeVars"]) == ({}, True, True), name
            assert all(set(link["tags"]) <= set(made["tags"]) for made in DASHBOARDS.values())


def test_a_link_out_opens_a_tab_of_its_own() -> None:
    # `code` is made in the query, of Transformers' and PyTorch's repositories.
    made = ("${__data.fields.code:raw}", "${__data.fields.link:raw}")
    known = (REGISTRY_PAGE.partition("gb/gb")[0], "${build_url:raw}/", *made)
    for uid, link, panel, name in EXTERNAL:
        assert link["targetBlank"], name
        assert link["url"].startswith(known), name
        assert {*re.findall(r"\$\{(\w+):raw\}", link["url"])} <= variables(DASHBOARDS[uid]).keys()
        assert {*re.findall(r"__data\.fields\.(\w+)", link["url"])} <= columns(panel), name


def test_links_use_columns_that_are_shown() -> None:
    for made in DASHBOARDS.values():
        for where, _, panel in links(made):
            if column := where.rpartition("/")[2] if panel else "":
                assert column in columns(panel), where


def test_every_variable_that_is_used_is_there_and_every_one_there_is_used() -> None:
    for uid, made in DASHBOARDS.items():
        used = {n for n in re.findall(r"\$\{?([a-z_]\w*)", json.dumps(made)) if n[:2] != "__"}
        assert used <= variables(made).keys(), uid
        # A page without logs hands the choice of Loki on to those that have them.
        assert variables(made).keys() <= used | {"loki_datasource"}, uid
