"""The files of a profile: figures for other programs, text, pictures, and the page.

The page is script-free HTML with SVG charts, in the style of a run's report; the pictures are PNG,
by matplotlib. Figures are worded the same in files, pages and the terminal.
"""

import io
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from compilewatch.extras.profiles import analysis, records
from compilewatch.extras.profiles.records import Software, target_kind
from compilewatch.records import Accuracy
from compilewatch.report import charts, wording
from compilewatch.report.html import CHART_WIDTHS, environment, source_code
from compilewatch.report.wording import milliseconds

MEGABYTE = 1e6
"""The unit of these files, as in other profilers: 1 MB = 1,000,000 bytes."""

MEGABYTES_FROM = 10_000_000
"""From here on, memory is in whole megabytes."""

_SETTING = re.compile(r"\bcapture_(?:scalar_outputs|dynamic_output_shape_ops)\b")
"""Settings of `torch._dynamo.config` that torch itself suggests in the reason of a break."""

PAGE = "report.html"
COMPARISON = "plots/batch_size_comparison.png"
CALL = "charts/call.svg"
OPERATORS_SHOWN = 15


# --- words ----------------------------------------------------------------------------------------


def megabytes(size: float | None) -> str:
    if size is None:
        return "–"
    return f"{size / 1e6:,.0f} MB" if size >= MEGABYTES_FROM else f"{size / 1e6:,.2f} MB"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def _ratio_words(ratio: float | None, low: float | None, high: float | None) -> str:
    """`1.25 ×`, with the interval where it has one."""
    if ratio is None:
        return "–"
    span = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f"{ratio:.2f} ×{span}"


def speedup_words(point: records.BatchPoint) -> str:
    return _ratio_words(point.speedup, point.speedup_low, point.speedup_high)


def accuracy_words(scores: Accuracy) -> str:
    text = (
        f"accuracy {scores.accuracy:.4f}, F1 macro {scores.f1_macro:.4f}, "
        f"F1 weighted {scores.f1_weighted:.4f} of {scores.samples:,} samples"
    )
    if scores.disagreements is None:
        return text
    return f"{text}; {scores.disagreements:,} predicted otherwise than in eager mode"


def break_even_words(point: records.BatchPoint) -> str:
    calls = f"{point.break_even_calls_cold or 0:,.0f} calls"
    text = f"compiling pays after {calls} of batch {point.batch_size}"
    if point.break_even_calls_warm is None:
        return text
    return f"{text}, after {point.break_even_calls_warm:,.0f} with filled caches"


def against_first_words(target: str, size: int, judged: records.SpeedJudgement) -> str:
    """`takes 1.05 × (1.03 to 1.07) the time of inductor in the first environment at batch 8`."""
    ratio = _ratio_words(judged.ratio, judged.ratio_low, judged.ratio_high)
    other = f"the time of {target_kind(target)} in the first environment"
    text = f"takes {ratio} {other} at batch {size}"
    return f"{text}; no claim: {judged.reason}" if judged.reason else text


def break_cost_words(cost: records.BreakCost) -> str:
    """`1.2 ms (8 %): Python 0.9 ms, guards 0.2 ms, operators 0.1 ms`."""
    return (
        f"{milliseconds(cost.seconds)} ({cost.share:.1%}): "
        f"Python {milliseconds(cost.python_seconds)}, guards {milliseconds(cost.guard_seconds)}, "
        f"operators {milliseconds(cost.eager_seconds)}"
    )


# --- figures for other programs, and text ---------------------------------------------------------


def in_megabytes(size: int | None) -> float | None:
    return _times(size, 1 / MEGABYTE)


