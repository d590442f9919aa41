from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from compilewatch.sinks import charts
from compilewatch.sinks.wording import OUTCOME_LABELS

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


def test_nothing_is_drawn_for_a_part_of_zero() -> None:
    assert rects(charts.stacked_bars("t", bars(("a", 3, 0)), LEGEND, 560), "graph_break") == []


@pytest.mark.parametrize("width", [350, 560])
def test_everything_lies_inside_the_picture(width: Any) -> None:
    rows = bars(("a-family-with-a-rather-long-name", 900, 99), ("b", 1, 0))
    values = [0.01, 0.3, 1.5, 2, 5, 900, 900]
    for svg in (
        charts.stacked_bars("t", rows, LEGEND, width),
        charts.histogram("t", values, width),
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
    assert set(LEGEND) < set(charts.MID_TONES)
    root = ET.fromstring(charts.stacked_bars("t", bars(("a", 1, 1)), LEGEND, 560))
    assert all(rect.get("fill") for rect in root.iter(f"{{{charts.SVG}}}rect"))
    for name in charts.MID_TONES:
        assert f".{name} {{ fill:" in charts.STYLE


def test_a_histogram_counts_every_value_once_in_doubling_bins() -> None:
    svg = charts.histogram("t", [0.001, 1.0, 1.9, 2.0, 100], 560)
    titles = [rect.findtext("svg:title", namespaces=NAMESPACE) for rect in rects(svg, "bar")]
    counts = {title.rpartition(": ")[0]: int(title.rpartition(": ")[2]) for title in titles}
    assert sum(counts.values()) == 5
    assert counts["0 s to 0.12 s"] == 1
    assert counts["1 s to 2 s"] == 2
    assert counts["2 s to 4 s"] == 1
    assert counts["1.1 min to 2.1 min"] == 1


def test_a_histogram_of_nothing_is_an_empty_picture() -> None:
    assert rects(charts.histogram("t", [], 560), "bar") == []


def test_labels_are_escaped() -> None:
    svg = charts.stacked_bars("t", bars(("<b>&", 1, 0)), LEGEND, 560)
    assert "<b>&" in {text.text for text in ET.fromstring(svg).iter(f"{{{charts.SVG}}}text")}
