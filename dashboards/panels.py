"""The kinds of panels that the dashboards are made of, in Grafana's own JSON.

Every panel is one expression: what it is called, what it says of itself, how large it is, what it
needs. Grafana's format: classic dashboards. A property that versions of Grafana name differently
is written under both names, as each version ignores the other's.
"""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from compilewatch.contract import targets
from compilewatch.records import Mode
from dashboards.queries import SCRAPE, Json, cells, logged, of_mode

GREEN, ORANGE, RED, PURPLE, GREY = "#37872d", "#cf5f08", "#c4162a", "#8f3bb8", "#6b7079"
SKY, INDIGO = "#1a76b0", "#4f5bc4"
"""Dark enough for white words, light enough on a dark page."""


class State(NamedTuple):
    """A status, or an error's phase; `text` distinguishes it without colours."""

    status: str
    text: str
    colour: str
    phase: str = ""


STATES = (
    State("pass", "✓ pass", GREEN),
    State("forecast_pass", "↗ forecast: lowers", SKY),
    State("forecast_fail", "↘ forecast: does not lower", INDIGO),
    State("skipped", "○ skipped", GREY),
    State("unsupported", "○ unsupported", GREY),
    State("timeout", "○ timeout", GREY),
    State("oom", "○ out of memory", GREY),
    State("crashed", "○ crashed", GREY),
    State("error", "○ not compiled", GREY, 'phase!~"compile|compare"'),
    State("graph_break", "▲ graph break", ORANGE),
    State("mismatch", "≠ mismatch", PURPLE),
    State("error", "✗ error", RED, 'phase=~"compile|compare"'),
)
"""From best to worst. An error before the compiler was reached is not a verdict, hence grey."""


def codes(by: str, *matchers: str, forecasts: bool = True) -> str:
    """The worst state of each group, as its place in `STATES`, from 1."""
    parts = [
        of_mode("compilewatch_model_status", f'status="{s.status}"', s.phase, *matchers)
        + (f" * {code}" if code > 1 else "")
        for code, s in enumerate(STATES, start=1)
        if forecasts or not s.status.startswith("forecast")
    ]
    # Each `or` reads all on its left again, hence the many that pass come last.
    return f"max by ({by}) ({' or '.join(reversed(parts))})"


def value(texts: dict[str, tuple[str, str]]) -> Json:
    """A value -> its text and colour."""
    results = {
        key: {"text": text, "color": colour, "index": index}
        for index, (key, (text, colour)) in enumerate(texts.items())
    }
    return {"type": "value", "options": results}


def between(low: float, high: float | None, text: str, colour: str) -> Json:
    """All values from `low` to `high`."""
    result = {"text": text, "color": colour, "index": int(low)}
    return {"type": "range", "options": {"from": low, "to": high, "result": result}}


def missing(text: str, colour: str = "text") -> list[Json]:
    """The text of a cell without a value. (`null+nan` would treat every word as a NaN.)"""
    result = {"text": text, "index": 99, "color": colour}
    return [
        {"type": "special", "options": {"match": match, "result": result}}
        for match in ("null", "empty")
    ]


NEARLY_ALL = {
    "type": "range",
    "options": {"from": 0.9995, "to": 0.9999999, "result": {"text": ">99.9 %", "index": 0}},
}
"""A share that is not 1 and would be rounded to it."""

BY_CODE = [between(c, c + 0.99, s.text, s.colour) for c, s in enumerate(STATES, start=1)]
"""Of `codes`; what is added below one orders equal states."""

BY_NAME = [value({s.status: (s.text, s.colour) for s in STATES})]
"""Of the label `status`."""


NOT_RUN = "not run"
"""Shown in place of a missing cell: a number that was not measured is not zero."""

NO_DATA = "no data"
"""Shown in place of an empty response, of which an outage may be the cause. Where nothing is news,
the query returns a row that says so (`queries.or_say`), because only a response is evidence."""

BRIDGED_MS = 2 * 24 * 3600 * 1000
"""Lines are drawn across gaps of up to two days: data are daily."""