def _times(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None else None


def _value(record: records.BatchPoint | records.TargetProfile | None, path: str) -> Any:
    """A figure of a record, such as `latency.median_seconds`; None if it was not measured."""
    value: Any = record
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


COLUMNS: dict[str, tuple[str, float | None]] = {
    "batch_size": ("batch_size", None),
    "status": ("status", None),
    "samples": ("latency.count", None),
    "rounds": ("latency.rounds", None),
    **{
        f"latency_per_batch_ms_{name}": (f"latency.{name}_seconds", 1e3)
        for name in ("median", "mean", "stdev", "ci_low", "ci_high", "p90", "p95", "p99")
    },
    "latency_per_sample_ms_median": ("per_sample_seconds", 1e3),
    "cpu_time_per_batch_ms_median": ("latency.cpu_median_seconds", 1e3),
    "throughput_samples_per_sec_mean": ("samples_per_second", None),
    "throughput_batches_per_sec_mean": ("calls_per_second", None),
    "tokens_per_sec_mean": ("tokens_per_second", None),
    "rss_peak_mb": ("memory.rss_peak_bytes", 1 / MEGABYTE),
    "call_peak_mb": ("memory.call_peak_bytes", 1 / MEGABYTE),
    "device_peak_mb": ("memory.device_peak_bytes", 1 / MEGABYTE),
    "utilization_percent": ("utilization", 100),
    "device_utilization_percent": ("device_utilization", 100),
    "device_used_mb": ("memory.device_used_bytes", 1 / MEGABYTE),
    "speedup": ("speedup", None),
    "first_call_s": ("first_call_seconds", None),
    "warm_first_call_s": ("warm_first_call_seconds", None),
    "load_s": ("load_seconds", None),
    "graphs": ("graphs", None),
    "graph_breaks": ("graph_breaks", None),
    "stable": ("latency.stable", None),
    "detail": ("detail", None),
}
"""The figures of a point, after its target: where they are, and the factor of their unit."""


def _row(target: records.TargetProfile, point: records.BatchPoint) -> dict[str, object]:
    row: dict[str, object] = {"target": target.target}
    for name, (path, factor) in COLUMNS.items():
        value = _value(point, path)
        row[name] = value if factor is None else _times(value, factor)
    if target.target == records.EAGER and point.latency is not None:
        row["speedup"] = 1.0
    return row


def files(
    profile: records.InferenceProfile, samples: Sequence[records.Samples]
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of every file of a profile; the page comes last."""
    yield from figures(profile, samples)
    yield from plots(profile)
    yield from page(profile)


def figures(
    profile: records.InferenceProfile, samples: Sequence[records.Samples]
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the files for other programs, and of the text."""
    yield "raw_values.json", msgspec.json.encode(samples)
    metrics = msgspec.json.encode(baseline_metrics(profile))
    yield "baseline_metrics.json", msgspec.json.format(metrics, indent=2) + b"\n"
    rows = (_row(target, point).values() for target, point in profile.points())
    yield "detailed_metrics.csv", records.csv_bytes(("target", *COLUMNS), rows)
    yield "baseline_summary_report.txt", summary_report(profile).encode()
    if operators := operators_of(profile):
        yield "op_stats.csv", records.operators_csv(operators)


def operators_of(profile: records.InferenceProfile) -> tuple[records.OperatorStat, ...]:
    """The operators of `profiler_traces/trace.json`, most time of their own first."""
    main = profile.target(analysis.main_traced(profile.options.targets) or "")
    return main.traced_operators if main else ()


def baseline_metrics(profile: records.InferenceProfile) -> dict[str, Any]:
    """The main figures: `full_dataset_metrics` of the best target, then every batch size."""
    target, point = analysis.fastest(profile) or (None, None)
    return {
        "schema_version": profile.schema_version,
        "profile": profile.id,
        "model": {
            "name": profile.model,
            "parameters": profile.parameters,
            "trainable_parameters": profile.trainable_parameters,
            "size_mb": in_megabytes(profile.model_bytes),
            "dtype": profile.options.dtype,
            "size": profile.options.size,
        },
        "machine": profile.machine,
        "full_dataset_metrics": {
            "target": _value(target, "target"),
            "optimal_batch_size": _value(point, "batch_size"),
            "throughput_samples_per_sec": _value(point, "samples_per_second"),
            "latency_per_sample_ms": _times(_value(point, "per_sample_seconds"), 1e3),
            "accuracy": _value(target, "accuracy.accuracy"),
            "f1_macro": _value(target, "accuracy.f1_macro"),
            "f1_weighted": _value(target, "accuracy.f1_weighted"),
            "num_samples": _value(target, "accuracy.samples"),
            "total_time_s": _value(target, "accuracy.seconds"),
            "gpu_mem_used": in_megabytes(_value(point, "memory.device_peak_bytes")),
            "cpu_mem_used": in_megabytes(_value(point, "memory.rss_peak_bytes")),
            "bottleneck": analysis.bottleneck(profile),
        },
        "targets": {
            measured.target: {
                "software": measured.software,
                "best_batch_size": measured.best_batch_size,
                "batch_sizes": {str(p.batch_size): _row(measured, p) for p in measured.points},
                "generation": measured.generation,
                "accuracy": measured.accuracy,
            }
            for measured in profile.targets
        },
    }


def summary_report(profile: records.InferenceProfile) -> str:
    """The figures as text: Full Dataset Performance, then Batch Size Analysis."""
    lines = [f"Inference profile of {profile.model}", "=" * 70, ""]
    lines += [f"{name:<22}{value}" for name, value in facts(profile)]
    lines += ["", "Full Dataset Performance", "-" * 70]
    scored = [(t.target, t.accuracy) for t in profile.targets if t.accuracy is not None]
    lines += [f"{name:<22}{accuracy_words(accuracy)}" for name, accuracy in scored]
    if not scored:
        lines.append("not measured: no labelled texts were given (--data)")
    lines += ["", "Batch Size Analysis", "-" * 70]
    width = max(12, *(len(target.target) + 2 for target in profile.targets))
    for first, *figures, remark in (POINT_HEADINGS, *point_rows(profile)):
        row = "".join(f"{figure:>12}" for figure in figures)
        lines.append(f"{first:<{width}}{row}  {remark}".rstrip())
    lines += ["", "Findings", "-" * 70]
    lines += [f"{name + ' ':<22}{value}" for name, value in answers(profile)]
    lines += [f"Note: {note}" for note in profile.notes]
    return "\n".join(lines) + "\n"


def facts(profile: records.InferenceProfile) -> list[tuple[str, str]]:
    """What was measured, and where, as (name, value)."""
    options, machine = profile.options, profile.machine
    tokens = f", {profile.tokens_per_sample} tokens a sample" if profile.tokens_per_sample else ""
    size = f"{(profile.model_bytes or 0) / MEGABYTE:,.2f} MB"
    return [
        ("Model", f"{profile.model}, {profile.parameters or 0:,} parameters, {size}"),
        ("Inputs", f"{profile.inputs_strategy}, {options.dtype}{tokens}"),
        (
            "Machine",
            f"{machine.cpu}, {machine.cores} cores, {wording.memory(machine.memory_bytes)}",
        ),
        ("Threads", str(options.threads)),
        ("Software", "; ".join(_versions(profile))),
        ("Measured", f"up to {options.rounds} rounds of {options.runs} calls, targets interleaved"),
    ]


def _versions(profile: records.InferenceProfile) -> Iterator[str]:
    """The versions of each environment, after the targets that ran in it."""
    targets: dict[Software, list[str]] = {}
    for target in profile.targets:
        targets.setdefault(target.software, []).append(target.target)
    for software, names in targets.items():
        versions = f"torch {software.torch}, transformers {software.transformers}"
        yield versions if len(targets) == 1 else f"{', '.join(names)}: {versions}"


def answers(profile: records.InferenceProfile) -> Iterator[tuple[str, str]]:
    """Yield what people look for: the best batch, the bottleneck, the accuracy."""
    best = "nothing was measured"
    if (fastest := analysis.fastest(profile)) is not None:
        target, point = fastest
        best = (
            f"{point.batch_size} on {target.target}: {point.samples_per_second or 0:,.1f} "
            f"samples/s, {(point.per_sample_seconds or 0) * 1e3:,.2f} ms a sample"
        )
    yield "Best batch", best
    yield "Main bottleneck", analysis.bottleneck(profile)
    for target in profile.targets:
        name = target.target
        if target.accuracy is not None:
            yield f"Accuracy ({name})", accuracy_words(target.accuracy)
        if (text := target.generation) is not None:
            yield (
                f"Generation ({name})",
                f"prompt {text.prefill_tokens_per_second:,.0f} tokens/s, then "
                f"{text.decode_tokens_per_second:,.1f} tokens/s, batch {text.batch_size}",
            )
        judged = [(p.batch_size, p.against_first) for p in target.points if p.against_first]
        if judged:
            yield name, against_first_words(name, *judged[-1])
        paid = next((p for p in target.points if p.break_even_calls_cold is not None), None)
        if paid is not None:
            yield f"Break-even ({name})", break_even_words(paid)
    reasons = (cost.reason for _, point in profile.points() for cost in point.breaks)
    for setting in dict.fromkeys(name for reason in reasons for name in _SETTING.findall(reason)):
        yield f"Setting {setting}", "PyTorch suggests it: fix --cost verifies and times it"


POINT_HEADINGS = (
    *("Target", "Batch", "Latency", "Per sample", "Samples/s", "Memory", "Speed-up"),
    "",
)


def point_rows(profile: records.InferenceProfile) -> Iterator[tuple[str, ...]]:
    """Yield the main figures of each target and batch size, under `POINT_HEADINGS`."""
    for target, point in profile.points():
        timing, size = point.latency, str(point.batch_size)
        if timing is None:
            failure = f"{point.status.value}: {point.detail}"
            yield (target.target, size, *("–",) * 5, failure)
            continue
        wrong = point.numerics is not None and not point.numerics.matches
        speedup = speedup_words(point).partition(" (")[0]
        yield (
            target.target,
            size,
            milliseconds(timing.median_seconds),
            milliseconds(point.per_sample_seconds),
            rate(point.samples_per_second),
            megabytes(point.memory.rss_peak_bytes if point.memory else None),
            "1.00 ×" if target.target == records.EAGER else speedup,
            "numbers differ" if wrong else "" if timing.stable else "unstable",
        )


# --- pictures -------------------------------------------------------------------------------------

PARTS = {
    "graph": "compiled graphs",
    "operators": "eager operators",
    "guard": "guards",
    "python": "Python between graphs",
}
"""How each part of a call is worded."""


class Panel(NamedTuple):
    """One figure by batch size, at `path` of a point, which pictures show in `unit`."""

    title: str
    path: str
    unit: str


PANELS = (
    Panel("Latency per sample", "per_sample_seconds", "ms"),
    Panel("Latency per batch", "latency.median_seconds", "ms"),
    Panel("Samples per second", "samples_per_second", "samples/s"),
    Panel("Peak memory of one call, beyond model and interpreter", "memory.call_peak_bytes", "MB"),
    Panel("Speed-up over eager mode", "speedup", "×"),
    Panel("Utilisation of the threads", "utilization", "%"),
)
UNITS = {"ms": 1e3, "samples/s": 1.0, "MB": 1 / MEGABYTE, "×": 1.0, "%": 100.0}
"""What a figure is multiplied with for its unit."""


def call_parts(profile: records.InferenceProfile, width: int) -> bytes:
    """One bar for each batch size: the shares of a call of compiled code."""
    bars = [
        charts.Bar(label=f"{target.target}, batch {point.batch_size}", parts=(*parts.items(),))
        for target, point in profile.points()
        if (parts := point.segments.parts if point.segments else None) is not None
    ]
    title, tones = "Where a call goes", charts.PROFILE_TONES
    return charts.stacked_bars(
        title, bars, PARTS, width, text=milliseconds, tones=tones, equal=True
    )


def plots(profile: records.InferenceProfile) -> Iterator[tuple[str, bytes]]:
    """Yield (name, PNG) of both pictures; nothing if nothing was measured."""
    if any(point.latency for _, point in profile.points()):
        yield COMPARISON, batch_size_comparison(profile)
        yield "plots/metrics_heatmap.png", metrics_heatmap(profile)


def batch_size_comparison(profile: records.InferenceProfile) -> bytes:
    """Six panels, one line a target; bars show the 95 % interval of the median."""
    figure = _figure((13.0, 7.6))
    axes = figure.subplots(2, 3)
    tones = charts.target_tones(target.target for target in profile.targets)
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        is_latency = panel.unit == "ms"
        for target in profile.targets:
            points = [p for p in target.points if _value(p, panel.path) is not None]
            if not points:
                continue
            axis.errorbar(
                [str(p.batch_size) for p in points],
                _scaled(panel, points),
                yerr=_errors(panel, points) if is_latency else None,
                label=target.target,
                color=tones[target.target],
                marker="o",
                capsize=3,
                linewidth=1.6,
                markersize=5,
            )
        if is_latency:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:,g}")
            axis.yaxis.set_minor_formatter("{x:,g}")
        elif panel.unit == "×":
            axis.axhline(1, color=charts.PROFILE_TONES[records.EAGER], linewidth=1, linestyle="--")
            axis.set_ylim(min(axis.get_ylim()[0], 0.9), axis.get_ylim()[1] * 1.05)
        else:
            axis.set_ylim(0, axis.get_ylim()[1] * 1.05)
        axis.set_title(panel.title, fontsize=10, loc="left")
        axis.set_ylabel(panel.unit)
        axis.set_xlabel("batch size")
        axis.grid(visible=True, axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False)
    figure.suptitle(_title(profile), x=0.01, ha="left", fontsize=12)
    return _png(figure)


def metrics_heatmap(profile: records.InferenceProfile) -> bytes:
    """Each figure by target and batch size, as a share of its largest value."""
    columns = [(t.target, p) for t, p in profile.points() if p.latency]
    rows = [(panel, _scaled(panel, [p for _, p in columns])) for panel in PANELS]
    rows = [(panel, values) for panel, values in rows if any(v is not None for v in values)]
    shares = [[(v or 0.0) / max((x for x in vs if x), default=1) for v in vs] for _, vs in rows]
    figure = _figure((max(6.0, 1.05 * len(columns) + 3.4), 0.62 * len(rows) + 1.9))
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="YlOrBr", vmin=0, vmax=1, aspect="auto")
    for y, (_, values) in enumerate(rows):
        for x, value in enumerate(values):
            text = "–" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
            dark = shares[y][x] > 0.6
            axis.text(x, y, text, ha="center", va="center", color="white" if dark else "#222222")
    axis.set_xticks(range(len(columns)), [f"{t}\n{p.batch_size}" for t, p in columns])
    axis.set_yticks(range(len(rows)), [f"{panel.title} ({panel.unit})" for panel, _ in rows])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="share of the largest")
    figure.suptitle(_title(profile), x=0.01, ha="left", fontsize=11)
    return _png(figure)


