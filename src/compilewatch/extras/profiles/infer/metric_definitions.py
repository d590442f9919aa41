"""The metrics of inference profiles, and the values of their labels, for docs/metrics.md."""

from __future__ import annotations

from compilewatch.sinks.metric_definitions import RUN, Definition

PROFILED = ("model", "family", "target")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_latency_seconds",
        "Time of one call of a profiled model; the quantile 0.99 is absent without 662 samples.",
        (*PROFILED, "batch_size", "quantile"),
        RUN,
    ),
    Definition(
        "compilewatch_throughput_samples_per_second",
        "Samples per second of a profiled model, from the median of its calls.",
        (*PROFILED, "batch_size"),
        RUN,
    ),
    Definition(
        "compilewatch_profile_memory_bytes",
        "Peak resident memory of a process that makes one call of a profiled model.",
        (*PROFILED, "batch_size"),
        RUN,
    ),
    Definition(
        "compilewatch_profile_speedup_ratio",
        "Latency in eager mode divided by that of the target, from rounds in turns; absent where "
        "the numbers differ.",
        (*PROFILED, "batch_size"),
        RUN,
    ),
    Definition(
        "compilewatch_break_cost_ratio",
        "Share of a call that the graph breaks of a profiled model cost, at its smallest batch "
        "size; 0 without graph breaks.",
        PROFILED,
        RUN,
    ),
    Definition(
        "compilewatch_break_cost_downloads",
        "The same share times the downloads of the model: it ranks what is worth fixing.",
        PROFILED,
        RUN,
    ),
    Definition(
        "compilewatch_break_even_calls",
        "Calls after which compiling has paid, with empty (cold) and filled (warm) caches; absent "
        "where it never does.",
        (*PROFILED, "cache"),
        RUN,
    ),
    Definition(
        "compilewatch_profiles",
        "Profiled models by target: stable, unstable (the rounds differ by more than 10 %), or "
        "failed.",
        ("target", "stability"),
        RUN,
    ),
    Definition(
        "compilewatch_profile_changes",
        "Batch sizes of profiled models by verdict against the baseline, beyond noise; absent "
        "without a baseline.",
        ("target", "verdict"),
        RUN,
    ),
    Definition(
        "compilewatch_profile_slower_ratio",
        "CPU time divided by that of the baseline, of a model that is slower beyond noise.",
        PROFILED,
        RUN,
    ),
)

LABELS: dict[str, str] = {
    "batch_size": "the rows of a batch, a number",
    "quantile": "`0.5` or `0.99`",
    "stability": "`stable`, `unstable`, `failed`",
    "verdict": "`slower`, `faster`, `same`, `unclear`",
}
