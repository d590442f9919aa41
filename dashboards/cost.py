"""What compiling costs: time, memory, speed-up; the slowest, and those out of line."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from dashboards.frame import (
    COST,
    MODEL,
    TEMPLATED,
    Section,
    dashboard,
    navigation,
    shared_variables,
    to_dashboard,
    version_changes,
)
from dashboards.panels import Column, Size, Text
from dashboards.queries import CHOSEN

KIT = TEMPLATED
COLD = CHOSEN.asked("compilewatch_compile_duration_seconds", 'cache="cold"')
WARM = CHOSEN.asked("compilewatch_compile_duration_seconds", 'cache="warm"')
MEMORY = CHOSEN.asked("compilewatch_peak_memory_bytes")
SPEEDUP = CHOSEN.asked("compilewatch_speedup_ratio")
BY = "target, mode"
WHO = "model, family, target, mode"
OUTLIER_FACTOR = 3


def _typical() -> Section:
    def quantile(q: float, selected: str) -> str:
        return f"quantile by ({BY}) ({q}, {selected})"

    return Section(
        title="What is usual?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Usual cost by target",
                        description="Over models: the median, and what 95 % stay below. Empty: "
                        "the target does not measure it. Speed-up is eager latency divided by "
                        "that of compiled code.",
                    ),
                    Size(width=24, height=9),
                    [
                        Column(name="Cold, median", expr=quantile(0.5, COLD), unit="s"),
                        Column(name="Cold, 95 %", expr=quantile(0.95, COLD), unit="s"),
                        Column(name="Warm, median", expr=quantile(0.5, WARM), unit="s"),
                        Column(name="Memory, median", expr=quantile(0.5, MEMORY), unit="bytes"),
                        Column(name="Memory, 95 %", expr=quantile(0.95, MEMORY), unit="bytes"),
                        Column(name="Speed-up, median", expr=quantile(0.5, SPEEDUP), unit="none"),
                    ],
                    first=("target", "mode"),
                    sort="Cold, median",
                )
            ]
        ],
    )


def _over_time() -> Section:
    spent = CHOSEN.asked("compilewatch_phase_duration_seconds")
    compiling = CHOSEN.asked("compilewatch_phase_duration_seconds", 'phase="compile"')
    verdicts = CHOSEN.asked("compilewatch_verdicts")
    return Section(
        title="Does it change?",
        lines=[
            [
                KIT.trend(
                    Text(
                        title="Time by phase",
                        description="Seconds that all models together spent in each phase, one "
                        "process each: reused answers count what they took when they were made.",
                    ),
                    Size(width=12, height=9),
                    {"{{phase}}": f"sum by (phase) ({spent})"},
                    unit="s",
                    stacked=True,
                ),
                KIT.trend(
                    Text(
                        title="Compile time of a verdict",
                        description="Time in the phase compile divided by the number of verdicts: "
                        "an average that does not move with the number of models.",
                    ),
                    Size(width=12, height=9),
                    {
                        "{{target}} {{mode}}": f"sum by ({BY}) ({compiling}) "
                        f"/ (sum by ({BY}) ({verdicts}) > 0)"
                    },
                    unit="s",
                ),
            ]
        ],
    )


def _extremes() -> Section:
    def top(title: str, description: str, name: str, expr: str, unit: str) -> Panel:
        return KIT.table(
            Text(title=title, description=description),
            Size(width=12, height=10),
            [Column(name=name, expr=expr, unit=unit)],
            first=("model", "family", "target", "mode"),
            sort=name,
            links={"model": [to_dashboard(MODEL, "This model", "model")]},
        )

    # Against the median of the same target and mode, where that has one.
    outliers = (
        f"topk(50, max by ({WHO}) ({COLD}) / on ({BY}) group_left () "
        f"(quantile by ({BY}) (0.5, {COLD}) > 0)) > {OUTLIER_FACTOR}"
    )
    return Section(
        title="Which models?",
        lines=[
            [
                top(
                    "Slowest to compile",
                    "The 20 with the longest compile from empty caches.",
                    "Cold compile",
                    f"topk(20, max by ({WHO}) ({COLD}))",
                    "s",
                ),
                top(
                    "Out of line",
                    f"Compile time in multiples of the target's median, from {OUTLIER_FACTOR} on.",
                    "Times the median",
                    outliers,
                    "none",
                ),
            ],
            [
                top(
                    "Most memory",
                    "The 20 whose process took the most resident memory.",
                    "Peak memory",
                    f"topk(20, max by ({WHO}) ({MEMORY}))",
                    "bytes",
                ),
                top(
                    "Least speed-up",
                    "The 20 that gain least: below 1, compiled code is slower than eager.",
                    "Speed-up",
                    f"bottomk(20, min by ({WHO}) ({SPEEDUP}))",
                    "none",
                ),
            ],
        ],
    )


def cost() -> Dashboard:
    return dashboard(
        COST,
        "Compile times, memory and speed-up: the usual, the trend, the slowest and the outliers.",
        [_typical(), _over_time(), _extremes()],
        variables=shared_variables(logs=False),
        annotations=[version_changes(CHOSEN)],
        links=navigation(COST),
    )
