"""The files of a profile: figures for other programs, text, pictures, and the page.

The page is script-free HTML with SVG charts, in the style of a run's report; the pictures are PNG,
by matplotlib. Figures are worded the same in files, pages and the terminal.
"""

from __future__ import annotations

import csv
import io
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from statistics import median
from typing import Any, NamedTuple

import msgspec

from compilewatch.extras.profiles import analysis
from compilewatch.extras.profiles.records import (
    EAGER,
    BatchPoint,
    BreakCost,
    InferenceProfile,
    OpStat,
    Samples,
    SettingFix,
    Software,
    TargetProfile,
    target_kind,
)
from compilewatch.records import Accuracy, GraphBreak
from compilewatch.report import wording
from compilewatch.report.charts import (
    GLYPH_WIDTH,
    PROFILE_TONES,
    document,
    draw_dot,
    draw_grid,
    draw_legend,
    draw_line,
    encoded,
    legend_layout,
    rectangle,
    target_tones,
    text_at,
)
from compilewatch.report.html import CHART_WIDTHS, environment, source_code
from compilewatch.report.wording import milliseconds

MEGABYTE = 1e6
"""The unit of these files, as in other profilers: 1 MB = 1,000,000 bytes."""

MEGABYTES_FROM = 10_000_000
"""From here on, memory is in whole megabytes."""

PAGE = "report.html"
OPERATORS_SHOWN = 15


# --- words ----------------------------------------------------------------------------------------


def megabytes(size: int | None) -> str:
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


def speedup_words(point: BatchPoint) -> str:
    return _ratio_words(point.speedup, point.speedup_low, point.speedup_high)


def accuracy_words(scores: Accuracy) -> str:
    text = (
        f"accuracy {scores.accuracy:.4f}, F1 macro {scores.f1_macro:.4f}, "
        f"F1 weighted {scores.f1_weighted:.4f} of {scores.samples:,} samples"
    )
    if scores.disagreements is None:
        return text
    return f"{text}; {scores.disagreements:,} predicted otherwise than in eager mode"


def break_even_words(point: BatchPoint) -> str:
    calls = f"{point.break_even_calls_cold or 0:,.0f} calls"
    text = f"compiling pays after {calls} of batch {point.batch_size}"
    if point.break_even_calls_warm is None:
        return text
    return f"{text}, after {point.break_even_calls_warm:,.0f} with filled caches"


def against_first_words(target: str, point: BatchPoint) -> str:
    """`takes 1.05 × the time of inductor in the first environment (1.03 to 1.07) at batch 8`."""
    judged = point.against_first
    if judged is None or judged.ratio is None:
        return "not compared with the first environment"
    ratio, _, span = _ratio_words(judged.ratio, judged.ratio_low, judged.ratio_high).partition(" (")
    text = f"takes {ratio} the time of {target_kind(target)} in the first environment"
    text += f"{' (' if span else ''}{span} at batch {point.batch_size}"
    return f"{text}; no claim: {judged.reason}" if judged.reason else text


def setting_fix_words(fix: SettingFix) -> str:
    """The breaks that a setting removes, and what that saves."""
    breaks = f"{fix.breaks_before} → {fix.breaks_after} graph breaks"
    if fix.saving_seconds is None:
        return f"{breaks}; not measured: {fix.detail}"
    if fix.matches is False:
        return f"{breaks}, but the numbers differ then"
    span = f"{milliseconds(fix.saving_low_seconds)} to {milliseconds(fix.saving_high_seconds)}"
    saved = milliseconds(fix.saving_seconds)
    if fix.certain:
        return f"{breaks}; saves {saved} a call ({span})"
    return f"{breaks}; no saving that is certain ({span})"


def break_cost_words(cost: BreakCost) -> str:
    """`1.2 ms (8 %): Python 0.9 ms, guards 0.2 ms, operators 0.1 ms`."""
    return (
        f"{milliseconds(cost.seconds)} ({cost.share:.1%}): "
        f"Python {milliseconds(cost.python_seconds)}, guards {milliseconds(cost.guard_seconds)}, "
        f"operators {milliseconds(cost.eager_seconds)}"
    )


