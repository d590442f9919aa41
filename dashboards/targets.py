"""What each target makes of the models, and which layer is the first to fail."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.frame import (
    COST,
    OVERVIEW,
    TARGETS,
    TEMPLATED,
    Section,
    dashboard,
    label_variable,
    navigation,
    shared_variables,
    to_dashboard,
    version_changes,
)
from dashboards.panels import Column, Size, Text
from dashboards.queries import CHOSEN, RAN, pass_share

KIT = TEMPLATED
BY = "source, target, mode"


def _results(status: str) -> str:
    return CHOSEN.asked("compilewatch_results", f'status=~"{status}"')


def _downloads(status: str) -> str:
    return CHOSEN.asked("compilewatch_downloads", f'status=~"{status}"')


def _matrix() -> Section:
    def count(name: str, status: str) -> Column:
        return Column(name=name, expr=f"sum by ({BY}) ({_results(status)})")

    return Section(
        title="What does each target say?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Results by target and status",
                        description="Whole is passes divided by results that ran; by downloads, "
                        "a model counts as much as it is used. An empty cell: no result of that "
                        "status, or downloads not known.",
                        no_value="–",
                    ),
                    Size(width=24, height=10),
                    [
                        Column(
                            name="Whole",
                            expr=pass_share(_results("pass"), _results(RAN), BY),
                            unit="percentunit",
                        ),
                        Column(
                            name="Whole, by downloads",
                            expr=pass_share(_downloads("pass"), _downloads(RAN), BY),
                            unit="percentunit",
                        ),
                        count("Pass", "pass"),
                        count("Graph break", "graph_break"),
                        count("Mismatch", "mismatch"),
                        count("Error", "error"),
                        count("Timeout", "timeout"),
                        count("Out of memory", "oom"),
                        count("Crashed", "crashed"),
                        count("Skipped", "skipped"),
                        count("Unsupported", "unsupported"),
                    ],
                    first=("source", "target", "mode"),
                    links={"target": [to_dashboard(COST, "What it costs", "target")]},
                )
            ],
            [
                KIT.trend(
                    Text(
                        title="Compiles whole, by target",
                        description="Passes divided by results that ran (skipped and unsupported "
                        "ones left out).",
                    ),
                    Size(width=24, height=9),
                    {
                        "{{source}} {{target}} {{mode}}": pass_share(
                            _results("pass"), _results(RAN), BY
                        )
                    },
                    unit="percentunit",
                    highest=1,
                )
            ],
        ],
    )


def _layers() -> Section:
    # About a whole run, which asks several targets: it has no target label.
    failing = CHOSEN.run("compilewatch_first_failing_layer", CHOSEN.mode)
    return Section(
        title="Which layer is the first to fail?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="First failing layer",
                        description="Models by the first of eager, dynamo, export, inductor, xla, "
                        "neuron that fails. Zero: the layer was asked and is never the first; a "
                        "layer that is not there was not asked.",
                    ),
                    Size(width=12, height=9),
                    [
                        Column(
                            name="Models",
                            expr=f"sum by (source, layer, mode, environment) ({failing})",
                        )
                    ],
                    first=("source", "layer", "mode", "environment"),
                    sort="Models",
                ),
                KIT.trend(
                    Text(
                        title="First failing layer over time",
                        description="Models by the first layer that fails, all sources together.",
                    ),
                    Size(width=12, height=9),
                    {"{{layer}} {{mode}}": f"sum by (layer, mode) ({failing})"},
                    stacked=True,
                ),
            ]
        ],
    )


def _families() -> Section:
    def of(status: str) -> str:
        return CHOSEN.asked(
            "compilewatch_family_results", 'family=~"$family"', f'status=~"{status}"'
        )

    by = "family, target"
    return Section(
        title="Which families, on which target?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Compiles whole, by family and target",
                        description="Passes divided by results that ran, all sources and modes "
                        "together. A pair that is not there was not run.",
                    ),
                    Size(width=24, height=12),
                    [
                        Column(
                            name="Whole",
                            expr=pass_share(of("pass"), of(RAN), by),
                            unit="percentunit",
                        ),
                        Column(name="Ran", expr=f"sum by ({by}) ({of(RAN)})"),
                    ],
                    first=("family", "target"),
                    sort="Ran",
                    links={"family": [to_dashboard(OVERVIEW, "Models of this family", "family")]},
                )
            ]
        ],
    )


def _neuron() -> Section:
    failed = CHOSEN.asked("compilewatch_neuron_failure")
    expected = CHOSEN.asked("compilewatch_expected_to_fail_on_neuron")
    fallbacks = CHOSEN.asked("compilewatch_fallbacks")
    return Section(
        title="XLA and Neuron",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Neuron failures by class",
                        description="Models for which neuronx-cc gave no executable.",
                        no_value="none, or not run",
                    ),
                    Size(width=12),
                    [
                        Column(
                            name="Models",
                            expr=f"count by (error_class, source, mode) ({failed})",
                        )
                    ],
                    first=("error_class", "source", "mode"),
                    sort="Models",
                ),
                KIT.table(
                    Text(
                        title="Outside XLA, and expected to fail on Neuron",
                        description="Models with at least one operator that ran outside XLA, and "
                        "with one that neuronx-cc is documented to reject (no verdict).",
                        no_value="none, or not run",
                    ),
                    Size(width=12),
                    [
                        Column(
                            name="With fallbacks",
                            expr=f"count by (source, mode) ({fallbacks} > 0)",
                        ),
                        Column(
                            name="Expected to fail",
                            expr=f"count by (source, mode) ({expected} > 0)",
                        ),
                    ],
                    first=("source", "mode"),
                ),
            ]
        ],
    )


def targets() -> Dashboard:
    results = CHOSEN.asked("compilewatch_family_results")
    return dashboard(
        TARGETS,
        "The matrix of targets and statuses, the first layer that fails, and families by target.",
        [_matrix(), _layers(), _families(), _neuron()],
        variables=[
            *shared_variables(logs=False),
            label_variable(
                "family", "Of the table of families.", f"label_values({results}, family)"
            ),
        ],
        annotations=[version_changes(CHOSEN)],
        links=navigation(TARGETS),
    )
