"""Tables, for looking up single values."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.panels import NOT_RUN, change, grouped, override, panel
from dashboards.sources import Json, cells
from dashboards.states import BY_NAME, GREY, missing, value


def coloured(kind: str) -> Json:
    """Cells in the colour of their value: the name before Grafana 9.5, then the one since."""
    solid = {"color-background": "color-background-solid"}.get(kind, kind)
    return {"custom.displayMode": solid, "custom.cellOptions": {"type": kind, "mode": "basic"}}


def table(
    title: str,
    about: str,
    size: tuple[int, int],
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
    return _rows(title, about, size, asked, steps, sort, looks, **look)


def matrix(
    title: str,
    about: str,
    size: tuple[int, int],
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
    cells_panel = _rows(title, about, size, [cells(expr)], steps, "", looks, **look)
    defaults = cells_panel["fieldConfig"]["defaults"]
    defaults["mappings"] = [*mappings, *missing(NOT_RUN, GREY)]
    # With many targets the table scrolls to the side, and no name is cut off.
    defaults["custom"] |= {"filterable": True, "align": "left", "minWidth": 140}
    for name, one in coloured("color-background").items():
        defaults["custom"][name.removeprefix("custom.")] = one
    return cells_panel


def figures(
    title: str, about: str, size: tuple[int, int], expr: str, *, row: str, column: str, **look: Any
) -> Json:
    """Numbers by the values of two labels; a row or column that is nowhere is not there."""
    looks: Json = {"mappings": missing("–")} | look
    return _rows(title, about, size, [cells(expr)], grouped(row, column), "", {}, **looks)


def _rows(
    title: str,
    about: str,
    size: tuple[int, int],
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
    return panel("table", title, about, size, targets, **(given | look))


HIDDEN = {"custom.hidden": True, "custom.hideFrom": {"viz": True, "legend": True, "tooltip": True}}
"""The look of a column that only provides links."""

WHEN = {"unit": "dateTimeAsIso", "custom.width": 160, "mappings": [value({"0": ("–", "text")})]}
"""The look of a column of times; 0 is that of a row which says that there is nothing."""

STATE_CELL = {"mappings": [*BY_NAME, *missing("–", GREY)], **coloured("color-background")}
"""The look of a column of statuses."""
