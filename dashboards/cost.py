"""The cost of compiling: time, memory, speed-up; the slowest models and the outliers."""

from __future__ import annotations

from dashboards.frame import COST, MODEL, TARGETS, dashboard, from_series, row, shared, to_dashboard
from dashboards.panels import BLUE, bars, fixed, trend
from dashboards.queries import MINUTES, SECONDS, of_mode, or_say
from dashboards.sources import Json, ever, now
from dashboards.tables import table

COLD = of_mode("compilewatch_compile_duration_seconds", 'cache="cold"')
WARM = of_mode("compilewatch_compile_duration_seconds", 'cache="warm"')
MEMORY = of_mode("compilewatch_peak_memory_bytes")
SPEEDUP = of_mode("compilewatch_speedup_ratio")
SPENT = "compilewatch_phase_duration_seconds"
COMPILING = of_mode(SPENT, 'phase="compile"')
BY = "target, mode"
LEGEND = "{{target}} {{mode}}"
OUTLIER_FACTOR = 3


def _median(selected: str, quantile: float = 0.5) -> str:
    return f"quantile by ({BY}) ({quantile}, {selected})"


def _usual() -> list[Json]:
    phases = of_mode(SPENT, 'phase!="done"')
    return [
        bars(
            "Median compile time",
            "Over models, with empty caches, by target and mode.",
            (8, 9),
            now(f"sort_desc({_median(COLD)})", LEGEND),
            unit=SECONDS,
            color=fixed(BLUE),
            links=[from_series(TARGETS, "This target", "target")],
        ),
        trend(
            "Compile time of a verdict",
            "Time in the phase compile divided by the number of verdicts: an average that does not "
            "depend on the number of models.",
            (8, 9),
            ever(
                f"sum by ({BY}) ({COMPILING}) "
                f"/ (sum by ({BY}) ({of_mode('compilewatch_verdicts')}) > 0)",
                LEGEND,
            ),
            unit=SECONDS,
        ),
        trend(
            "Time by phase",
            "Minutes that all models together spent in each phase, one process each: reused "
            "results count the time of their original run.",
            (8, 9),
            ever(f"sum by (phase) ({phases}) / 60", "{{phase}}"),
            unit=MINUTES,
            drawn="bars",
        ),
    ]


def _extreme(title: str, about: str, expr: str, unit: str) -> Json:
    return bars(
        title,
        about,
        (12, 11),
        now(expr, "{{model}} {{target}} {{mode}}"),
        unit=unit,
        color=fixed(BLUE),
        links=[from_series(MODEL, "This model", "model")],
    )


def _top(selected: str) -> str:
    return f"sort_desc(topk(15, max by (model, {BY}) ({selected})))"


def cost() -> Json:
    # Against the median of the same target and mode, where that has one.
    far = (
        f"topk(15, max by (model, {BY}) ({COLD}) / on ({BY}) group_left () "
        f"({_median(COLD)} > 0)) > {OUTLIER_FACTOR}"
    )
    outliers = f"sort_desc({or_say(far, f'group({COLD})', model='none')})"
    return dashboard(
        COST,
        "Compile times, memory and speed-up: usual values, trends, slowest models and outliers.",
        [
            _usual(),
            [
                _extreme(
                    "Slowest to compile",
                    "The 15 models with the longest compilation from empty caches.",
                    _top(COLD),
                    SECONDS,
                ),
                _extreme(
                    "Most memory",
                    "The 15 models whose process used the most resident memory.",
                    _top(MEMORY),
                    "bytes",
                ),
            ],
            [
                _extreme(
                    "Outliers",
                    f"Compile time in multiples of the target's median, from {OUTLIER_FACTOR} on.",
                    outliers,
                    "none",
                ),
                table(
                    "Usual cost by target",
                    "Over models: the median and the 95th percentile (p95). Cold and warm: "
                    "compile time with empty and filled caches. Speed-up is eager latency divided "
                    "by that of compiled code. –: the target does not measure it.",
                    (12, 11),
                    {
                        "Cold": _median(COLD),
                        "Cold p95": _median(COLD, 0.95),
                        "Warm": _median(WARM),
                        "Memory": _median(MEMORY),
                        "Memory p95": _median(MEMORY, 0.95),
                        "Speed-up": _median(SPEEDUP),
                    },
                    labels=("target", "mode"),
                    sort="Cold",
                    looks={
                        "target": {"links": [to_dashboard(TARGETS, "This target", "target")]},
                        **{name: {"unit": SECONDS} for name in ("Cold", "Cold p95")},
                        "Warm": {"unit": SECONDS},
                        **{name: {"unit": "bytes"} for name in ("Memory", "Memory p95")},
                    },
                ),
            ],
            row(
                "Speed-up",
                {
                    **_extreme(
                        "Least speed-up",
                        "The 15 models with the lowest speed-up; below 1, compiled code is slower.",
                        f"sort(bottomk(15, min by (model, {BY}) ({SPEEDUP})))",
                        "none",
                    ),
                    "gridPos": {"w": 24, "h": 11},
                },
            ),
        ],
        variables=shared(),
    )