Steps = Sequence[tuple[float | None, str]]
"""Thresholds: from which value on, which colour; the first has no value."""

BLUE = "#5794f2"
_COLOURS = {
    "dynamo": BLUE,
    "export": "#9fd3f5",
    "inductor": "#f2cc0c",
    "xla": "#a9744f",
    "neuron": "#e68fc7",
}
_WIDTHS = dict(zip(sorted(targets.TARGETS), (8, 6, 4, 3, 2, 1.5, 1), strict=False))
TARGETS = {n: (_COLOURS.get(n, "#8f6fd1"), _WIDTHS[n]) for n in targets.TARGETS}
"""Colours, and widths of lines: lines that coincide are drawn in the order of their names, and the
earlier one is seen on both sides."""

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

PLAIN: Steps = ((None, "text"),)


def panel(
    kind: str,
    title: str,
    about: str,
    targets: Sequence[Json],
    *,
    unit: str = "short",
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
    """Any panel; `more` are other defaults of fields."""
    for ref, target in zip(string.ascii_uppercase, targets, strict=False):
        target["refId"] = ref
    defaults = {
        "unit": unit,
        "noValue": NO_DATA,
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

OF_PAPERS = {
    "input": BLUE,
    "output": "#f2cc0c",
    "model": BLUE,
    "scripted": "#b0b6bf",
    **{
        f"{n} repairs": shade
        for n, shade in enumerate(("#d8e9fb", "#8ab8ff", "#1f60c4", "#0b2f6b"))
    },
}
"""Colours of series about papers."""

SERIES = [
    *STATUS_SERIES,
    *(
        _like(
            rf"\b{name}\b",
            {
                "color": fixed(colour),
                "custom.lineWidth": width,
                # A point that is not larger than its line is not drawn at all.
                "custom.pointSize": width + 1,
            },
        )
        for name, (colour, width) in TARGETS.items()
    ),
    *(override(name, {"color": fixed(colour)}) for name, colour in (PHASES | OF_PAPERS).items()),
    _like(r"\btrain\b", {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}}),
]
"""Series in the colour of their name; training mode is dashed."""


def tiles(title: str, about: str, *targets: Json, **look: Any) -> Json:
    """Numbers side by side, each of this instant: trends are panels of their own."""
    # Without a colour of its own, this text would have that of the lowest value: red, of a share.
    look["mappings"] = [*look.get("mappings", ()), *missing(NO_DATA)]
    options = {
        "reduceOptions": NEWEST,
        "graphMode": "none",
        "colorMode": "value",
        "textMode": "value_and_name" if any(t["legendFormat"] for t in targets) else "value",
        "justifyMode": "center",
        "orientation": "auto",
    }
    return panel("stat", title, about, targets, options=options, **look)


def bars(
    title: str,
    about: str,
    *targets: Json,
    whole: Json | None = None,
    above: bool = False,
    **look: Any,
) -> Json:
    """One bar for each series, in the order of the response; `whole` is the value of a full bar.

    Names have two fifths of the width, or with `above` a line of their own.
    """
    steps = []
    if whole is not None:
        whole["legendFormat"] = "whole"
        mapping = {"fieldName": "whole", "handlerKey": "max", "reducerId": "lastNotNull"}
        ref = string.ascii_uppercase[len(targets)]
        steps = [change("configFromData", configRefId=ref, mappings=[mapping])]
    options = {
        "reduceOptions": NEWEST,
        "orientation": "horizontal",
        "displayMode": "basic",
        # Grafana draws the rest of a bar up to its number, for which it keeps a fifth of the width:
        # what is full would look as if a seventh were missing.
        "showUnfilled": False,
        "valueMode": "text",
        "namePlacement": "top" if above else "left",
        # A few bars do not grow to blocks.
        "sizing": "manual",
        "minVizHeight": 32 if above else 16,
        "maxVizHeight": 40 if above else 24,
        "text": {"titleSize": 11, "valueSize": 12},
    }
    # Grafana leaves out the name of the only series unless it is given here.
    name = re.sub(r"{{(\w+)}}", r"${__field.labels.\1}", targets[0]["legendFormat"])
    looks: Json = {"color": fixed(BLUE), "min": 0, "displayName": name} | look
    looks["mappings"] = [*looks.get("mappings", ()), *missing(NO_DATA)]
    asked = [*targets, *([whole] if whole else [])]
    gauge = panel("bargauge", title, about, asked, options=options, **looks)
    return gauge | {"transformations": steps}


def trend(title: str, about: str, *targets: Json, drawn: str = "line", **look: Any) -> Json:
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
    looks: Json = {"color": fixed(BLUE), "min": 0, "overrides": SERIES} | look
    return panel("timeseries", title, about, targets, custom=custom, options=options, **looks)


def timeline(title: str, about: str, target: Json, **look: Any) -> Json:
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
    looks: Json = {"color": {"mode": "palette-classic"}, "unit": "none"} | look
    states = panel(
        "state-timeline", title, about, [target], options=options, custom=custom, **looks
    )
    return states | {"maxDataPoints": 200}


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


def _barchart(
    title: str,
    about: str,
    target: Json,
    x: str,
    steps: Sequence[Json],
    options: Json,
    **look: Any,
) -> Json:
    """A bar for each value of the field `x`, stacked unless the options say otherwise."""
    options = {
        "xField": x,
        "stacking": "normal",
        "showValue": "never",
        "barWidth": 0.8,
        "legend": LEGEND,
        "tooltip": {"mode": "multi", "sort": "none"},
        **options,
    }
    look = {"custom": {"fillOpacity": 85, "lineWidth": 0}, "transformations": steps} | look
    return panel("barchart", title, about, [target], options=options, **look)


def stacks(title: str, about: str, expr: str, *, row: str, column: str, **look: Any) -> Json:
    """A bar for each row of a matrix, made of its columns, which are statuses."""
    steps, options = grouped(row, column), {"orientation": "horizontal", "showValue": "auto"}
    look = {"overrides": STATUS_SERIES, **look}
    return _barchart(title, about, cells(expr), row, steps, options, **look)


def _converted(kind: str, *names: str) -> Json:
    fields = [{"targetField": name, "destinationType": kind} for name in names]
    return change("convertFieldType", conversions=fields)


def _sorted_by(name: str) -> Json:
    return change("sortBy", fields={}, sort=[{"field": name, "desc": False}])


def by_number(title: str, about: str, expr: str, *, row: str, column: str, **look: Any) -> Json:
    """Bars over a label that is a number, in its order; one series for each value of a label."""
    # As text, 16 would come before 4; the axis takes text only.
    steps = [*grouped(row, column), _converted("number", row), _sorted_by(row)]
    steps.append(_converted("string", row))
    look = {"color": {"mode": "palette-classic"}} | look
    # The axis would have the unit of the values: 16 s for a batch of 16.
    look["overrides"] = [override(row, {"unit": "none"}), *look.get("overrides", ())]
    options = {"orientation": "vertical", "stacking": "none", "barWidth": 0.9, "groupWidth": 0.8}
    return _barchart(title, about, cells(expr), row, steps, options, **look)


def phases(title: str, about: str, expr: str, check: str, names: Sequence[str]) -> Json:
    """A stacked bar for each log line: its numbers `names`, under the text of its label `check`."""
    columns = [check, *names]
    steps = [
        change("extractFields", source="labels", format="auto"),
        change("filterFieldsByName", include={"names": ["Time", *columns]}),
        _converted("number", *names),
        _sorted_by("Time"),
        change(
            "organize",
            excludeByName={"Time": True},
            indexByName={name: index for index, name in enumerate(columns)},
        ),
    ]
    options = {"orientation": "vertical", "xTickLabelRotation": -30}
    look: Json = {"unit": "s", "overrides": SERIES, "custom": {"fillOpacity": 90, "lineWidth": 0}}
    return _barchart(title, about, logged(expr), check, steps, options, **look)


def logs(title: str, about: str, expr: str, **look: Any) -> Json:
    """Log lines, newest first."""
    options = {
        "showTime": True,
        "wrapLogMessage": False,
        "enableLogDetails": True,
        "prettifyLogMessage": False,
        "sortOrder": "Descending",
        "dedupStrategy": "none",
    }
    return panel("logs", title, about, [logged(expr)], options=options, unit="none", **look)


def coloured(kind: str) -> Json:
    """Cells in the colour of their value: the name before Grafana 9.5, then the one since."""
    solid = {"color-background": "color-background-solid"}.get(kind, kind)
    return {"custom.displayMode": solid, "custom.cellOptions": {"type": kind, "mode": "basic"}}


def table(
    title: str,
    about: str,
    columns: Mapping[str, str | Json],
    *,
    labels: Sequence[str],
    hidden: Sequence[str] = (),
    sort: str = "",
    looks: Mapping[str, Json] | None = None,
    **look: Any,
) -> Json:
    """Rows by their labels: first these, then a number each from a query; `looks` by column."""
    asked = [cells(asked) if isinstance(asked, str) else asked for asked in columns.values()]
    # Grafana names a query's value `Value #A`, or `Value` if it is the only one.
    names = {
        f"Value #{ref}": name for ref, name in zip(string.ascii_uppercase, columns, strict=False)
    }
    names["Value"] = next(iter(columns))
    order = {name: index for index, name in enumerate([*labels, *names])}
    steps = [
        change("merge"),
        change(
            "organize",
            excludeByName=dict.fromkeys(["Time", *hidden], True),
            indexByName=order,
            renameByName=names,
        ),
    ]
    return _rows(title, about, asked, steps, sort, looks, **look)


def matrix(
    title: str,
    about: str,
    expr: str,
    *,
    row: str,
    column: str,
    link: Json,
    mappings: Sequence[Json] = (),
    width: int = 280,
    **look: Any,
) -> Json:
    """A table of coloured cells, in the order of the response; names link to their row's page."""
    steps = grouped(row, column)
    head = {"custom.width": width, "mappings": [], "links": [link]}
    looks = {row: head | {"custom.displayMode": "auto", "custom.cellOptions": {"type": "auto"}}}
    cells_panel = _rows(title, about, [cells(expr)], steps, "", looks, **look)
    defaults = cells_panel["fieldConfig"]["defaults"]
    defaults["mappings"] = [*mappings, *missing(NOT_RUN, GREY)]
    # With many targets the table scrolls to the side, and no name is cut off.
    defaults["custom"] |= {"filterable": True, "align": "left", "minWidth": 140}
    for name, one in coloured("color-background").items():
        defaults["custom"][name.removeprefix("custom.")] = one
    return cells_panel


def figures(title: str, about: str, expr: str, *, row: str, column: str, **look: Any) -> Json:
    """Numbers by the values of two labels; a row or column that is nowhere is not there."""
    looks: Json = {"mappings": missing("–")} | look
    return _rows(title, about, [cells(expr)], grouped(row, column), "", {}, **looks)


def _rows(
    title: str,
    about: str,
    targets: Sequence[Json],
    transformations: Sequence[Json],
    sort: str,
    looks: Mapping[str, Json] | None,
    **look: Any,
) -> Json:
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": [], "countRows": False, "fields": ""},
        "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
    }
    given = {
        "custom": {"filterable": False, "minWidth": 60, "align": "auto"},
        "mappings": missing("–"),
        "options": options,
        "overrides": [
            *look.pop("overrides", ()),
            *(override(name, one) for name, one in (looks or {}).items()),
        ],
        "transformations": transformations,
    }
    return panel("table", title, about, targets, **(given | look))


HIDDEN = {"custom.hidden": True, "custom.hideFrom": {"viz": True, "legend": True, "tooltip": True}}
"""The look of a column that only provides links."""

WHEN = {"unit": "dateTimeAsIso", "custom.width": 160, "mappings": [value({"0": ("–", "text")})]}
"""The look of a column of times; 0 is that of a row which says that there is nothing."""

STATE_CELL = {"mappings": [*BY_NAME, *missing("–", GREY)], **coloured("color-background")}
"""The look of a column of statuses."""
