"""The kinds of panels that the dashboards are made of, in Grafana's own JSON.

Every panel is one expression: what it is called, what it says of itself, how large it is, what it
needs. Grafana's format: classic dashboards. A property that versions of Grafana name differently
is written under both names, as each version ignores the other's.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from compilewatch.records import Mode
from dashboards.states import BY_CODE, ORANGE, STATES, missing

Json = dict[str, Any]

NOT_RUN = "not run"
"""Shown in place of a missing value: a number that was not measured is not zero."""

SCRAPE = "2m"
"""The shortest step: as often as the Pushgateway is scraped, so that a run shows within minutes."""

BRIDGED_MS = 2 * 24 * 3600 * 1000
"""Lines are drawn across gaps of up to two days: data are daily."""

Steps = Sequence[tuple[float | None, str]]
"""Thresholds: from which value on, which colour; the first has no value."""

BLUE = "#5794f2"
TARGETS = {
    "dynamo": BLUE,
    "export": "#9fd3f5",
    "inductor": "#f2cc0c",
    "xla": "#a9744f",
    "neuron": "#e68fc7",
}
PHASES = {
    "setup": "#b0b6bf",
    "create": "#d8e9fb",
    "inputs": "#b5d3f7",
    "eager": "#8ab8ff",
    "compile": "#1f60c4",
    "compare": "#3ea6a0",
    "profile": "#a9744f",
}
"""Colours of values without a status. Green, orange, red, purple and grey are statuses."""

GOOD: Steps = ((None, "red"), (0.75, "orange"), (0.95, "green"))
"""Thresholds of a share that should be near one, as a bright number."""

PROMETHEUS = {"type": "prometheus", "uid": "${prometheus_datasource}"}
LOKI = {"type": "loki", "uid": "${loki_datasource}"}

PLAIN: Steps = ((None, "text"),)


def panel(
    kind: str,
    title: str,
    about: str,
    size: tuple[int, int],
    targets: Sequence[Json],
    *,
    unit: str = "short",
    empty: str = NOT_RUN,
    steps: Steps = PLAIN,
    color: Json | None = None,
    custom: Json | None = None,
    links: Sequence[Json] = (),
    mappings: Sequence[Json] = (),
    options: Json | None = None,
    overrides: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
    **more: Any,
) -> Json:
    """Any panel; `size` is width and height in Grafana's grid, `more` other defaults of fields."""
    for ref, target in zip(string.ascii_uppercase, targets, strict=False):
        target["refId"] = ref
    defaults = {
        "unit": unit,
        "noValue": empty,
        "color": color or {"mode": "thresholds"},
        "thresholds": thresholds(steps),
        "mappings": list(mappings),
        "links": list(links),
        "custom": custom or {},
        **more,
    }
    return {
        "type": kind,
        "title": title,
        "description": about,
        "gridPos": {"w": size[0], "h": size[1]},
        "datasource": targets[0]["datasource"],
        "interval": SCRAPE,
        "targets": list(targets),
        "options": options or {},
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "transformations": list(transformations),
    }


def thresholds(steps: Steps) -> Json:
    """From which value on, which colour."""
    return {"mode": "absolute", "steps": [{"value": v, "color": c} for v, c in steps]}


def now(expr: str, legend: str = "") -> Json:
    """A Prometheus query for the newest value."""
    made = {"datasource": PROMETHEUS, "expr": expr, "legendFormat": legend}
    return made | {"instant": True, "range": False}


def ever(expr: str, legend: str = "") -> Json:
    """A Prometheus query for the time shown, including the newest value."""
    made = {"datasource": PROMETHEUS, "expr": within_each_step(expr), "legendFormat": legend}
    return made | {"range": True}


def within_each_step(expr: str) -> str:
    """Of a query over time: have each point show the newest value until the next point.

    Grafana queries at full multiples of the step, seven hours for a number over 30 days, and
    Prometheus looks back from there: what was published since the last full multiple would not be
    shown at all. Looking ahead by a step (a negative offset), the last point reaches to now.
    """
    selector = r"(\w+\{[^}]*\})( @ end\(\))?(?!\s*[\[\w{])"
    return re.sub(selector, r"last_over_time(\1[$__rate_interval]\2 offset -$__interval)", expr)


def cells(expr: str) -> Json:
    """A Prometheus query for the newest values, as rows of a table."""
    return {**now(expr), "format": "table"}


def logged(expr: str, kind: str = "range") -> Json:
    """A Loki query for lines, or with `instant` for numbers computed from them."""
    return {"datasource": LOKI, "expr": expr, "queryType": kind, "maxLines": 500}


def override(name: str, look: Json) -> Json:
    """How one column or series differs: Grafana's properties, such as `custom.width`."""
    values = [{"id": key, "value": one} for key, one in look.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": values}


def change(kind: str, **options: Any) -> Json:
    """A transformation."""
    return {"id": kind, "options": options}


LEGEND: Json = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
NEWEST: Json = {"calcs": ["lastNotNull"], "values": False, "fields": ""}


def fixed(colour: str) -> Json:
    """One colour, whatever the value."""
    return {"mode": "fixed", "fixedColor": colour}


def _like(pattern: str, look: Json) -> Json:
    return override(f"/{pattern}/", look) | {
        "matcher": {"id": "byRegexp", "options": f"/{pattern}/"}
    }


STATUS_SERIES = [
    override(s.status, {"color": fixed(s.colour), "displayName": s.text})
    for s in STATES
    if not s.phase or s.phase.startswith("phase=~")
]
"""Series and columns named like a status, in its words and colour."""

SERIES = [
    *STATUS_SERIES,
    *(_like(rf"\b{name}\b", {"color": fixed(colour)}) for name, colour in TARGETS.items()),
    *(override(name, {"color": fixed(colour)}) for name, colour in PHASES.items()),
    _like(r"\btrain\b", {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}}),
]
"""Series in the colour of their name; training mode is dashed."""


