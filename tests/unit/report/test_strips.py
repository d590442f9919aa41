from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from compilewatch.report.html import DESK_PIXELS, DIGIT_PIXELS, PHONE_PIXELS, strip
from tests import factories

STYLES_ON_PHONE, STYLES_ON_DESK = ("",), ("", "wide")
STYLES = {STYLES_ON_PHONE: PHONE_PIXELS, STYLES_ON_DESK: DESK_PIXELS}
BREAKS = (factories.graph_break("f", line=7), factories.graph_break("g", line=9))


def drawn(**fields: Any) -> Any:
    """The strip, with segments whose values are attributes."""
    made = strip(factories.result(breaks=BREAKS, **fields))
    assert made is not None
    segments = [SimpleNamespace(**segment) for segment in made["segments"]]
    return SimpleNamespace(**{**made, "segments": segments})


def test_graphs_are_as_wide_as_their_operations_and_fill_the_strip() -> None:
    made = drawn(graph_ops=(100, 300), graph_ends=(1, -1))
    first, second = made.segments
    assert second.width / first.width == pytest.approx(3, rel=0.05)
    assert 98 < second.x + second.width < 100
    assert first.x + first.width < first.cut_x < second.x
    assert (first.cut, second.cut) == (2, 0)
    assert [(number, break_.line, times) for number, break_, times in made.cuts] == [(2, 9, 1)]
    assert made.elsewhere == 0
    assert drawn(graphs=2, graph_ops=(1, 3), graph_ends=(1, -1)).elsewhere == 1
    place = "transformers/models/bert/modeling_bert.py:9"
    assert made.described == f"100 operations, graph break at {place}; 300 operations"


def test_of_two_hundred_graphs_all_can_be_seen_and_numbers_do_not_overlap() -> None:
    segments = drawn(graph_ops=(0, 1000) * 100, graph_ends=(0, 1) * 100).segments
    assert min(segment.width for segment in segments) > 0.1
    assert segments[-1].x + segments[-1].width < 100
    assert not [segment for segment in segments if segment.ops_shown is not None]
    shown = {style: [s.cut_x for s in segments if s.cut_shown in style] for style in STYLES}
    for style, pixels in STYLES.items():
        gaps = [after - before for before, after in pairwise(shown[style])]
        assert min(gaps) * pixels / 100 >= 2 * DIGIT_PIXELS
    assert len(shown[STYLES_ON_DESK]) > len(shown[STYLES_ON_PHONE]) > 10


@pytest.mark.parametrize(
    "fields",
    [{}, {"graph_ops": (5,), "graph_ends": (-1,)}],
    ids=["without a count", "one graph"],
)
def test_there_is_no_strip_without_graphs_or_cuts(fields: Any) -> None:
    assert strip(factories.result(**fields)) is None


def test_one_graph_that_ends_in_a_break_is_drawn() -> None:
    assert strip(factories.result(breaks=BREAKS, graph_ops=(5,), graph_ends=(0,))) is not None
