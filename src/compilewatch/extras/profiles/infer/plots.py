"""Pictures of a profile as PNG, by matplotlib: six panels by batch size, and a heatmap."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from compilewatch.extras.profiles.infer.records import EAGER, BatchPoint, InferenceProfile
from compilewatch.report.charts import PROFILE_TONES, target_tones

SIZE_INCHES = (13.0, 7.6)
DOTS_PER_INCH = 110

Value = Callable[[BatchPoint], float | None]


def _latency(scale: Callable[[BatchPoint], float]) -> Value:
    return lambda p: p.latency.median_seconds * 1e3 / scale(p) if p.latency else None


PANELS: tuple[tuple[str, str, Value, bool], ...] = (
    ("Latency per sample", "ms", _latency(lambda p: p.batch_size), True),
    ("Latency per batch", "ms", _latency(lambda _: 1), True),
    ("Throughput", "samples/s", lambda p: p.samples_per_second, False),
    (
        "Peak memory of the process",
        "MB",
        lambda p: p.memory.rss_peak_bytes / 1e6 if p.memory and p.memory.rss_peak_bytes else None,
        False,
    ),
    ("Speed-up over eager mode", "×", lambda p: p.speedup, False),
    (
        "Utilisation of the threads",
        "%",
        lambda p: p.utilization * 100 if p.utilization is not None else None,
        False,
    ),
)
"""Title, unit, value and whether the axis is logarithmic."""


def plots(profile: InferenceProfile) -> Iterator[tuple[str, bytes]]:
    """Yield (name, PNG) of both pictures; nothing if nothing was measured."""
    if any(point.latency for target in profile.targets for point in target.points):
        yield "plots/batch_size_comparison.png", batch_size_comparison(profile)
        yield "plots/metrics_heatmap.png", metrics_heatmap(profile)


def batch_size_comparison(profile: InferenceProfile) -> bytes:
    """Six panels, one line a target; bars show the 95 % interval of the median."""
    figure = _figure(SIZE_INCHES)
    axes = figure.subplots(2, 3)
    tones = target_tones(target.target for target in profile.targets)
    for axis, (title, unit, value, logarithmic) in zip(axes.flat, PANELS, strict=True):
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
    columns = [(t.target, p) for t in profile.targets for p in t.points if p.latency]
    rows = [(title, unit, [value(p) for _, p in columns]) for title, unit, value, _ in PANELS]
    rows = [row for row in rows if any(v is not None for v in row[2])]
    shares = [[(v or 0.0) / (max(x for x in vs if x) or 1) for v in vs] for _, _, vs in rows]
    figure = _figure((max(6.0, 1.05 * len(columns) + 3.4), 0.62 * len(rows) + 1.9))
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="YlOrBr", vmin=0, vmax=1, aspect="auto")
    for y, (_, _, values) in enumerate(rows):
        for x, value in enumerate(values):
            said = "–" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
            dark = shares[y][x] > 0.6
            axis.text(x, y, said, ha="center", va="center", color="white" if dark else "#222222")
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