def tiles(
    title: str, about: str, size: tuple[int, int], *targets: Json, trend: bool = True, **look: Any
) -> Json:
    """Numbers side by side, each with its trend behind it."""
    options = {
        "reduceOptions": NEWEST,
        "graphMode": "area" if trend else "none",
        "colorMode": "value",
        "textMode": "value_and_name" if any(t["legendFormat"] for t in targets) else "value",
        "justifyMode": "center",
        "orientation": "auto",
    }
    made = panel("stat", title, about, size, targets, options=options, **look)
    return made | {"maxDataPoints": 100}


def bars(title: str, about: str, size: tuple[int, int], target: Json, **look: Any) -> Json:
    """One bar for each series, in the order of the response."""
    options = {
        "reduceOptions": NEWEST,
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "valueMode": "text",
        "namePlacement": "auto",
        "sizing": "auto",
        "minVizHeight": 16,
        "maxVizHeight": 30,
        "text": {"titleSize": 12, "valueSize": 12},
    }
    given: Json = {"color": fixed(ORANGE), "min": 0} | look
    return panel("bargauge", title, about, size, [target], options=options, **given)


def trend(
    title: str, about: str, size: tuple[int, int], *targets: Json, drawn: str = "line", **look: Any
) -> Json:
    """Values over time, each with a point, so that a single run is seen; `bars` are stacked."""
    stacked = drawn == "bars"
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter",
        "lineWidth": 2,
        "fillOpacity": 60 if stacked else 0,
        "showPoints": "always",
        "pointSize": 4,
        "spanNulls": BRIDGED_MS,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    options = {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "none"}}
    given: Json = {"color": fixed(BLUE), "min": 0, "overrides": SERIES} | look
    return panel("timeseries", title, about, size, targets, custom=custom, options=options, **given)


def timeline(title: str, about: str, size: tuple[int, int], target: Json, **look: Any) -> Json:
    """States over time. Colour mode `thresholds` would merge all states to one without a name."""
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.85,
        "alignValue": "left",
        "legend": LEGEND,
        "tooltip": {"mode": "single"},
    }
    custom = {"fillOpacity": 85, "lineWidth": 0, "spanNulls": BRIDGED_MS}
    look["mappings"] = [*BY_CODE, *missing(NOT_RUN, "transparent")]
    given: Json = {"color": {"mode": "palette-classic"}, "unit": "none"} | look
    made = panel(
        "state-timeline", title, about, size, [target], options=options, custom=custom, **given
    )
    return made | {"maxDataPoints": 200}


def grouped(row: str, column: str) -> list[Json]:
    """One row for each value of a label, one column for each of another, known ones first."""
    keys = {"columnField": column, "rowField": row, "valueField": "Value", "emptyValue": "null"}
    first = [f"{row}\\{column}", *(f"{target} {mode}" for target in TARGETS for mode in Mode)]
    first += [state.status for state in STATES]
    order = {name: index for index, name in enumerate(first)}
    return [
        change("groupingToMatrix", **keys),
        change("organize", indexByName=order, renameByName={first[0]: row}),
    ]


def stacks(
    title: str, about: str, size: tuple[int, int], expr: str, *, row: str, column: str, **look: Any
) -> Json:
    """A bar for each row of a matrix, made of its columns, which are statuses."""
    options = {
        "xField": row,
        "orientation": "horizontal",
        "stacking": "normal",
        "showValue": "never",
        "barWidth": 0.8,
        "legend": LEGEND,
        "tooltip": {"mode": "multi", "sort": "none"},
    }
    steps = grouped(row, column)
    custom = {"fillOpacity": 85, "lineWidth": 0}
    look = {"options": options, "transformations": steps, "custom": custom} | look
    return panel("barchart", title, about, size, [cells(expr)], overrides=STATUS_SERIES, **look)


def phases(
    title: str, about: str, size: tuple[int, int], expr: str, check: str, names: Sequence[str]
) -> Json:
    """A stacked bar for each log line: its numbers `names`, under the text of its label `check`."""
    options = {
        "xField": check,
        "orientation": "vertical",
        "xTickLabelRotation": -30,
        "stacking": "normal",
        "showValue": "never",
        "barWidth": 0.8,
        "legend": LEGEND,
        "tooltip": {"mode": "multi", "sort": "none"},
    }
    numbers = [{"targetField": name, "destinationType": "number"} for name in names]
    steps = [
        change("extractFields", source="labels", format="auto"),
        change("filterFieldsByName", include={"names": ["Time", check, *names]}),
        change("convertFieldType", conversions=numbers),
        change("sortBy", fields={}, sort=[{"field": "Time", "desc": False}]),
        change(
            "organize",
            excludeByName={"Time": True},
            indexByName={name: index for index, name in enumerate([check, *names])},
        ),
    ]
    look: Json = {"unit": "s", "overrides": SERIES, "custom": {"fillOpacity": 90, "lineWidth": 0}}
    return panel(
        "barchart",
        title,
        about,
        size,
        [logged(expr)],
        options=options,
        transformations=steps,
        empty="not run in this time",
        **look,
    )


def logs(title: str, about: str, size: tuple[int, int], expr: str, **look: Any) -> Json:
    """Log lines, newest first."""
    options = {
        "showTime": True,
        "wrapLogMessage": False,
        "enableLogDetails": True,
        "prettifyLogMessage": False,
        "sortOrder": "Descending",
        "dedupStrategy": "none",
    }
    return panel("logs", title, about, size, [logged(expr)], options=options, unit="none", **look)
