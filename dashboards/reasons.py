"""One reason: which models it stops, since when, where, and whether that gets better."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.frame import (
    MODEL,
    OVERVIEW,
    REASONS,
    TEMPLATED,
    Section,
    dashboard,
    label_variable,
    navigation,
    shared_variables,
    to_dashboard,
    to_page,
    version_changes,
)
from dashboards.panels import Column, Size, Text
from dashboards.queries import CHOSEN, REGISTRY, asked_lines, hint

ONE = 'reason="$reason"'
KIT = TEMPLATED
MODELS = CHOSEN.asked("compilewatch_reason_models", ONE)
BREAKS = CHOSEN.asked("compile_breaks_total", ONE)
DOWNLOADS = CHOSEN.asked("compilewatch_reason_downloads", ONE)


def _numbers() -> Section:
    size = Size(width=5, height=4)
    return Section(
        title="$reason",
        lines=[
            [
                KIT.stat(
                    Text(
                        title="Models",
                        description="Models that hit the reason, in the target and mode where it "
                        "hits most, all sources together.",
                    ),
                    size,
                    f"sum(max by (source) ({MODELS}))",
                ),
                KIT.stat(
                    Text(
                        title="Downloads",
                        description="Downloads over 30 days of the models that hit it, where the "
                        "source knows them.",
                        no_value="not known",
                    ),
                    size,
                    f"sum(max by (source) ({DOWNLOADS}))",
                ),
                KIT.stat(
                    Text(
                        title="Breaks",
                        description="Graph breaks with this reason in the latest runs.",
                    ),
                    size,
                    f"sum({BREAKS})",
                ),
                KIT.stat(
                    Text(
                        title="First seen",
                        description="When it was first there within the time shown: choose a "
                        "longer time if it is at its beginning.",
                        no_value="not seen in this time",
                    ),
                    Size(width=9, height=4),
                    f"min(min_over_time(timestamp({MODELS})[$__range:$__interval])) * 1000",
                    unit="dateTimeAsIso",
                ),
            ],
        ],
    )


def _trend() -> Section:
    return Section(
        title="Does it get better?",
        lines=[
            [
                KIT.trend(
                    Text(title="Models over time", description="Models that hit the reason."),
                    Size(width=12),
                    {"{{source}} {{target}} {{mode}}": f"sum by (source, target, mode) ({MODELS})"},
                ),
                KIT.trend(
                    Text(
                        title="Downloads over time",
                        description="Downloads of the models that hit the reason.",
                    ),
                    Size(width=12),
                    {
                        "{{source}} {{target}} {{mode}}": "sum by (source, target, mode) "
                        f"({DOWNLOADS})"
                    },
                ),
            ],
        ],
    )


def _models() -> Section:
    return Section(
        title="Whom does it hit, and where?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Models with this reason",
                        description="Breaks of one forward call, all targets and modes together, "
                        "and how much the model is used. The hint is PyTorch's page on it.",
                    ),
                    Size(width=24, height=10),
                    [
                        Column(
                            name="Breaks",
                            expr=hint(f"sum by (model, family, reason) ({BREAKS})"),
                        ),
                        Column(
                            name="Downloads",
                            expr="max by (model, family) "
                            f"({CHOSEN.group('compilewatch_model_downloads')}) "
                            f"and on (model, family) {BREAKS}",
                        ),
                    ],
                    first=("model", "family", "hint"),
                    hidden=("reason",),
                    sort="Downloads",
                    links={
                        "model": [to_dashboard(MODEL, "This model", "model")],
                        "family": [to_dashboard(OVERVIEW, "Models of this family", "family")],
                        "hint": [to_page("How to fix it", REGISTRY + "${__data.fields.hint}")],
                    },
                )
            ],
            [
                KIT.log_table(
                    Text(
                        title="Places",
                        description="From the log, in the time shown: where models break for "
                        "this reason. Equal fingerprints are one cause at one place.",
                        no_value="not seen in this time",
                    ),
                    Size(width=24, height=10),
                    asked_lines('event="graph_break"') + f" | {ONE}",
                    (
                        *("model", "target", "mode", "file", "line", "function"),
                        *("fingerprint", "detail", "run"),
                    ),
                    links={"model": [to_dashboard(MODEL, "This model", "model")]},
                )
            ],
        ],
    )


def _all() -> Section:
    by = "reason"
    models, downloads = (
        f"sum by ({by}) (max by (source, {by}) ({CHOSEN.asked(name)}))"
        for name in ("compilewatch_reason_models", "compilewatch_reason_downloads")
    )
    return Section(
        title="Which others are there?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="All reasons",
                        description="Every reason of the latest runs. A model counts once, in the "
                        "target and mode where the reason hits most.",
                    ),
                    Size(width=24, height=10),
                    [
                        Column(name="Models", expr=hint(models)),
                        Column(name="Downloads", expr=downloads),
                    ],
                    first=("reason", "hint"),
                    sort="Models",
                    links={
                        "reason": [to_dashboard(REASONS, "This reason", "reason")],
                        "hint": [to_page("How to fix it", REGISTRY + "${__data.fields.hint}")],
                    },
                )
            ]
        ],
    )


def reasons() -> Dashboard:
    every = CHOSEN.asked("compilewatch_reason_models")
    return dashboard(
        REASONS,
        "One reason for graph breaks: the models it hits, how much they are used, when it was "
        "first seen, the trend, and the lines.",
        [_numbers(), _trend(), _models(), _all()],
        variables=[
            *shared_variables(),
            label_variable("reason", "The reason.", f"label_values({every}, reason)", every=False),
        ],
        annotations=[version_changes(CHOSEN)],
        links=navigation(REASONS),
        since="now-90d",
    )
