"""Inference profiles: latency, throughput and memory, what graph breaks cost, what is slower."""

from __future__ import annotations

from dashboards.frame import MODEL, PROFILES, dashboard, from_series, row, shared, to_dashboard
from dashboards.panels import bars, by_number, fixed, trend
from dashboards.queries import of_group, or_say
from dashboards.sources import Json, ever, now
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


def _top(title: str, about: str, expr: str, unit: str) -> Json:
    return bars(
        title,
        about,
        (12, 9),
        now(expr, "{{model}} {{target}}"),
        unit=unit,
        links=[from_series(MODEL, "This model", "model")],
    )


def _by_size(title: str, about: str, selected: str, unit: str) -> Json:
    """Against the batch size, with a bar for each model and target."""
    named = f'label_join({selected}, "series", " ", "model", "target")'
    return by_number(
        title,
        about,
        (8, 10),
        f"max by (series, batch_size) ({named})",
        row="batch_size",
        column="series",
        unit=unit,
    )


def profiles() -> Json:
    changes = of_group("compilewatch_profile_changes")
    slower = f"max by (model, target) ({SLOWER})"
    even = f"bottomk(15, min by (model, target, cache) ({BREAK_EVEN}))"
    stability = of_group("compilewatch_profiles")
    return dashboard(
        PROFILES,
        "Inference profiles: latency, throughput and memory by batch size, cost of graph breaks.",
        [
            _best(),
            [
                _by_size(
                    "Latency by batch size",
                    "Median time of one call.",
                    LATENCY,
                    "s",
                ),
                _by_size(
                    "Throughput by batch size",
                    "Samples per second.",
                    THROUGHPUT,
                    "none",
                ),
                _by_size(
                    "Memory by batch size",
                    "Peak resident memory of a process that makes one call.",
                    MEMORY,
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
                        f"sort({or_say(even, f'group({LATENCY})', model='none has paid')})",
                        "{{model}} {{target}} {{cache}}",
                    ),
                    links=[from_series(MODEL, "This model", "model")],
                ),
            ],
            row("Against the baseline"),
            [
                bars(
                    "Slower models",
                    "CPU time divided by that of the baseline, beyond noise.",
                    (8, 9),
                    now(
                        f"sort_desc({or_say(slower, f'group({changes})', model='none is slower')})",
                        "{{model}} {{target}}",
                    ),
                    color=fixed(RED),
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
        variables=shared(),
    )
