"""The charts of the report, and the strip of a model's captured graphs."""

import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest

from compilewatch.report import charts, html
from compilewatch.report.wording import OUTCOME_LABELS
from tests import factories

LEGEND = {outcome.value: label for outcome, label in OUTCOME_LABELS.items()}
NAMESPACE = {"svg": charts.SVG}


def bars(rows: dict[str, tuple[int, int]], width: int = 560) -> ET.Element:
    parts = {name: (("pass", p), ("graph_break", b)) for name, (p, b) in rows.items()}
    made = [charts.Bar(label=name, parts=counts) for name, counts in parts.items()]
    return ET.fromstring(charts.stacked_bars("By family", made, LEGEND, width))


def data_of(root: ET.Element, css: str) -> list[tuple[float, float]]:
    """Start and width of the shapes of one style class that carry data: those with a tooltip."""
    shapes = root.findall(f".//svg:rect[@class='{css}'][svg:title]", NAMESPACE)
    return [(float(shape.attrib["x"]), float(shape.attrib["width"])) for shape in shapes]


def test_bars_are_drawn_on_one_scale_without_gaps_and_say_their_content() -> None:
    root = bars({"a": (10, 0), "b": (30, 10)})
    (_, short), (start, width) = data_of(root, "pass")
    ((after, _),) = data_of(root, "graph_break")
    assert width / short == pytest.approx(3, rel=0.02)
    assert 0 < after - (start + width) < 1
    assert root.findtext("svg:title", namespaces=NAMESPACE) == "By family"
    said = root.findtext("svg:desc", namespaces=NAMESPACE)
    assert said == "a: 10 pass; b: 30 pass, 10 graph break"
    # Viewers without style sheets need a colour for every class.
    assert all(rect.get("fill") for rect in root.iter(f"{{{charts.SVG}}}rect"))
    assert set(LEGEND) == set(charts.MID_TONES)
    assert all(f".{name} {{ fill:" in charts.STYLE for name in LEGEND)


@pytest.mark.parametrize("width", [350, 560])
def test_everything_lies_inside_the_picture(width: int) -> None:
    points = [(f"{day} Jan 2026", day / 20) for day in range(1, 21)]
    rows = {"a-family-with-a-rather-long-name": (900, 99), "b": (1, 0)}
    for root in (bars(rows, width), ET.fromstring(charts.trend("t", points, width))):
        _, _, box_width, box_height = map(float, root.attrib["viewBox"].split())
        assert box_width == width
        for rect in root.iter(f"{{{charts.SVG}}}rect"):
            x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert (x >= 0, x + w <= box_width, y + h <= box_height) == (True, True, True)
        for text in root.iter(f"{{{charts.SVG}}}text"):
            size = len(text.text or "") * charts.GLYPH_WIDTH
            left = {"start": 0, "middle": size / 2, "end": size}[text.attrib["text-anchor"]]
            start = float(text.attrib["x"]) - left
            assert start >= 0, text.text
            assert start + size <= box_width + 1, text.text


def test_a_trend_has_a_dot_for_each_run_and_an_axis_below_the_smallest() -> None:
    root = ET.fromstring(charts.trend("t", [("1 Jan", 1.0), ("2 Jan", 0.73), ("3 Jan", 0.9)], 560))
    dots = root.findall("svg:circle", NAMESPACE)
    first, second, third = (float(dot.attrib["cy"]) for dot in dots)
    assert first < third < second
    assert dots[1].findtext("svg:title", namespaces=NAMESPACE) == "2 Jan: 73.0%"
    texts = [text.text for text in root.iter(f"{{{charts.SVG}}}text")]
    assert texts == ["70%", "85%", "100%", "1 Jan", "3 Jan"]
    for share in (0.0, 1.0):
        flat = ET.fromstring(charts.trend("t", [("a", share)] * 3, 350))
        assert len({dot.get("cy") for dot in flat.findall("svg:circle", NAMESPACE)}) == 1


BREAKS = (factories.graph_break("f", line=7), factories.graph_break("g", line=9))


def strip(**fields: Any) -> Any:
    return html.strip(factories.result(breaks=BREAKS, **fields))


def test_graphs_are_as_wide_as_their_operations_and_fill_the_strip() -> None:
    made = strip(graph_ops=(100, 300), graph_ends=(1, -1))
    first, second = made["segments"]
    assert second["width"] / first["width"] == pytest.approx(3, rel=0.05)
    assert 98 < second["x"] + second["width"] < 100
    assert first["x"] + first["width"] < first["cut_x"] < second["x"]
    assert (first["cut"], second["cut"]) == (2, 0)
    assert [(number, cut.line, times) for number, cut, times in made["cuts"]] == [(2, 9, 1)]
    assert made["elsewhere"] == 0
    assert strip(graphs=2, graph_ops=(1, 3), graph_ends=(1, -1))["elsewhere"] == 1
    place = "transformers/models/bert/modeling_bert.py:9"
    assert made["described"] == f"100 operations, graph break at {place}; 300 operations"
    assert strip() is strip(graph_ops=(5,), graph_ends=(-1,)) is None
    assert strip(graph_ops=(5,), graph_ends=(0,)) is not None


def test_of_two_hundred_graphs_all_can_be_seen_and_numbers_do_not_overlap() -> None:
    segments = strip(graph_ops=(0, 1000) * 100, graph_ends=(0, 1) * 100)["segments"]
    assert min(segment["width"] for segment in segments) > 0.1
    assert segments[-1]["x"] + segments[-1]["width"] < 100
    assert not [segment for segment in segments if segment["ops_shown"]]
    shown = [segment["cut_x"] for segment in segments if segment["cut_shown"]]
    gaps = [after - before for before, after in pairwise(shown)]
    assert min(gaps) * html.STRIP_PIXELS / 100 >= 2 * html.DIGIT_PIXELS
    assert len(shown) > 10
