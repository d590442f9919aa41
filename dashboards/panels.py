"""The kinds of panels that the dashboards are made of, each with what a reader needs.

Every panel has a title, a description, a unit and words for "no data". Grafana's own format:
classic dashboards, schemaVersion 42, through grafana-foundation-sdk.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import logs as logs_panel
from grafana_foundation_sdk.builders import loki as logql
from grafana_foundation_sdk.builders import prometheus as prom
from grafana_foundation_sdk.builders import stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    LogsSortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardFieldConfigSourceOverrides,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColor,
    FieldColorModeId,
    FieldConfig,
    FieldConfigSource,
    GridPos,
    MatcherConfig,
    Panel,
    Threshold,
    ThresholdsConfig,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

NOT_RUN = "not run"
"""What stands where there is no value: a number that was not measured is not zero."""

REFS = string.ascii_uppercase
"""Names of a panel's queries, in order."""

BRIDGED_MS = 2 * 24 * 3600 * 1000
"""Lines are drawn across gaps of up to two days: data are daily."""

COLOURS = {
    "pass": "green",
    "graph_break": "orange",
    "graph break": "orange",
    "mismatch": "purple",
    "compile error": "red",
    "error": "red",
    "timeout": "dark-yellow",
    "oom": "dark-purple",
    "crashed": "dark-red",
    "skipped": "#8e8e8e",
    "unsupported": "#6e6e6e",
}
"""By the words of a legend; never the only sign of what something is."""

DataLink = Mapping[str, object]
"""A link of a cell as Grafana keeps it: title, url, targetBlank."""

