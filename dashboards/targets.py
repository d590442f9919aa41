"""The results of each target, and the first target that fails."""

from __future__ import annotations

from dashboards.frame import (
    COST,
    OVERVIEW,
    TARGETS,
    dashboard,
    family,
    row,
    shared,
    to_dashboard,
)
from dashboards.overview import share_over_time
from dashboards.panels import STATUS_SERIES, bars, fixed, stacks, trend
from dashboards.queries import (
    PASSED,
    of_mode,
    of_run,
    or_say,
    share_of_downloads,
    share_of_models,
)
from dashboards.sources import Json, ever, now
from dashboards.states import GREEN, NEARLY_ALL, ORANGE, RED, missing
from dashboards.tables import figures, matrix, table

RESULTS = of_mode("compilewatch_results")
RAN = 'status=~"pass|graph_break|mismatch|error|timeout|oom|crashed"'


def _now() -> list[Json]:
    by = "target, mode, status"
    named = f'label_join(sum by ({by}) ({RESULTS}), "where", " ", "target", "mode")'
    # About a run of several targets: it has no target label.
    layers = of_run("compilewatch_first_failing_layer", 'mode=~"$mode"')
    return [
        stacks(
            "Results by target",
            "Results of the newest run by status. Results without a verdict are grey.",
            (14, 10),
            named,
            row="where",
            column="status",
        ),
        bars(
            "First target that fails",
            "Models by the first of eager, dynamo, export, inductor, xla, neuron that fails. Zero: "
            "the target ran and is never the first.",
            (10, 10),
            now(f"sort_desc(sum by (layer, mode) ({layers}))", "{{layer}} {{mode}}"),
        ),
    ]


def _look_up() -> list[Json]:
    by = "source, target, mode"
    share = {
        "unit": "percentunit",
        "decimals": 1,
        "mappings": [NEARLY_ALL, *missing("–")],
    }
    inside, every = (
        f"sum by ({by}) ({of_mode('compilewatch_operators', *matchers)})"
        for matchers in (('where="captured"',), ())
    )
    captured = f"{inside} / {every}"
    counts = f'label_join(sum by ({by}, status) ({RESULTS}), "where", " ", "target", "mode")'
    return [
        figures(
            "Results by target and status",
            "Results of the newest run. –: no result of that status.",
            (12, 8),
            counts,
            row="where",
            column="status",
            overrides=STATUS_SERIES,
        ),
        table(
            "Shares by target",
            "Captured: operators that ran inside graphs, of all of one forward call of each model. "
            "Without breaks: passes divided by verdicts; by downloads, a model counts as much "
            "as it is downloaded. –: not counted, or downloads unknown.",
            (12, 8),
            {
                "Captured": captured,
                "Without breaks": share_of_models(by),
                "By downloads": share_of_downloads(by),
            },
            labels=("source", "target", "mode"),
            looks={
                "target": {"links": [to_dashboard(COST, "Cost of this target", "target")]},
                "Captured": share,
                "Without breaks": share,
                "By downloads": share,
            },
        ),
    ]


def _families() -> list[Json]:
    def of(*matchers: str) -> str:
        return of_mode("compilewatch_family_results", 'family=~"$family"', *matchers)

    by = "family, target, mode"
    every = f"sum by ({by}) ({of(RAN)})"
    passed = f"(sum by ({by}) ({of(PASSED)}) or 0 * {every}) / {every}"
    return [
        matrix(
            "Families by target",
            "Passes divided by results that ran. Families with the lowest share come first.",
            (24, 14),
            f'sort(label_join({passed}, "column", " ", "target", "mode"))',
            row="family",
            column="column",
            link=to_dashboard(OVERVIEW, "Models of this family", "family"),
            unit="percentunit",
            steps=[(None, RED), (0.5, ORANGE), (1, GREEN)],
        )
    ]


def _neuron() -> list[Json]:
    classes = f"count by (error_class) ({of_mode('compilewatch_neuron_failure')})"
    ran = of_mode("compilewatch_results", 'target=~"neuron.*"')
    expected, fallbacks = (
        f"count by (source, mode) ({of_mode(name)} > 0)"
        for name in ("compilewatch_expected_to_fail_on_neuron", "compilewatch_fallbacks")
    )
    return [
        bars(
            "Neuron failures by class",
            "Models for which neuronx-cc produced no executable.",
            (12, 8),
            now(
                f"sort_desc({or_say(classes, f'group({ran})', error_class='none')})",
                "{{error_class}}",
            ),
            color=fixed(RED),
        ),
        table(
            "XLA fallbacks and expected Neuron failures",
            "Models with an operator that ran outside XLA, and models with one that neuronx-cc "
            "is documented to reject (an expectation, no verdict).",
            (12, 8),
            {"With fallbacks": fallbacks, "Expected to fail": expected},
            labels=("source", "mode"),
        ),
    ]


def targets() -> Json:
    return dashboard(
        TARGETS,
        "Results by target and status, the first target that fails, and families by target.",
        [
            _now(),
            [
                share_over_time(12, 9),
                trend(
                    "Results over time",
                    "Results of the chosen targets and modes by status.",
                    (12, 9),
                    ever(f"sum by (status) ({RESULTS})", "{{status}}"),
                    drawn="bars",
                ),
            ],
            _look_up(),
            _families(),
            row("XLA and Neuron", *_neuron()),
        ],
        variables=[*shared(), family()],
    )
