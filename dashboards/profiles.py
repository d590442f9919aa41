"""Inference profiles: latency, throughput and memory, what graph breaks cost, what is slower."""

from dashboards import frame, panels
from dashboards import queries as q
from dashboards.queries import Json

LATENCY = q.of_group("compilewatch_latency_seconds", 'quantile="0.5"')
TAIL = q.of_group("compilewatch_latency_seconds", 'quantile="0.99"')
THROUGHPUT = q.of_group("compilewatch_throughput_samples_per_second")
MEMORY = q.of_group("compilewatch_profile_memory_bytes")
SPEEDUP = q.of_group("compilewatch_profile_speedup_ratio")
COST = q.of_group("compilewatch_break_cost_ratio")
RANKED = q.of_group("compilewatch_break_cost_downloads")
BREAK_EVEN = q.of_group("compilewatch_break_even_calls")
SLOWER = q.of_group("compilewatch_profile_slower_ratio")
BY = "model, target, batch_size"


def _best() -> Json:
    figures = {
        "Latency": f"max by ({BY}) ({LATENCY})",
        "p99": f"max by ({BY}) ({TAIL})",
        "Samples/s": f"max by ({BY}) ({THROUGHPUT})",
        "Memory": f"max by ({BY}) ({MEMORY})",
        "Speed-up": f"max by ({BY}) ({SPEEDUP})",
    }
    return panels.table(
        "Profiled models by target and batch size",
        "Of the newest run with profiles. Speed-up is eager latency divided by that of the "
        "target, where the numbers match. –: not measured, or too few samples.",
        figures,
        labels=("model", "target", "batch_size"),
        sort="Samples/s",
        looks={
            "model": frame.cell("model"),
            **{name: {"unit": "s"} for name in ("Latency", "p99")},
            "Memory": {"unit": "bytes"},
        },
    )


def _top(title: str, about: str, expr: str, unit: str) -> Json:
    return panels.bars(
        title,
        about,
        q.now(expr, "{{model}} {{target}}"),
        unit=unit,
        links=frame.series("model"),
    )


def _by_size(title: str, about: str, selected: str, unit: str) -> Json:
    """Against the batch size, with a bar for each model and target."""
    named = f'label_join({selected}, "series", " ", "model", "target")'
    return panels.by_number(
        title,
        about,
        f"max by (series, batch_size) ({named})",
        row="batch_size",
        column="series",
        unit=unit,
    )


def profiles() -> Json:
    changes = q.of_group("compilewatch_profile_changes")
    slower = f"max by (model, target) ({SLOWER})"
    evidence = f"group({changes})"
    even = f"bottomk(15, min by (model, target, cache) ({BREAK_EVEN}))"
    stability = q.of_group("compilewatch_profiles")
    return frame.dashboard(
        frame.PROFILES,
        "Inference profiles: latency, throughput and memory by batch size, cost of graph breaks.",
        [
            frame.line(10, _best()),
            frame.line(
                10,
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
            ),
            frame.row("Graph breaks"),
            frame.line(
                9,
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
            ),
            frame.row("Compiling"),
            frame.line(
                9,
                _top(
                    "Least speed-up",
                    "Below 1, compiled code is slower than eager mode.",
                    f"sort(bottomk(15, min by (model, target) ({SPEEDUP})))",
                    "none",
                ),
                panels.bars(
                    "Calls until compiling has paid",
                    "With empty (cold) and filled (warm) caches; a model that is not faster is "
                    "absent.",
                    q.now(
                        f"sort({q.or_say(even, f'group({LATENCY})', model='none has paid')})",
                        "{{model}} {{target}} {{cache}}",
                    ),
                    links=frame.series("model"),
                ),
            ),
            frame.row("Against the baseline"),
            frame.line(
                9,
                panels.bars(
                    "Slower models",
                    "CPU time divided by that of the baseline, beyond noise.",
                    q.now(
                        f"sort_desc({q.or_say(slower, evidence, model='none is slower')})",
                        "{{model}} {{target}}",
                    ),
                    color=panels.fixed(panels.RED),
                    links=frame.series("model"),
                ),
                panels.trend(
                    "Comparisons by verdict",
                    "Batch sizes of profiled models. Unclear: too few rounds, or a busy machine.",
                    q.ever(f"sum by (target, verdict) ({changes})", "{{target}} {{verdict}}"),
                ),
                panels.trend(
                    "Stability",
                    "Profiled models: unstable ones were measured on a busy machine.",
                    q.ever(f"sum by (target, stability) ({stability})", "{{target}} {{stability}}"),
                ),
            ),
        ],
        variables=frame.shared(),
    )