# --- figures for other programs, and text ---------------------------------------------------------


def in_megabytes(size: int | None) -> float | None:
    return size / MEGABYTE if size is not None else None


def _times(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None else None


def _per_sample_ms(point: BatchPoint) -> float | None:
    return 1e3 / point.samples_per_second if point.samples_per_second else None


def _latency(field: str) -> Column:
    """A field of the timing, in milliseconds."""
    return lambda _, point: _times(getattr(point.latency, field, None), 1e3)


def _memory(field: str) -> Column:
    return lambda _, point: in_megabytes(getattr(point.memory, field, None))


Column = Callable[[TargetProfile, BatchPoint], object]

COLUMNS: dict[str, Column] = {
    "target": lambda target, _: target.target,
    "batch_size": lambda _, p: p.batch_size,
    "status": lambda _, p: p.status.value,
    "samples": lambda _, p: p.latency.count if p.latency else None,
    "rounds": lambda _, p: p.latency.rounds if p.latency else None,
    "latency_per_batch_ms_median": _latency("median_seconds"),
    "latency_per_batch_ms_mean": _latency("mean_seconds"),
    "latency_per_batch_ms_stdev": _latency("stdev_seconds"),
    "latency_per_batch_ms_ci_low": _latency("ci_low_seconds"),
    "latency_per_batch_ms_ci_high": _latency("ci_high_seconds"),
    "latency_per_batch_ms_p90": _latency("p90_seconds"),
    "latency_per_batch_ms_p95": _latency("p95_seconds"),
    "latency_per_batch_ms_p99": _latency("p99_seconds"),
    "latency_per_sample_ms_median": lambda _, p: _per_sample_ms(p) if p.latency else None,
    "cpu_time_per_batch_ms_median": _latency("cpu_median_seconds"),
    "throughput_samples_per_sec_mean": lambda _, p: p.samples_per_second,
    "throughput_batches_per_sec_mean": lambda _, p: (
        1 / p.latency.median_seconds if p.latency and p.latency.median_seconds else None
    ),
    "tokens_per_sec_mean": lambda _, p: p.tokens_per_second,
    "rss_peak_mb": _memory("rss_peak_bytes"),
    "call_peak_mb": _memory("call_peak_bytes"),
    "device_peak_mb": _memory("device_peak_bytes"),
    "utilization_percent": lambda _, p: _times(p.utilization, 100),
    "device_utilization_percent": lambda _, p: _times(p.device_utilization, 100),
    "device_used_mb": _memory("device_used_bytes"),
    "speedup": lambda target, p: 1.0 if target.target == EAGER and p.latency else p.speedup,
    "first_call_s": lambda _, p: p.first_call_seconds,
    "warm_first_call_s": lambda _, p: p.warm_first_call_seconds,
    "load_s": lambda _, p: p.load_seconds,
    "graphs": lambda _, p: p.graphs,
    "graph_breaks": lambda _, p: p.graph_breaks,
    "stable": lambda _, p: p.latency.stable if p.latency else None,
    "detail": lambda _, p: p.detail,
}
"""The figures of a target at a batch size. What was not measured is None."""


def _row(target: TargetProfile, point: BatchPoint) -> dict[str, object]:
    return {name: value(target, point) for name, value in COLUMNS.items()}


def files(profile: InferenceProfile, samples: Sequence[Samples]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of every text file of a profile."""
    yield "raw_values.json", msgspec.json.encode(samples)
    metrics = msgspec.json.encode(baseline_metrics(profile))
    yield "baseline_metrics.json", msgspec.json.format(metrics, indent=2) + b"\n"
    rows = ([*_row(target, point).values()] for target, point in profile.points())
    yield "detailed_metrics.csv", _csv(COLUMNS, rows)
    yield "baseline_summary_report.txt", summary_report(profile).encode()
    operators = operators_of(profile)
    if operators:
        yield "op_stats.csv", op_stats(operators)


def _csv(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue().encode()


def operators_of(profile: InferenceProfile) -> tuple[OpStat, ...]:
    """The operators of `profiler_traces/trace.json`."""
    main = profile.target(analysis.main_traced(profile.options.targets) or "")
    return main.operators if main is not None else ()


def baseline_metrics(profile: InferenceProfile) -> dict[str, Any]:
    """The main figures: `full_dataset_metrics` of the best target, then every batch size."""
    target, point = analysis.fastest(profile) or (None, None)
    scored = target.accuracy if target is not None else None
    memory = point.memory if point is not None else None
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
            "target": target.target if target is not None else None,
            "optimal_batch_size": point.batch_size if point is not None else None,
            "throughput_samples_per_sec": point.samples_per_second if point is not None else None,
            "latency_per_sample_ms": _per_sample_ms(point) if point is not None else None,
            "accuracy": scored.accuracy if scored else None,
            "f1_macro": scored.f1_macro if scored else None,
            "f1_weighted": scored.f1_weighted if scored else None,
            "num_samples": scored.samples if scored else None,
            "total_time_s": scored.seconds if scored else None,
            "gpu_mem_used": in_megabytes(memory.device_peak_bytes) if memory else None,
            "cpu_mem_used": in_megabytes(memory.rss_peak_bytes) if memory else None,
            "bottleneck": analysis.bottleneck(profile),
        },
        "targets": {
            measured.target: {
                "software": measured.software,
                "best_batch_size": measured.best_batch_size,
                "batch_sizes": {str(p.batch_size): _row(measured, p) for p in measured.points},
                "generation": measured.generation,
                "accuracy": measured.accuracy,
                "setting_fixes": measured.setting_fixes,
            }
            for measured in profile.targets
        },
    }


def op_stats(operators: Sequence[OpStat]) -> bytes:
    """The operators as `key_averages()` has them, in its units: microseconds and bytes."""

    def microseconds(seconds: float | None) -> float | None:
        return round(seconds * 1e6, 3) if seconds is not None else None

    columns: dict[str, Callable[[OpStat], object]] = {
        "name": lambda o: o.name,
        "calls": lambda o: o.calls,
        "self_cpu_time_us": lambda o: microseconds(o.self_cpu_seconds),
        "cpu_time_total_us": lambda o: microseconds(o.total_cpu_seconds),
        "self_cpu_memory_bytes": lambda o: o.self_memory_bytes,
        "flops": lambda o: o.flops,
        "self_device_time_us": lambda o: microseconds(o.self_device_seconds),
    }
    ordered = sorted(operators, key=lambda o: -o.self_cpu_seconds)
    return _csv(columns, ([value(row) for value in columns.values()] for row in ordered))


def summary_report(profile: InferenceProfile) -> str:
    """The figures as text: Full Dataset Performance, then Batch Size Analysis."""
    lines = [f"Inference profile of {profile.model}", "=" * 70, ""]
    lines += [f"{name:<22}{value}" for name, value in facts(profile)]
    lines += ["", "Full Dataset Performance", "-" * 70]
    scored = [t for t in profile.targets if t.accuracy is not None]
    for target in scored:
        assert target.accuracy is not None
        lines.append(f"{target.target:<22}{accuracy_words(target.accuracy)}")
    if not scored:
        lines.append("not measured: no labelled texts were given (--data)")
    lines += ["", "Batch Size Analysis", "-" * 70]
    width = max(12, *(len(target.target) + 2 for target in profile.targets))
    heading = ("target", "batch", "ms/batch", "ms/sample", "samples/s", "peak MB", "speed-up")
    for first, *rest in (heading, *(_cells(*pair) for pair in profile.points())):
        lines.append((f"{first:<{width}}" + "".join(f"{cell:>11}" for cell in rest)).rstrip())
    lines += ["", "Findings", "-" * 70]
    lines += [f"{name:<22}{value}" for name, value in answers(profile)]
    lines += [f"Note: {note}" for note in profile.notes]
    return "\n".join(lines) + "\n"


def facts(profile: InferenceProfile) -> list[tuple[str, str]]:
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


def _versions(profile: InferenceProfile) -> Iterator[str]:
    """The versions of each environment, after the targets that ran in it."""
    environments: dict[str, tuple[Software, list[str]]] = {}
    for target in profile.targets:
        known = environments.setdefault(target.software.environment, (target.software, []))
        known[1].append(target.target)
    for software, names in environments.values():
        versions = f"torch {software.torch}, transformers {software.transformers}"
        yield versions if len(environments) == 1 else f"{', '.join(names)}: {versions}"


def answers(profile: InferenceProfile) -> list[tuple[str, str]]:
    """What people look for: the best batch, the bottleneck, the accuracy."""
    return list(_answers(profile))


def _answers(profile: InferenceProfile) -> Iterator[tuple[str, str]]:
    best = "nothing was measured"
    if (fastest := analysis.fastest(profile)) is not None:
        target, point = fastest
        best = (
            f"{point.batch_size} on {target.target}: {point.samples_per_second or 0:,.1f} "
            f"samples/s, {_per_sample_ms(point) or 0:,.2f} ms a sample"
        )
    yield "Best batch", best
    yield "Main bottleneck", analysis.bottleneck(profile)
    several = sum(bool(target.setting_fixes) for target in profile.targets) > 1
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
        for fix in target.setting_fixes:
            yield f"Setting {fix.setting}{f' on {name}' if several else ''}", setting_fix_words(fix)
        against = next((p for p in reversed(target.points) if p.against_first is not None), None)
        if against is not None:
            yield name, against_first_words(name, against)
        paid = next((p for p in target.points if p.break_even_calls_cold is not None), None)
        if paid is not None:
            yield f"Break-even ({name})", break_even_words(paid)


def _cells(target: TargetProfile, point: BatchPoint) -> tuple[str, ...]:
    if point.latency is None:
        return (target.target, str(point.batch_size), f"{point.status.value}: {point.detail}")
    memory = point.memory.rss_peak_bytes if point.memory else None
    speedup = "1.00" if target.target == EAGER else f"{point.speedup:.2f}" if point.speedup else "-"
    return (
        target.target,
        str(point.batch_size),
        f"{point.latency.median_seconds * 1e3:,.2f}",
        f"{_per_sample_ms(point) or 0:,.2f}",
        f"{point.samples_per_second or 0:,.1f}",
        f"{memory / MEGABYTE:,.0f}" if memory else "-",
        speedup,
    )


# --- charts ---------------------------------------------------------------------------------------

Value = Callable[[BatchPoint], float | None]

PARTS = {
    "graph": "compiled graphs",
    "operators": "eager operators",
    "guard": "guards",
    "python": "Python between graphs",
}
"""How each part of a call is worded."""

HEIGHT = 190
LEFT, RIGHT, TOP, BOTTOM = 78, 14, 34, 24

FURTHEST = 0.5
"""The spread of rounds is drawn up to this change; a round further out is a dot at the edge."""


class Panel(NamedTuple):
    """One figure by batch size; `text` words a value."""

    name: str
    title: str
    value: Value
    text: Callable[[float], str]


PANELS = (
    Panel(
        "latency-per-sample",
        "Latency per sample",
        lambda p: p.latency.median_seconds / p.batch_size if p.latency else None,
        milliseconds,
    ),
    Panel(
        "latency-per-batch",
        "Latency per batch",
        lambda p: p.latency.median_seconds if p.latency else None,
        milliseconds,
    ),
    Panel("throughput", "Samples per second", lambda p: p.samples_per_second, rate),
    Panel(
        "memory",
        "Peak memory of one call, beyond model and interpreter",
        lambda p: p.memory.call_peak_bytes if p.memory else None,
        lambda value: megabytes(int(value)),
    ),
    Panel("speedup", "Speed-up over eager mode", lambda p: p.speedup, "{:.2f} ×".format),
    Panel("utilization", "Utilisation of the threads", lambda p: p.utilization, "{:.0%}".format),
)


def svg_charts(
    profile: InferenceProfile, samples: Sequence[Samples], widths: dict[str, int]
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, SVG) of every chart that has something to show, in each width."""
    for suffix, width in widths.items():
        for panel in PANELS:
            chart = by_batch(profile, panel, width)
            if chart is not None:
                yield f"charts/{panel.name}{suffix}.svg", chart
        if any(point.segments for _, point in profile.points()):
            yield f"charts/call{suffix}.svg", call_parts(profile, width)
        if samples:
            yield f"charts/spread{suffix}.svg", spread(profile, samples, width)


def by_batch(profile: InferenceProfile, panel: Panel, width: int) -> bytes | None:
    """One line for each target over the batch sizes, from zero; None without a value."""
    sizes = profile.options.batch_sizes
    lines = {
        target.target: [
            (point.batch_size, value)
            for point in target.points
            if (value := panel.value(point)) is not None
        ]
        for target in profile.targets
    }
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    described = "; ".join(
        f"{name}: " + ", ".join(f"batch {size} {panel.text(v)}" for size, v in points)
        for name, points in lines.items()
    )
    svg = document(panel.title, described, width, HEIGHT)
    tones = target_tones(profile.options.targets)
    draw_legend(svg, {name: name for name in lines}, width, tones)
    largest = max(value for points in lines.values() for _, value in points) or 1.0
    scale = (HEIGHT - TOP - BOTTOM) / largest
    step = (width - LEFT - RIGHT - 12) / max(len(sizes) - 1, 1)
    places = {size: LEFT + 6 + index * step for index, size in enumerate(sizes)}
    for tick in (0.0, largest / 2, largest):
        y = HEIGHT - BOTTOM - tick * scale
        draw_grid(svg, LEFT, width - RIGHT, y, y)
        text_at(svg, LEFT - 8, y + 4, panel.text(tick) if tick else "0", anchor="end", css="faint")
    for size, x in places.items():
        text_at(svg, x, HEIGHT - 6, str(size), anchor="middle", css="faint")
    for name, points in lines.items():
        dots = [
            (places.get(size, LEFT + 6), HEIGHT - BOTTOM - value * scale, size, value)
            for size, value in points
        ]
        draw_line(svg, ((x, y) for x, y, _, _ in dots), tones[name])
        for x, y, size, value in dots:
            draw_dot(svg, x, y, tones[name], f"{name}, batch {size}: {panel.text(value)}")
    return encoded(svg)


def call_parts(profile: InferenceProfile, width: int) -> bytes:
    """One bar for each batch size: the shares of a call of compiled code."""
    values = [
        (f"{target.target}, batch {point.batch_size}", call.call_seconds, call.parts)
        for target, point in profile.points()
        if (call := point.segments) is not None
    ]
    described = "; ".join(
        f"{label}: " + ", ".join(f"{PARTS[n]} {v / total:.1%}" for n, v in parts.items())
        for label, total, parts in values
    )
    lines = len(legend_layout(PARTS, width))
    top, row = lines * 20 + 8, 24
    svg = document("Where a call goes", described, width, top + row * len(values) + 4)
    draw_legend(svg, PARTS, width, PROFILE_TONES)
    labels = max(len(label) for label, _, _ in values) * GLYPH_WIDTH + 10
    figures = 72
    for index, (label, total, parts) in enumerate(values):
        y, x = top + index * row, labels
        text_at(svg, labels - 8, y + 12, label, anchor="end")
        for name, seconds in parts.items():
            share = (width - labels - figures) * seconds / total if total else 0
            if share > 0:
                bar = rectangle(svg, x, y, max(share - 0.6, 0.4), 15, name, PROFILE_TONES[name])
                title = f"{PARTS[name]}: {milliseconds(seconds)} ({seconds / total:.1%})"
                ET.SubElement(bar, "title").text = title
                x += share
        text_at(svg, width - 2, y + 12, milliseconds(total), anchor="end", css="faint")
    return encoded(svg)


def spread(profile: InferenceProfile, samples: Sequence[Samples], width: int) -> bytes:
    """One row for each series: the median of each round, relative to the median of all."""
    rows, tones = [], target_tones(profile.options.targets)
    for series in samples:
        rounds = [median(values) for values in series.wall_seconds if values]
        middle = median(rounds)
        rows.append(
            (f"{series.target}, batch {series.batch_size}", [r / middle - 1 for r in rounds])
        )
    largest = max(abs(change) for _, changes in rows for change in changes)
    furthest = min(max(0.05, largest), FURTHEST)
    described = "; ".join(
        f"{label}: from {min(changes):+.1%} to {max(changes):+.1%}" for label, changes in rows
    )
    row, top = 22, 22
    svg = document("Spread of the rounds", described, width, top + row * len(rows) + 4)
    labels = max(len(label) for label, _ in rows) * GLYPH_WIDTH + 16
    middle_x = labels + (width - labels - RIGHT) / 2
    scale = (width - labels - RIGHT - 12) / 2 / furthest
    for tick in (-furthest, 0.0, furthest):
        x = middle_x + tick * scale
        draw_grid(svg, x, x, top - 4, top + row * len(rows))
        anchor = "start" if tick < 0 else "end" if tick > 0 else "middle"
        text_at(svg, x, 12, f"{tick:+.0%}" if tick else "median", anchor=anchor, css="faint")
    for index, (label, changes) in enumerate(rows):
        y = top + index * row + 9
        text_at(svg, labels - 8, y + 4, label, anchor="end")
        for number, change in enumerate(changes, start=1):
            tone = tones[label.partition(",")[0]]
            x = middle_x + max(-furthest, min(furthest, change)) * scale
            draw_dot(svg, x, y, tone, f"round {number}: {change:+.1%}")
    return encoded(svg)


# --- pictures -------------------------------------------------------------------------------------

SIZE_INCHES = (13.0, 7.6)
DOTS_PER_INCH = 110

PNG_PANELS: tuple[tuple[str, str, Value, bool], ...] = (
    ("Latency per sample", "ms", lambda p: _times(PANELS[0].value(p), 1e3), True),
    ("Latency per batch", "ms", lambda p: _times(PANELS[1].value(p), 1e3), True),
    ("Throughput", "samples/s", lambda p: p.samples_per_second, False),
    (
        "Peak memory of the process",
        "MB",
        lambda p: in_megabytes(p.memory.rss_peak_bytes) if p.memory else None,
        False,
    ),
    ("Speed-up over eager mode", "×", lambda p: p.speedup, False),
    ("Utilisation of the threads", "%", lambda p: _times(p.utilization, 100), False),
)
"""Title, unit, value and whether the axis is logarithmic."""


def plots(profile: InferenceProfile) -> Iterator[tuple[str, bytes]]:
    """Yield (name, PNG) of both pictures; nothing if nothing was measured."""
    if any(point.latency for _, point in profile.points()):
        yield "plots/batch_size_comparison.png", batch_size_comparison(profile)
        yield "plots/metrics_heatmap.png", metrics_heatmap(profile)


def batch_size_comparison(profile: InferenceProfile) -> bytes:
    """Six panels, one line a target; bars show the 95 % interval of the median."""
    figure = _figure(SIZE_INCHES)
    axes = figure.subplots(2, 3)
    tones = target_tones(target.target for target in profile.targets)
    for axis, (title, unit, value, logarithmic) in zip(axes.flat, PNG_PANELS, strict=True):
        for target in profile.targets:
            points = [(p, value(p)) for p in target.points]
            shown = [(p, v) for p, v in points if v is not None]
            if not shown:
                continue
            axis.errorbar(
                [str(p.batch_size) for p, _ in shown],
                [v for _, v in shown],
                yerr=_errors(shown) if "Latency" in title else None,
                label=target.target,
                color=tones[target.target],
                marker="o",
                capsize=3,
                linewidth=1.6,
                markersize=5,
            )
        if title.startswith("Speed-up"):
            axis.axhline(1, color=PROFILE_TONES[EAGER], linewidth=1, linestyle="--")
        if logarithmic:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:,g}")
            axis.yaxis.set_minor_formatter("{x:,g}")
        else:
            low, high = axis.get_ylim()
            axis.set_ylim(0 if title != "Speed-up over eager mode" else min(low, 0.9), high * 1.05)
        axis.set_title(title, fontsize=11, loc="left")
        axis.set_ylabel(unit)
        axis.set_xlabel("batch size")
        axis.grid(visible=True, axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False)
    figure.suptitle(_title(profile), x=0.01, ha="left", fontsize=12)
    return _png(figure)


def metrics_heatmap(profile: InferenceProfile) -> bytes:
    """Each figure by target and batch size, as a share of its largest value."""
    columns = [(t.target, p) for t, p in profile.points() if p.latency]
    rows = [(title, unit, [value(p) for _, p in columns]) for title, unit, value, _ in PNG_PANELS]
    rows = [row for row in rows if any(v is not None for v in row[2])]
    shares = [[(v or 0.0) / (max(x for x in vs if x) or 1) for v in vs] for _, _, vs in rows]
    figure = _figure((max(6.0, 1.05 * len(columns) + 3.4), 0.62 * len(rows) + 1.9))
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="YlOrBr", vmin=0, vmax=1, aspect="auto")
    for y, (_, _, values) in enumerate(rows):
        for x, value in enumerate(values):
            text = "–" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
            dark = shares[y][x] > 0.6
            axis.text(x, y, text, ha="center", va="center", color="white" if dark else "#222222")
    axis.set_xticks(range(len(columns)), [f"{t}\n{p.batch_size}" for t, p in columns])
    axis.set_yticks(range(len(rows)), [f"{title} ({unit})" for title, unit, _ in rows])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="share of the largest")
    figure.suptitle(_title(profile), x=0.01, ha="left", fontsize=11)
    return _png(figure)


