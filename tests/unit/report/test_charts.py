from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from compilewatch.report import charts
from compilewatch.report.wording import OUTCOME_LABELS

LEGEND = {outcome.value: label for outcome, label in OUTCOME_LABELS.items()}
NAMESPACE = {"svg": charts.SVG}


def rects(svg: bytes, css: str) -> list[ET.Element]:
    """The shapes of one style class that carry data (those with a tooltip)."""
    found = ET.fromstring(svg).findall(".//svg:rect", NAMESPACE)
    return [
        r for r in found if r.get("class") == css and r.find("svg:title", NAMESPACE) is not None
    ]


def bars(*rows: tuple[str, int, int]) -> list[charts.Bar]:
    return [
        charts.Bar(label=label, parts=(("pass", passed), ("graph_break", broken)))
        for label, passed, broken in rows
    ]


def test_bars_are_drawn_on_one_scale() -> None:
    svg = charts.stacked_bars("t", bars(("a", 10, 0), ("b", 40, 0)), LEGEND, 560)
    widths = [float(rect.get("width")) for rect in rects(svg, "pass")]
    assert widths[1] / widths[0] == pytest.approx(4, rel=0.02)


def test_parts_of_a_bar_follow_one_another_without_gap_or_overlap() -> None:
    svg = charts.stacked_bars("t", bars(("a", 30, 10)), LEGEND, 560)
    (passed,), (broken,) = rects(svg, "pass"), rects(svg, "graph_break")
    end = float(passed.get("x")) + float(passed.get("width"))
    assert 0 < float(broken.get("x")) - end < 1


@pytest.mark.parametrize("width", [350, 560])
def test_everything_lies_inside_the_picture(width: Any) -> None:
    rows = bars(("a-family-with-a-rather-long-name", 900, 99), ("b", 1, 0))
    points = [(f"{day} Jan 2026", day / 20) for day in range(1, 21)]
    for svg in (
        charts.stacked_bars("t", rows, LEGEND, width),
        charts.trend("t", points, width),
    ):
        root = ET.fromstring(svg)
        _, _, box_width, box_height = map(float, root.get("viewBox").split())
        assert box_width == width
        for rect in root.iter(f"{{{charts.SVG}}}rect"):
            assert float(rect.get("x")) >= 0
            assert float(rect.get("x")) + float(rect.get("width")) <= box_width
            assert float(rect.get("y")) + float(rect.get("height")) <= box_height
        for text in root.iter(f"{{{charts.SVG}}}text"):
            size = len(text.text) * charts.GLYPH_WIDTH
            left = {"start": 0, "middle": size / 2, "end": size}[text.get("text-anchor")]
            start = float(text.get("x")) - left
            assert start >= 0, text.text
            assert start + size <= box_width + 1, text.text


def test_a_chart_says_its_content_in_words() -> None:
    root = ET.fromstring(charts.stacked_bars("By family", bars(("bert", 3, 2)), LEGEND, 560))
    assert root.findtext("svg:title", namespaces=NAMESPACE) == "By family"
    said = root.findtext("svg:desc", namespaces=NAMESPACE)
    assert said == "bert: 3 pass, 2 graph break"


def test_every_style_class_has_a_colour_for_viewers_without_style_sheets() -> None:
    assert set(LEGEND) == set(charts.MID_TONES)
    root = ET.fromstring(charts.stacked_bars("t", bars(("a", 1, 1)), LEGEND, 560))
    assert all(rect.get("fill") for rect in root.iter(f"{{{charts.SVG}}}rect"))
    for name in charts.MID_TONES:
        assert f".{name} {{ fill:" in charts.STYLE


def test_a_trend_has_a_dot_for_each_run_and_an_axis_below_the_smallest() -> None:
    svg = charts.trend("t", [("1 Jan", 1.0), ("2 Jan", 0.73), ("3 Jan", 0.9)], 560)
    root = ET.fromstring(svg)
    dots = root.findall("svg:circle", NAMESPACE)
    heights = [float(dot.get("cy")) for dot in dots]
    assert heights[0] < heights[2] < heights[1]
    assert dots[1].findtext("svg:title", namespaces=NAMESPACE) == "2 Jan: 73.0%"
    texts = [text.text for text in root.iter(f"{{{charts.SVG}}}text")]
    assert texts == ["70%", "85%", "100%", "1 Jan", "3 Jan"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_trend_of_one_share_is_a_flat_line(share: Any) -> None:
    svg = charts.trend("t", [("a", share)] * 3, 350)
    assert len({d.get("cy") for d in ET.fromstring(svg).findall("svg:circle", NAMESPACE)}) == 1
