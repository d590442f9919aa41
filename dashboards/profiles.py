"""Inference profiles: latency, throughput and memory, what graph breaks cost, what is slower."""

from __future__ import annotations

from dashboards.frame import MODEL, PROFILES, dashboard, from_series, row, shared, to_dashboard
from dashboards.panels import BLUE, Json, bars, ever, fixed, now, trend
from dashboards.queries import of_group
from dashboards.states import RED
from dashboards.tables import table

LATENCY = of_group("compilewatch_latency_seconds", 'quantile="0.5"')
TAIL = of_group("compilewatch_latency_seconds", 'quantile="0.99"')
THROUGHPUT = of_group("compilewatch_throughput_samples_per_second")
MEMORY = of_group("compilewatch_profile_memory_bytes")
SPEEDUP = of_group("compilewatch_profile_speedup_ratio")
COST = of_group("compilewatch_break_cost_ratio")
RANKED = of_group("compilewatch_break_cost_downloads")
BREAK_EVEN = of_group("compilewatch_break_even_calls")
SLOWER = of_group("compilewatch_profile_slower_ratio")
BY = "model, target, batch_size"
LEGEND = "{{model}} {{target}} {{batch_size}}"
NOT_PROFILED = "not profiled"


def _best() -> list[Json]:
    figures = {
        "Latency": f"max by ({BY}) ({LATENCY})",
        "p99": f"max by ({BY}) ({TAIL})",
        "Samples/s": f"max by ({BY}) ({THROUGHPUT})",
        "Memory": f"max by ({BY}) ({MEMORY})",
        "Speed-up": f"max by ({BY}) ({SPEEDUP})",
    }
    return [
        table(
            "Profiled models by target and batch size",
            "Of the newest run with profiles. Speed-up is eager latency divided by that of the "
            "target, where the numbers match. –: not measured, or too few samples.",
            (24, 10),
            figures,
            labels=("model", "target", "batch_size"),
            sort="Samples/s",
            looks={
                "model": {"links": [to_dashboard(MODEL, "This model", "model")]},
                **{name: {"unit": "s"} for name in ("Latency", "p99")},
                "Memory": {"unit": "bytes"},
            },
        )
    ]


def _top(title: str, about: str, expr: str, unit: str, **look: str) -> Json:
    return bars(
        title,
        about,
        (12, 9),
        now(expr, "{{model}} {{target}}"),
        unit=unit,
        color=fixed(BLUE),
        empty=look.get("empty", NOT_PROFILED),
        links=[from_series(MODEL, "This model", "model")],
    )


def _over_time(title: str, about: str, expr: str, unit: str) -> Json:
    return trend(title, about, (8, 9), ever(expr, LEGEND), unit=unit)


def profiles() -> Json:
    changes = of_group("compilewatch_profile_changes")
    stability = of_group("compilewatch_profiles")
    return dashboard(
        PROFILES,
        "Inference profiles: latency, throughput and memory by batch size, cost of graph breaks.",
        [
            _best(),
            [
                _over_time(
                    "Latency by batch size",
                    "Median time of one call.",
                    f"max by ({BY}) ({LATENCY})",
                    "s",
                ),
                _over_time(
                    "Throughput by batch size",
                    "Samples per second.",
                    f"max by ({BY}) ({THROUGHPUT})",
                    "none",
                ),
                _over_time(
                    "Memory by batch size",
                    "Peak resident memory of a process that makes one call.",
                    f"max by ({BY}) ({MEMORY})",
                    "bytes",
                ),
            ],
            row("Graph breaks"),
            [
                _top(
                    "Share of a call",
                    "What the graph breaks of a model cost in each call; 0 without graph breaks.",
                    f"sort_desc(topk(15, max by (model, target) ({COST})))",
                    "percentunit",
                ),
                _top(
                    "Worth fixing first",
                    "The same share times the downloads of the model.",
                    f"sort_desc(topk(15, max by (model, target) ({RANKED})))",
                    "short",
                ),
            ],
            row("Compiling"),
            [
                _top(
                    "Least speed-up",
                    "Below 1, compiled code is slower than eager mode.",
                    f"sort(bottomk(15, min by (model, target) ({SPEEDUP})))",
                    "none",
                ),
                bars(
                    "Calls until compiling has paid",
                    "With empty (cold) and filled (warm) caches; a model that is not faster is "
                    "absent.",
                    (12, 9),
                    now(
                        f"sort(bottomk(15, min by (model, target, cache) ({BREAK_EVEN})))",
                        "{{model}} {{target}} {{cache}}",
                    ),
                    color=fixed(BLUE),
                    empty=NOT_PROFILED,
                    links=[from_series(MODEL, "This model", "model")],
                ),
            ],
            row("Against the baseline"),
            [
                bars(
                    "Slower models",
                    "CPU time divided by that of the baseline, beyond noise.",
                    (8, 9),
                    now(f"sort_desc(max by (model, target) ({SLOWER}))", "{{model}} {{target}}"),
                    color=fixed(RED),
                    empty="none, or not compared",
                    links=[from_series(MODEL, "This model", "model")],
                ),
                trend(
                    "Comparisons by verdict",
                    "Batch sizes of profiled models. Unclear: too few rounds, or a busy machine.",
                    (8, 9),
                    ever(f"sum by (target, verdict) ({changes})", "{{target}} {{verdict}}"),
                ),
                trend(
                    "Stability",
                    "Profiled models: unstable ones were measured on a busy machine.",
                    (8, 9),
                    ever(f"sum by (target, stability) ({stability})", "{{target}} {{stability}}"),
                ),
            ],
        ],
        variables=shared(logs=False),
    )