Steps = Sequence[tuple[float | None, str]]
"""Thresholds: from which value on, which colour; the first has no value."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """What a panel says of itself."""

    title: str
    description: str
    no_value: str = NOT_RUN


@dataclass(frozen=True, kw_only=True)
class Size:
    """In Grafana's grid: 24 columns, rows of 30 pixels."""

    width: int
    height: int = 8


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number in a table: an instant query, and how its column looks."""

    name: str
    expr: str
    unit: str = "short"
    words: Mapping[float, tuple[str, str]] = field(default_factory=dict)
    steps: Steps = ()


def words(meaning: Mapping[Any, tuple[str, str]]) -> list[ValueMapping]:
    """Value -> what is said instead of it, and its colour."""
    results = {
        str(value): ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(meaning.items())
    }
    return [ValueMap(options=results)] if results else []


def _thresholds(steps: Steps) -> ThresholdsConfig:
    made = [Threshold(value=value, color=colour) for value, colour in steps or [(None, "text")]]
    return ThresholdsConfig(mode=ThresholdsMode.ABSOLUTE, steps=made)


def override(name: str, **properties: Any) -> DashboardFieldConfigSourceOverrides:
    """How one column or series differs; `custom__cellOptions` is written `custom.cellOptions`."""
    values = [
        DynamicConfigValue(id_val=key.replace("__", "."), value=value)
        for key, value in properties.items()
    ]
    return DashboardFieldConfigSourceOverrides(
        matcher=MatcherConfig(id_val="byName", options=name), properties=values
    )


@dataclass(frozen=True, kw_only=True)
class Kit:
    """Makes panels that ask these data sources."""

    prometheus: DataSourceRef
    loki: DataSourceRef

    def _finish(
        self,
        panel: Panel,
        text: Text,
        size: Size,
        *,
        unit: str = "short",
        meaning: Mapping[Any, tuple[str, str]] | None = None,
        steps: Steps = (),
        overrides: Sequence[DashboardFieldConfigSourceOverrides] = (),
        source: DataSourceRef | None = None,
    ) -> Panel:
        panel.title, panel.description = text.title, text.description
        panel.grid_pos = GridPos(w=size.width, h=size.height)
        panel.datasource = source or self.prometheus
        panel.repeat_direction = None
        given = panel.field_config or FieldConfigSource()
        defaults = given.defaults or FieldConfig()
        defaults.no_value, defaults.unit = text.no_value, unit
        defaults.mappings = words(meaning or {})
        defaults.thresholds = _thresholds(steps)
        defaults.color = FieldColor(
            mode=FieldColorModeId.THRESHOLDS if steps else FieldColorModeId.PALETTE_CLASSIC_BY_NAME
        )
        panel.field_config = FieldConfigSource(
            defaults=defaults, overrides=[*given.overrides, *overrides]
        )
        return panel

    def _query(self, ref: str, expr: str, *, legend: str = "", instant: bool) -> prom.Dataquery:
        query = prom.Dataquery().ref_id(ref).expr(expr).datasource(self.prometheus)
        query = query.legend_format(legend) if legend else query
        return query.instant() if instant else query.range()

    def stat(
        self,
        text: Text,
        size: Size,
        expr: str,
        *,
        unit: str = "short",
        meaning: Mapping[Any, tuple[str, str]] | None = None,
        steps: Steps = (),
        decimals: int | None = None,
    ) -> Panel:
        """One number as of now; `meaning` says values in words."""
        built = (
            stat.Panel()
            .with_target(self._query("A", expr, instant=True))
            .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))
            .graph_mode(BigValueGraphMode.NONE)
            .color_mode(BigValueColorMode.VALUE)
        )
        if decimals is not None:
            built = built.decimals(decimals)
        return self._finish(built.build(), text, size, unit=unit, meaning=meaning, steps=steps)

    def trend(
        self,
        text: Text,
        size: Size,
        queries: Mapping[str, str],
        *,
        unit: str = "short",
        stacked: bool | StackingMode = False,
        interval: str = "1h",
        highest: float | None = None,
    ) -> Panel:
        """Lines over time: legend -> range query; `interval` is the shortest step."""
        built = (
            timeseries.Panel()
            .interval(interval)
            .min(0)
            .draw_style(GraphDrawStyle.LINE)
            .line_interpolation(LineInterpolation.STEP_AFTER)
            .line_width(1)
            .fill_opacity(50 if stacked else 5)
            .show_points(VisibilityMode.AUTO)
            .span_nulls(BRIDGED_MS)
            .legend(_legend())
            .tooltip(options.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        )
        if stacked:
            mode = StackingMode.NORMAL if stacked is True else stacked
            built = built.stacking(options.StackingConfig().mode(mode).group("A"))
        if highest is not None:
            built = built.max(highest)
        for ref, (legend, expr) in zip(REFS, queries.items(), strict=False):
            built = built.with_target(self._query(ref, expr, legend=legend, instant=False))
        coloured = [
            override(name, color={"mode": "fixed", "fixedColor": colour})
            for name, colour in COLOURS.items()
        ]
        return self._finish(built.build(), text, size, unit=unit, overrides=coloured)

    def timeline(
        self, text: Text, size: Size, expr: str, legend: str, meaning: Mapping[Any, tuple[str, str]]
    ) -> Panel:
        """States over time: `expr` gives a number each, `meaning` the word for it."""
        built = (
            statetimeline.Panel()
            .interval("1h")
            .merge_values(True)
            .show_value(VisibilityMode.AUTO)
            .row_height(0.8)
            .span_nulls(BRIDGED_MS)
            .legend(_legend())
            .with_target(self._query("A", expr, legend=legend, instant=False))
        )
        steps: Steps = [(None, "text")]
        return self._finish(built.build(), text, size, unit="none", meaning=meaning, steps=steps)

    def table(
        self,
        text: Text,
        size: Size,
        columns: Sequence[Column],
        *,
        first: Sequence[str] = (),
        hidden: Sequence[str] = (),
        sort: str = "",
        links: Mapping[str, Sequence[DataLink]] | None = None,
        meanings: Mapping[str, Mapping[Any, tuple[str, str]]] | None = None,
    ) -> Panel:
        """Instant queries joined on their labels: `first` are the labels in order, then numbers.

        `links` and `meanings` are of columns, labels included.
        """
        footer = options.TableFooterOptions().show(False).reducer([])
        built = table.Panel().show_header(True).filterable(True).footer(footer)
        if sort:
            built = built.sort_by([options.TableSortByFieldState().display_name(sort).desc(True)])
        overrides = []
        for ref, column in zip(REFS, columns, strict=False):
            query = self._query(ref, column.expr, instant=True).format(PromQueryFormat.TABLE)
            built = built.with_target(query)
            overrides.append(_look(column))
        for name, given in (links or {}).items():
            overrides.append(override(name, links=list(given)))
        for name, meaning in (meanings or {}).items():
            look = {"type": "color-text"}
            mapped = {"mappings": words(meaning), "custom__cellOptions": look}
            overrides.append(override(name, **mapped))
        panel = built.build()
        panel.transformations = _join(columns, first, hidden)
        return self._finish(panel, text, size, overrides=overrides)

    def logs(self, text: Text, size: Size, expr: str) -> Panel:
        """Log lines, newest first."""
        built = (
            logs_panel.Panel()
            .show_time(True)
            .wrap_log_message(True)
            .enable_log_details(True)
            .sort_order(LogsSortOrder.DESCENDING)
            .with_target(self._lines(expr))
        )
        return self._finish(built.build(), text, size, unit="none", source=self.loki)

    def log_table(
        self,
        text: Text,
        size: Size,
        expr: str,
        fields: Sequence[str],
        links: Mapping[str, Sequence[DataLink]] | None = None,
    ) -> Panel:
        """Log lines as a table of their labels and structured metadata, in the order given."""
        built = table.Panel().show_header(True).filterable(True).with_target(self._lines(expr))
        panel = built.build()
        shown = {"names": ["Time", *fields]}
        panel.transformations = [
            # Loki answers with labels and structured metadata together in one field of this name.
            DataTransformerConfig(
                id_val="extractFields",
                options={"source": "labels", "format": "auto", "keepTime": True, "replace": True},
            ),
            DataTransformerConfig(id_val="filterFieldsByName", options={"include": shown}),
            DataTransformerConfig(
                id_val="organize",
                options={"indexByName": {name: i for i, name in enumerate(["Time", *fields])}},
            ),
        ]
        overrides = [override(name, links=list(given)) for name, given in (links or {}).items()]
        return self._finish(panel, text, size, unit="none", overrides=overrides, source=self.loki)

    def log_trend(self, text: Text, size: Size, queries: Mapping[str, str], unit: str) -> Panel:
        """Numbers taken from log lines, stacked over time."""
        panel = self.trend(text, size, {}, unit=unit, stacked=True)
        panel.datasource = self.loki
        panel.targets = [
            logql.Dataquery()
            .ref_id(ref)
            .expr(expr)
            .legend_format(legend)
            .query_type("range")
            .datasource(self.loki)
            .build()
            for ref, (legend, expr) in zip(REFS, queries.items(), strict=False)
        ]
        return panel

    def _lines(self, expr: str) -> logql.Dataquery:
        query = logql.Dataquery().ref_id("A").expr(expr).query_type("range")
        return query.max_lines(500).datasource(self.loki)


def _legend() -> options.VizLegendOptions:
    legend = options.VizLegendOptions().show_legend(True)
    return legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)


def _look(column: Column) -> DashboardFieldConfigSourceOverrides:
    look: dict[str, Any] = {"unit": column.unit}
    if column.words:
        look["mappings"] = words(column.words)
        look["custom__cellOptions"] = {"type": "color-text"}
    if column.steps:
        look["thresholds"] = _thresholds(column.steps)
        look["color"] = {"mode": "thresholds"}
        look["custom__cellOptions"] = {"type": "color-text"}
    return override(column.name, **look)


def _join(
    columns: Sequence[Column], first: Sequence[str], hidden: Sequence[str]
) -> list[DataTransformerConfig]:
    """One table of all queries: Grafana names a query's value `Value #A`, or `Value` if alone."""
    names = {f"Value #{ref}": column.name for ref, column in zip(REFS, columns, strict=False)}
    names["Value"] = columns[0].name
    order = [*first, *names]
    return [
        DataTransformerConfig(id_val="merge", options={}),
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(["Time", *hidden], True),
                "indexByName": {name: index for index, name in enumerate(order)},
                "renameByName": names,
            },
        ),
    ]
