"""What stands around the panels: ids, data sources, variables, links, and the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardCursorSync,
    DashboardLink,
    DashboardLinkType,
    GridPos,
    Panel,
    RowPanel,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import DataLink, Kit
from dashboards.queries import CHOSEN, Scope, selector

COLUMNS = 24
TITLES = {
    "compilewatch-overview": "Overview",
    "compilewatch-model": "Model",
    "compilewatch-reasons": "Reasons",
    "compilewatch-targets": "Targets",
    "compilewatch-cost": "Compile cost",
    "compilewatch-health": "Monitor health",
    "compilewatch-public": "Public overview",
}
"""uid -> title; the uids are fixed, since bookmarks and links name them."""

OVERVIEW, MODEL, REASONS, TARGETS, COST, HEALTH, PUBLIC = TITLES

TEMPLATED = Kit(
    prometheus=DataSourceRef(type_val="prometheus", uid="${prometheus_datasource}"),
    loki=DataSourceRef(type_val="loki", uid="${loki_datasource}"),
)
FIXED = Kit(
    prometheus=DataSourceRef(type_val="prometheus", uid="prometheus"),
    loki=DataSourceRef(type_val="loki", uid="loki"),
)
"""For the public dashboard, which may have no variables: the ids that stack/grafana provisions."""

SHARED = ("source", "target", "mode")
"""Variables that every dashboard but the public one has, and every link passes on."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A titled row, and the lines of panels below it; each line is 24 columns wide."""

    title: str
    lines: Sequence[Sequence[Panel]]


def place(sections: Sequence[Section]) -> list[Panel | RowPanel]:
    """Give every panel its place and id. Raises ValueError for a line that is not 24 wide."""
    placed: list[Panel | RowPanel] = []
    y = 0
    for section in sections:
        placed.append(
            RowPanel(title=section.title, id_val=len(placed) + 1, grid_pos=_at(0, y, COLUMNS, 1))
        )
        y += 1
        for line in section.lines:
            x = 0
            sizes = [panel.grid_pos or GridPos() for panel in line]
            for panel, size in zip(line, sizes, strict=True):
                panel.grid_pos = _at(x, y, size.w, size.h)
                panel.id_val = len(placed) + 1
                placed.append(panel)
                x += size.w
            if x != COLUMNS or len({size.h for size in sizes}) != 1:
                raise ValueError(f"{section.title}: a line of {x} columns, or of several heights")
            y += sizes[0].h
    return placed


def _at(x: int, y: int, w: int, h: int) -> GridPos:
    return GridPos(x=x, y=y, w=w, h=h)


def dashboard(
    uid: str,
    description: str,
    sections: Sequence[Section],
    *,
    variables: Sequence[VariableModel] = (),
    annotations: Sequence[AnnotationQuery] = (),
    links: Sequence[DashboardLink] = (),
    since: str = "now-30d",
) -> Dashboard:
    """A whole dashboard: read-only, in the viewer's time zone, not refreshed more than needed."""
    made = (
        build.Dashboard(f"compilewatch / {TITLES[uid]}")
        .uid(uid)
        .description(description)
        .tags(["compilewatch"])
        .readonly()
        .time(since, "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("5m")
        .build()
    )
    made.panels = place(sections)
    if made.templating is not None:
        made.templating.list_val = list(variables)
    if made.annotations is not None:
        made.annotations.list_val = list(annotations)
    made.links = list(links)
    return made


def data_sources(*kinds: str) -> list[VariableModel]:
    """Which Prometheus and Loki to ask; named as Grafana's dashboard linter wants it."""
    return [
        build.DatasourceVariable(f"{kind}_datasource")
        .label(f"{kind.title()} data source")
        .description(f"The {kind.title()} that compilewatch sends to.")
        .type(kind)
        .current(VariableOption(text=kind, value=kind))
        .build()
        for kind in kinds
    ]


def label_variable(
    name: str, description: str, query: str, *, regex: str = "", every: bool = True
) -> VariableModel:
    """A choice among values that Prometheus knows; with `every`, several and all of them.

    "All" is `.*`, which costs Prometheus less than a list of a thousand names.
    """
    made = (
        build.QueryVariable(name)
        .label(name.replace("_", " ").capitalize())
        .description(description)
        .query(query)
        .definition(query)
        .datasource(TEMPLATED.prometheus)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .multi(every)
        .include_all(every)
        .regex(regex)
    )
    if every:
        made = made.current(VariableOption(text=["All"], value=["$__all"]))
        # A variable with a regex lists few on purpose, so "All" is those few.
        made = made if regex else made.all_value(".*")
    return made.build()


def shared_variables(*, logs: bool = True) -> list[VariableModel]:
    """Data sources, then source, target and mode, each among what the ones before it leave."""
    completed = "compilewatch_last_completion_timestamp_seconds"
    results = "compilewatch_results"
    source = selector(completed)
    target = selector(completed, CHOSEN.source)
    mode = CHOSEN.group(results)
    return [
        *data_sources("prometheus", *(["loki"] if logs else [])),
        label_variable("source", "Where models come from.", f"label_values({source}, source)"),
        label_variable("target", "What models were given to.", f"label_values({target}, target)"),
        label_variable("mode", "eval or train, static or dynamic.", f"label_values({mode}, mode)"),
    ]


def to_dashboard(uid: str, title: str, *fields: str) -> DataLink:
    """To a dashboard, passing on a row's columns of these names, and what was chosen here."""
    passed = [f"var-{name}=${{__data.fields.{name}:percentencode}}" for name in fields]
    passed += [f"${{{name}:queryparam}}" for name in SHARED if name not in fields]
    url = f"/d/{uid}?{'&'.join(passed)}&${{__url_time_range}}"
    return {"title": title, "url": url, "targetBlank": False}


def to_page(title: str, url: str) -> DataLink:
    """Out of Grafana, in a tab of its own."""
    return {"title": title, "url": url, "targetBlank": True}


def navigation(own: str, **pages: str) -> list[DashboardLink]:
    """Links at the top: the other dashboards, with what was chosen and the time, then pages."""
    made = [
        DashboardLink(
            title=title,
            type_val=DashboardLinkType.LINK,
            icon="dashboard",
            url=f"/d/{uid}",
            include_vars=True,
            keep_time=True,
        )
        for uid, title in TITLES.items()
        if uid not in (own, PUBLIC)
    ]
    for title, url in pages.items():
        made.append(
            DashboardLink(
                title=title.replace("_", " "),
                type_val=DashboardLinkType.LINK,
                icon="external",
                url=url,
                target_blank=True,
            )
        )
    return made


def version_changes(scope: Scope) -> AnnotationQuery:
    """A mark where torch, transformers or the harness were not what they were an hour before."""
    by = "environment, torch, transformers, harness_version"
    now = scope.group("compilewatch_run_info")
    before = f"last_over_time({now}[7d] offset 1h)"
    return (
        build.AnnotationQuery()
        .name("New versions")
        .datasource(TEMPLATED.prometheus)
        .enable(True)
        .icon_color("blue")
        .expr(f"count by ({by}) ({now}) unless count by ({by}) ({before})")
        .step("1h")
        .title_format("New versions in {{environment}}")
        .text_format("torch {{torch}}, transformers {{transformers}}, harness {{harness_version}}")
        .tag_keys("torch,transformers,harness_version")
        .build()
    )