def _scaled(panel: Panel, points: Sequence[records.BatchPoint]) -> list[float | None]:
    return [_times(_value(point, panel.path), UNITS[panel.unit]) for point in points]


def _errors(panel: Panel, points: Sequence[records.BatchPoint]) -> list[list[float]]:
    """How far the interval of the median reaches below and above it, in the unit of the panel."""
    below, above = [], []
    for point, value in zip(points, _scaled(panel, points), strict=True):
        assert point.latency is not None
        timing = point.latency
        scale = (value or 0.0) / timing.median_seconds
        below.append(max(0.0, timing.median_seconds - timing.ci_low_seconds) * scale)
        above.append(max(0.0, timing.ci_high_seconds - timing.median_seconds) * scale)
    return [below, above]


def _title(profile: records.InferenceProfile) -> str:
    options = profile.options
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    return f"{profile.model} · {options.dtype} · {threads} · {profile.machine.cpu}"


def _figure(size: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure  # no pyplot: it would keep figures and look for a display

    return Figure(figsize=size, dpi=110, layout="constrained")


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


# --- page -----------------------------------------------------------------------------------------


def page(profile: records.InferenceProfile) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the page, its style and its chart; the page comes last."""
    yield "report.css", resources.files("compilewatch.report").joinpath("report.css").read_bytes()
    divided = any(point.segments for _, point in profile.points())
    for suffix, width in CHART_WIDTHS.items() if divided else ():
        yield f"charts/call{suffix}.svg", call_parts(profile, width)
    operators = operators_of(profile)
    text = (
        environment("compilewatch.extras.profiles")
        .get_template("profile.html")
        .render(
            profile=profile,
            facts=[(name, value) for name, value in facts(profile) if name != "Software"],
            answers=answers(profile),
            picture=COMPARISON,
            divided=divided,
            best=analysis.fastest(profile),
            broken=analysis.broken(profile),
            source=source_code,
            operators=operators[:OPERATORS_SHOWN],
            operator_microseconds=sum(o.self_cpu_time_us for o in operators),
            analysis=analysis,
            words=sys.modules[__name__],
        )
    )
    yield PAGE, text.encode()
