"""SVG charts of the report: stacked bars and a trend, as files for `<img>`.

A report is read under a content policy that forbids scripts and inline style in the page, and on
light and dark backgrounds. Each chart is a document of its own with its own style sheet that
follows the reader's colour scheme; the presentation attributes underneath are mid-tones that
remain legible on either background where a viewer ignores the sheet. Every chart has a `<title>`
and a `<desc>` that says its content in words.
"""

import itertools
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

SVG = "http://www.w3.org/2000/svg"
# A wide glyph of a wide sans-serif face (DejaVu) at 12 px: only reserves space, never cuts text.
GLYPH_WIDTH = 7.4
MID_TONES = {
    "pass": "#2f9e5b",
    "graph_break": "#d08a17",
    "mismatch": "#a36ad0",
    "compile_error": "#d9534f",
    "no_verdict": "#8a6d5c",
    "not_run": "#8b95a1",
    "forecast_pass": "#2f93cf",
    "forecast_fail": "#4a5fc8",
    "no_forecast": "#8a6d5c",
}
PROFILE_TONES = {
    "graph": "#4a86c5",
    "python": "#d9534f",
    "guard": "#d08a17",
    "operators": "#a36ad0",
    "eager": "#6b7c8d",
    "inductor": "#d0691e",
    "xla": "#2f7fb5",
}
"""Parts of a call and targets, which keep these colours on either background."""
OTHER_TONES = ("#3c8d5a", "#b0578d", "#8a7a2b", "#7a5ca8")
"""The colours of targets in environments that were named."""
STYLE = """
text { fill: #39424e; }
.faint { fill: #667080; }
.grid { stroke: #dfe3e8; }
.pass { fill: #2e9e5b; } .graph_break { fill: #e0a030; } .mismatch { fill: #a36ad0; }
.compile_error { fill: #d64545; } .no_verdict { fill: #8a6d5c; } .not_run { fill: #b4bcc6; }
.forecast_pass { fill: #1d8fd0; } .forecast_fail { fill: #1f3f8f; } .no_forecast { fill: #8a6d5c; }
@media (prefers-color-scheme: dark) {
  text { fill: #d5dae1; }
  .faint { fill: #98a2b0; }
  .grid { stroke: #333b46; }
  .not_run { fill: #5b6572; } .no_verdict { fill: #a58877; } .no_forecast { fill: #a58877; }
  .forecast_pass { fill: #8fd0f5; } .forecast_fail { fill: #5f74e0; }
}
"""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One stacked bar: a label and its parts as (style class, count or other amount) in order."""

    label: str
    parts: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        return sum(amount for _, amount in self.parts)


def stacked_bars(
    title: str,
    bars: Sequence[Bar],
    legend: dict[str, str],
    width: int,
    *,
    text: Callable[[float], str] = str,
    tones: Mapping[str, str] = {},
    equal: bool = False,
) -> bytes:
    """Horizontal bars, one a row, lengths on one common scale; with `equal`, all are equally long.

    `legend` names the style classes, or the names that have `tones`, in the order shown; `text`
    words an amount, and `width` is in CSS pixels.
    """
    row, bar_height = 22, 14
    described = "; ".join(
        f"{bar.label}: " + ", ".join(f"{text(n)} {legend[c]}" for c, n in bar.parts if n)
        for bar in bars
    )
    lines = legend_layout(legend, width)
    top = len(lines) * 20 + 8
    svg = document(title, described, width, top + row * len(bars) + 4)
    for line, entries in enumerate(lines):
        for x, name in entries:
            rectangle(svg, x, line * 20 + 3, 10, 10, name, tones.get(name, ""))
            text_at(svg, x + 15, line * 20 + 12, legend[name])
    labels = max((len(bar.label) for bar in bars), default=0) * GLYPH_WIDTH + 10
    figures = max((len(text(bar.total)) for bar in bars), default=0) * 7.5 + 8
    longest = max((bar.total for bar in bars), default=1)
    for index, bar in enumerate(bars):
        y = top + index * row
        text_at(svg, labels - 8, y + bar_height - 3, bar.label, anchor="end")
        x, scale = labels, (width - labels - figures) / ((bar.total if equal else longest) or 1)
        for name, amount in bar.parts:
            if amount:
                size = (max(amount * scale - 0.6, 0.8), bar_height)
                rect = rectangle(svg, x, y, *size, name, tones.get(name, ""))
                add(rect, "title").text = f"{bar.label}: {text(amount)} {legend[name]}"
                x += amount * scale
        text_at(svg, x + 5, y + bar_height - 3, text(bar.total), css="faint")
    return encoded(svg)


def trend(title: str, points: Sequence[tuple[str, float]], width: int) -> bytes:
    """A line through shares between 0 and 1, each with its label, from left to right.

    The axis begins at the multiple of 10 % below the smallest share, so that small changes show.
    """
    height, left, bottom, top = 150, 48, 26, 18
    described = "; ".join(f"{label}: {share:.1%}" for label, share in points)
    svg = document(title, described, width, height)
    floor = min(math.floor(min(share for _, share in points) * 10) / 10, 0.9)
    scale = (height - bottom - top) / (1 - floor)
    for tick in (floor, (floor + 1) / 2, 1.0):
        y = top + (1 - tick) * scale
        faint = {"stroke": "#808080", "stroke_opacity": "0.4", "class_": "grid"}
        add(svg, "line", x1=left, x2=width, y1=y, y2=y, **faint)
        text_at(svg, left - 8, y + 4, f"{tick:.0%}", anchor="end", css="faint")
    step = (width - left - 24) / max(len(points) - 1, 1)
    places = [
        (left + 12 + index * step, top + (1 - share) * scale)
        for index, (_, share) in enumerate(points)
    ]
    line = " ".join(f"{rounded(x)},{rounded(y)}" for x, y in places)
    tone = MID_TONES["pass"]
    add(svg, "polyline", points=line, fill="none", stroke=tone, stroke_width=2)
    for (x, y), (label, share) in zip(places, points, strict=True):
        dot = add(svg, "circle", cx=x, cy=y, r=3.5, fill=tone, class_="pass")
        add(dot, "title").text = f"{label}: {share:.1%}"
    (first, _), (last, _) = points[0], points[-1]
    text_at(svg, left, height - 6, first, css="faint")
    text_at(svg, width - 2, height - 6, last, anchor="end", css="faint")
    return encoded(svg)


def legend_layout(legend: dict[str, str], width: int) -> list[list[tuple[float, str]]]:
    rows: list[list[tuple[float, str]]] = [[]]
    x = 0.0
    for name, label in legend.items():
        size = 15 + len(label) * GLYPH_WIDTH + 14
        if rows[-1] and x + size > width:
            rows.append([])
            x = 0.0
        rows[-1].append((x, name))
        x += size
    return rows


def add(parent: ET.Element, tag: str, **attributes: float | str) -> ET.Element:
    """Add an element. Numbers are rounded; `stroke_width` is `stroke-width`, `class_` `class`."""
    values = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else rounded(value)
        for name, value in attributes.items()
    }
    return ET.SubElement(parent, tag, values)


def document(title: str, description: str, width: int, height: float) -> ET.Element:
    svg = ET.Element(
        "svg",
        {
            "xmlns": SVG,
            "viewBox": f"0 0 {width} {rounded(height)}",
            "width": str(width),
            "height": rounded(height),
            "role": "img",
            "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
            "font-size": "12",
        },
    )
    for tag, text in (("title", title), ("desc", description), ("style", STYLE)):
        add(svg, tag).text = text
    return svg


def rectangle(
    parent: ET.Element, x: float, y: float, width: float, height: float, name: str, tone: str = ""
) -> ET.Element:
    """Draw a rectangle of a style class, or of a tone where the name has no class."""
    look = {"fill": tone} if tone else {"fill": MID_TONES[name], "class_": name}
    return add(parent, "rect", x=x, y=y, width=width, height=height, rx=1.5, **look)


def target_tones(targets: Iterable[str]) -> dict[str, str]:
    """Return a colour for each target of a profile, its own where it has one."""
    others = itertools.cycle(OTHER_TONES)
    return {name: PROFILE_TONES.get(name) or next(others) for name in targets}


def text_at(
    parent: ET.Element, x: float, y: float, text: str, *, anchor: str = "start", css: str = ""
) -> None:
    add(parent, "text", x=x, y=y, text_anchor=anchor, fill="#808080", class_=css).text = text


def rounded(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def encoded(svg: ET.Element) -> bytes:
    body: bytes = ET.tostring(svg, encoding="utf-8")
    return body + b"\n"
