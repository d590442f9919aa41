"""The frame around the panels: ids, variables, links, and the grid."""

from collections.abc import Sequence
from itertools import count

from dashboards.queries import PROMETHEUS, SCRAPE, Json, of_group, of_mode, of_run

COLUMNS = 24
TITLES = {
    "compilewatch-overview": "Overview",
    "compilewatch-model": "Model",
    "compilewatch-reasons": "Reasons",
    "compilewatch-targets": "Targets",
    "compilewatch-cost": "Compile cost",
    "compilewatch-profiles": "Profiles",
    "compilewatch-health": "Monitor health",
    "compilewatch-papers": "Papers",
    "compilewatch-public": "Public overview",
}
"""uid -> title; the uids are fixed, since bookmarks and links name them."""

OVERVIEW, MODEL, REASONS, TARGETS, COST, PROFILES, HEALTH, PAPERS, PUBLIC = TITLES

SHARED = ("prometheus_datasource", "loki_datasource", "source", "target", "mode")
"""Variables that every dashboard of runs but the public one has, and every link passes on."""

OWN = ("compilewatch-papers", "compilewatch-public")
"""Dashboards without these variables."""


def line(height: int, *panels: Json, widths: Sequence[int] = ()) -> list[Json]:
    """Panels side by side: of these widths in Grafana's grid, or all of one.

    Raises ValueError for a line that is not 24 wide.
    """
    widths = widths or [COLUMNS // len(panels)] * len(panels)
    if sum(widths) != COLUMNS:
        raise ValueError(f"{panels[0]['title']}: a line of {sum(widths)} columns")
    for panel, width in zip(panels, widths, strict=True):
        panel["gridPos"] = {"w": width, "h": height}
    return list(panels)


def row(title: str, closed: Sequence[Json] = ()) -> list[Json]:
    """The title of what follows; with a line of panels, these are shown once it is opened."""
    about = {"type": "row", "title": title, "collapsed": bool(closed), "panels": list(closed)}
    return line(1, about)


def place(lines: Sequence[Sequence[Json]]) -> list[Json]:
    """Give every panel its place and id."""
    ids, y = count(1), 0
    for panels in lines:
        for members in (panels, panels[0].get("panels", ())):
            x = 0
            for panel in members:
                at = {"x": x, "y": y + (members is not panels), **panel["gridPos"]}
                panel |= {"id": next(ids), "gridPos": at}
                x += at["w"]
        y += panels[0]["gridPos"]["h"]
    return [panel for panels in lines for panel in panels]


def dashboard(
    uid: str,
    description: str,
    lines: Sequence[Sequence[Json]],
    *,
    variables: Sequence[Json] = (),
    pages: Sequence[Json] = (),
    since: str = "now-7d",
) -> Json:
    """A dashboard: read-only, in the viewer's time zone, not refreshed more than needed."""
    return {
        "uid": uid,
        "title": f"compilewatch / {TITLES[uid]}",
        "description": description,
        "tags": ["compilewatch"],
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5m",
        "schemaVersion": 42,
        "time": {"from": since, "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [] if uid == PAPERS else [VERSIONS]},
        "templating": {"list": list(variables)},
        "links": [NAVIGATION, *pages],
        "panels": place(lines),
    }


def data_source(kind: str) -> Json:
    """The Prometheus or Loki to query; named as Grafana's dashboard linter requires.

    Hidden, because most installations have one of each: an address with
    `var-prometheus_datasource=` chooses another, and links keep it.
    """
    return {
        "hide": 2,
        "type": "datasource",
        "name": f"{kind}_datasource",
        "label": f"{kind.title()} data source",
        "description": f"The {kind.title()} that compilewatch sends to.",
        "query": kind,
        "current": {"text": kind, "value": kind},
    }


def variable(
    name: str, about: str, query: str, *, every: bool = True, regex: str = "", hide: bool = False
) -> Json:
    """A choice among values that Prometheus knows; with `every`, several and all of them.

    Values of a `regex` keep the order of the response. "All" is `.*`, which costs Prometheus less
    than a list of a thousand names, unless the query picks a few on purpose.
    """
    chosen = {"text": ["All"], "value": ["$__all"]}
    return {
        "type": "query",
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "description": about,
        "datasource": PROMETHEUS,
        "query": query,
        "definition": query,
        "regex": regex,
        "refresh": 2,
        "sort": 0 if regex else 5,
        "hide": 2 if hide else 0,
        "multi": every,
        "includeAll": every,
        **({"current": chosen} if every else {}),
        **({"allValue": ".*"} if every and not regex else {}),
    }


def shared() -> list[Json]:
    """Data sources, then source, target and mode, each restricted by the previous ones."""
    sources, targets = (
        make("compilewatch_last_completion_timestamp_seconds") for make in (str, of_run)
    )
    modes = of_group("compilewatch_results")
    return [
        *map(data_source, ["prometheus", "loki"]),
        variable(
            "source",
            "Where the models come from.",
            f'label_values({sources}{{job="compilewatch"}}, source)',
        ),
        variable("target", "What models are compiled with.", f"label_values({targets}, target)"),
        variable("mode", "eval or train, static or dynamic.", f"label_values({modes}, mode)"),
    ]


def family() -> Json:
    """Narrows models to some families."""
    results = of_mode("compilewatch_family_results")
    return variable("family", "Narrows the models.", f"label_values({results}, family)")


def releases(*names: str, match: str = "") -> list[Json]:
    """Labels of the newest run among the matching ones, as hidden variables."""
    began = of_group("compilewatch_last_start_timestamp_seconds")
    newest = (
        f"topk(1, {began} * on (source, target) group_right () {of_group('compilewatch_run_info')}"
        f" and on (source, target) {of_group('compilewatch_model_info', match)})"
    )
    return [
        variable(
            name,
            f"The {name} of the newest run.",
            f"query_result({newest})",
            every=False,
            regex=f'/[{{,]{name}="([^"+]+)/',
            hide=True,
        )
        for name in names
    ]


def to_dashboard(uid: str, title: str, *names: str, of: str = "__data.fields") -> Json:
    """To a dashboard, with the selected values and a row's columns or a series' labels."""
    passed = [f"var-{name}=${{{of}.{name}:percentencode}}" for name in names]
    passed += [f"${{{name}:queryparam}}" for name in SHARED if name not in names]
    url = f"/d/{uid}?{'&'.join(passed)}&${{__url_time_range}}"
    return {"title": title, "url": url, "targetBlank": False}


def from_series(uid: str, title: str, *names: str) -> Json:
    """The same from a bar, tile or line, which has labels."""
    return to_dashboard(uid, title, *names, of="__field.labels")


OF: dict[str, tuple[str, str]] = {
    "model": (MODEL, "This model"),
    "target": (TARGETS, "This target"),
    "reason": (REASONS, "This reason"),
    "family": (OVERVIEW, "Models of this family"),
}
"""Label -> the dashboard about one of its values, and what a link to it is called."""


def series(name: str) -> list[Json]:
    """Links of bars, tiles and lines: to the dashboard about the value of a label."""
    uid, title = OF[name]
    return [from_series(uid, title, name)]


def cell(name: str) -> Json:
    """The look of a column whose cells link to the dashboard about their value."""
    uid, title = OF[name]
    return {"links": [to_dashboard(uid, title, name)]}


def to_page(title: str, url: str) -> Json:
    """A link to another site, in a new tab."""
    return {"title": title, "url": url, "targetBlank": True}


def same_page(title: str, panel: int) -> Json:
    """To a panel of the Overview, by its id."""
    kept = "&".join(f"${{{name}:queryparam}}" for name in SHARED)
    url = f"/d/{OVERVIEW}?viewPanel={panel}&{kept}&${{__url_time_range}}"
    return {"title": title, "url": url, "targetBlank": False}


def page(title: str, url: str) -> Json:
    """The same at the top of a dashboard."""
    return {"type": "link", "icon": "external", "tags": [], **to_page(title, url)}


NAVIGATION: Json = {
    "type": "dashboards",
    "title": "Dashboards",
    "icon": "dashboard",
    "tags": ["compilewatch"],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "url": "",
}
"""A menu of all dashboards, with the selected values and the time range."""


def _versions() -> Json:
    """A mark where torch, transformers or the harness differ from the previous step.

    Grafana requests a hundred steps at most, so that a fixed time before would miss changes.
    """
    by = "environment, torch, transformers, harness_version"
    info = of_group("compilewatch_run_info")
    before = f"last_over_time({info}[7d] offset $__interval)"
    return {
        "name": "New versions",
        "datasource": PROMETHEUS,
        "enable": True,
        # Without a switch among the controls, which have one row.
        "hide": True,
        "iconColor": "#9aa0a6",
        "expr": f"count by ({by}) ({info}) unless count by ({by}) ({before})",
        "step": SCRAPE,
        "titleFormat": "New versions in {{environment}}",
        "textFormat": "torch {{torch}}, transformers {{transformers}}, harness {{harness_version}}",
        "tagKeys": "torch,transformers,harness_version",
    }


VERSIONS = _versions()