def _errors(shown: Sequence[tuple[BatchPoint, float]]) -> list[list[float]]:
    """How far the interval of the median reaches below and above it, in the unit of the value."""
    below, above = [], []
    for point, value in shown:
        assert point.latency is not None
        scale = value / point.latency.median_seconds
        below.append(max(0.0, value - point.latency.ci_low_seconds * scale))
        above.append(max(0.0, point.latency.ci_high_seconds * scale - value))
    return [below, above]


def _title(profile: InferenceProfile) -> str:
    options = profile.options
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    return f"{profile.model} · {options.dtype} · {threads} · {profile.machine.cpu}"


def _figure(size: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure  # no pyplot: it would keep figures and look for a display

    return Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


# --- page -----------------------------------------------------------------------------------------


def render(profile: InferenceProfile, samples: Sequence[Samples]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the page and of everything that it shows; the page comes last."""
    yield "report.css", resources.files("compilewatch.report").joinpath("report.css").read_bytes()
    charts = dict(svg_charts(profile, samples, CHART_WIDTHS))
    yield from charts.items()
    costly_target, costly = analysis.broken(profile) or (None, None)
    operators = sorted(operators_of(profile), key=lambda o: -o.self_cpu_seconds)
    text = (
        environment("compilewatch.extras.profiles")
        .get_template("profile.html")
        .render(
            profile=profile,
            facts=[(name, value) for name, value in facts(profile) if name != "Software"],
            answers=answers(profile),
            panels=[p for p in PANELS if f"charts/{p.name}.svg" in charts],
            has_call="charts/call.svg" in charts,
            has_spread="charts/spread.svg" in charts,
            best=analysis.fastest(profile),
            costly=costly,
            costly_target=costly_target.target if costly_target is not None else "",
            sources={cost.fingerprint: _source(cost) for cost in costly.breaks} if costly else {},
            operators=operators[:OPERATORS_SHOWN],
            operator_seconds=sum(o.self_cpu_seconds for o in operators),
            main=analysis.main_traced(profile.options.targets),
            traces=[
                (t.target, analysis.trace_folder(t.target, profile.options.targets))
                for t in profile.targets
                if t.operators
            ],
            words=sys.modules[__name__],
        )
    )
    yield PAGE, text.encode()


def _source(cost: BreakCost) -> str:
    """The lines around a break, with its own marked."""
    names = (name for name in BreakCost.__struct_fields__ if name in GraphBreak.__struct_fields__)
    return source_code(GraphBreak(**{name: getattr(cost, name) for name in names}))
