"""SVG charts of a profile: figures by batch size, where a call goes, and the spread of rounds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from compilewatch.extras.profiles.infer import words as words
from compilewatch.extras.profiles.infer.records import BatchPoint, InferenceProfile, Samples
from compilewatch.report.charts import (
    GLYPH_WIDTH,
    PROFILE_TONES,
    document,
    encoded,
    legend_layout,
    rectangle,
    rounded,
    target_tones,
    text_at,
)
from compilewatch.report.wording import milliseconds

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


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One figure by batch size; `said` words a value."""

    name: str
    title: str
    value: Callable[[BatchPoint], float | None]
    said: Callable[[float], str]


PANELS = (
    Panel(
        name="latency-per-sample",
        title="Latency per sample",
        value=lambda p: p.latency.median_seconds / p.batch_size if p.latency else None,
        said=milliseconds,
    ),
    Panel(
        name="latency-per-batch",
        title="Latency per batch",
        value=lambda p: p.latency.median_seconds if p.latency else None,
        said=milliseconds,
    ),
    Panel(
        name="throughput",
        title="Samples per second",
        value=lambda p: p.samples_per_second,
        said=words.rate,
    ),
    Panel(
        name="memory",
        title="Peak memory of one call, beyond model and interpreter",
        value=lambda p: p.memory.call_peak_bytes if p.memory else None,
        said=lambda v: words.megabytes(int(v)),
    ),
    Panel(
        name="speedup",
        title="Speed-up over eager mode",
        value=lambda p: p.speedup,
        said=lambda v: f"{v:.2f} ×",
    ),
    Panel(
        name="utilization",
        title="Utilisation of the threads",
        value=lambda p: p.utilization,
        said=lambda v: f"{v:.0%}",
    ),
)


def charts(
    profile: InferenceProfile, samples: Sequence[Samples], widths: dict[str, int]
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, SVG) of every chart that has something to show, in each width."""
    for suffix, width in widths.items():
        for panel in PANELS:
            chart = by_batch(profile, panel, width)
            if chart is not None:
                yield f"charts/{panel.name}{suffix}.svg", chart
        if any(point.segments for target in profile.targets for point in target.points):
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
        f"{name}: " + ", ".join(f"batch {size} {panel.said(v)}" for size, v in points)
        for name, points in lines.items()
    )
    svg = document(panel.title, described, width, HEIGHT)
    tones = target_tones(profile.options.targets)
    _legend(svg, {name: name for name in lines}, tones, width)
    largest = max(value for points in lines.values() for _, value in points) or 1.0
    scale = (HEIGHT - TOP - BOTTOM) / largest
    step = (width - LEFT - RIGHT - 12) / max(len(sizes) - 1, 1)
    places = {size: LEFT + 6 + index * step for index, size in enumerate(sizes)}
    for tick in (0.0, largest / 2, largest):
        y = HEIGHT - BOTTOM - tick * scale
        _grid(svg, LEFT, width - RIGHT, y, y)
        text_at(svg, LEFT - 8, y + 4, panel.said(tick) if tick else "0", anchor="end", css="faint")
    for size, x in places.items():
        text_at(svg, x, HEIGHT - 6, str(size), anchor="middle", css="faint")
    for name, points in lines.items():
        dots = [
            (places.get(size, LEFT + 6), HEIGHT - BOTTOM - value * scale, size, value)
            for size, value in points
        ]
        path = " ".join(f"{rounded(x)},{rounded(y)}" for x, y, _, _ in dots)
        line = {"points": path, "fill": "none", "stroke": tones[name], "stroke-width": "2"}
        ET.SubElement(svg, "polyline", line)
        for x, y, size, value in dots:
            _dot(svg, x, y, tones[name], f"{name}, batch {size}: {panel.said(value)}")
    return encoded(svg)


def call_parts(profile: InferenceProfile, width: int) -> bytes:
    """One bar for each batch size: the shares of a call of compiled code."""
    values = [
        (f"{target.target}, batch {point.batch_size}", found.call_seconds, found.parts)
        for target in profile.targets
        for point in target.points
        if (found := point.segments) is not None
    ]
    described = "; ".join(
        f"{label}: " + ", ".join(f"{PARTS[n]} {v / total:.1%}" for n, v in parts.items())
        for label, total, parts in values
    )
    lines = len(legend_layout(PARTS, width))
    top, row = lines * 20 + 8, 24
    svg = document("Where a call goes", described, width, top + row * len(values) + 4)
    _legend(svg, PARTS, PROFILE_TONES, width)
    labels = max(len(label) for label, _, _ in values) * GLYPH_WIDTH + 10
    figures = 72
    for index, (label, total, parts) in enumerate(values):
        y, x = top + index * row, labels
        text_at(svg, labels - 8, y + 12, label, anchor="end")
        for name, seconds in parts.items():
            share = (width - labels - figures) * seconds / total if total else 0
            if share > 0:
                made = rectangle(svg, x, y, max(share - 0.6, 0.4), 15, name, PROFILE_TONES[name])
                said = f"{PARTS[name]}: {milliseconds(seconds)} ({seconds / total:.1%})"
                ET.SubElement(made, "title").text = said
                x += share
        text_at(svg, width - 2, y + 12, milliseconds(total), anchor="end", css="faint")
    return encoded(svg)


def spread(profile: InferenceProfile, samples: Sequence[Samples], width: int) -> bytes:
    """One row for each series: the median of each round, relative to the median of all."""
    rows, tones = [], target_tones(profile.options.targets)
    for each in samples:
        rounds = [median(values) for values in each.wall_seconds if values]
        middle = median(rounds)
        rows.append((f"{each.target}, batch {each.batch_size}", [r / middle - 1 for r in rounds]))
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
        _grid(svg, x, x, top - 4, top + row * len(rows))
        anchor = "start" if tick < 0 else "end" if tick > 0 else "middle"
        text_at(svg, x, 12, f"{tick:+.0%}" if tick else "median", anchor=anchor, css="faint")
    for index, (label, changes) in enumerate(rows):
        y = top + index * row + 9
        text_at(svg, labels - 8, y + 4, label, anchor="end")
        for number, change in enumerate(changes, start=1):
            tone = tones[label.partition(",")[0]]
            x = middle_x + max(-furthest, min(furthest, change)) * scale
            _dot(svg, x, y, tone, f"round {number}: {change:+.1%}")
    return encoded(svg)


def _legend(svg: ET.Element, names: dict[str, str], tones: dict[str, str], width: int) -> None:
    for line, entries in enumerate(legend_layout(names, width)):
        for x, name in entries:
            rectangle(svg, x, line * 20 + 3, 10, 10, name, tones[name])
            text_at(svg, x + 15, line * 20 + 12, names[name])


def _dot(svg: ET.Element, x: float, y: float, tone: str, said: str) -> None:
    dot = {"cx": rounded(x), "cy": rounded(y), "r": "3.5", "fill": tone}
    ET.SubElement(ET.SubElement(svg, "circle", dot), "title").text = said


def _grid(svg: ET.Element, x1: float, x2: float, y1: float, y2: float) -> None:
    box = {"x1": rounded(x1), "x2": rounded(x2), "y1": rounded(y1), "y2": rounded(y2)}
    faint = {"stroke": "#808080", "stroke-opacity": "0.4", "class": "grid"}
    ET.SubElement(svg, "line", {**box, **faint})
