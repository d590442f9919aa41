from __future__ import annotations

import pytest

from compilewatch.report.strips import strip
from tests import factories

BREAKS = (factories.graph_break("f", line=7), factories.graph_break("g", line=9))


def test_graphs_are_as_wide_as_their_operations_and_fill_the_strip():
    found = strip(factories.result(breaks=BREAKS, graph_ops=(100, 300), graph_ends=(1, -1)))
    first, second = found.segments
    assert second.width / first.width == pytest.approx(3, rel=0.05)
    assert 98 < second.x + second.width < 100
    assert first.x + first.width < first.cut_x < second.x
    assert (first.cut, second.cut) == (2, 0)
    assert [(number, break_.line, times) for number, break_, times in found.cuts] == [(2, 9, 1)]
    place = "transformers/models/bert/modeling_bert.py:9"
    assert found.described == f"100 operations, graph break at {place}; 300 operations"


def test_of_two_hundred_graphs_all_can_be_seen_and_numbers_do_not_overlap():
    ends = (0, 1) * 100
    found = strip(factories.result(breaks=BREAKS, graph_ops=(0, 1000) * 100, graph_ends=ends))
    assert min(segment.width for segment in found.segments) > 0.1
    last = found.segments[-1]
    assert last.x + last.width < 100
    assert not [s for s in found.segments if s.ops_shown == "" or s.cut_shown == ""]


@pytest.mark.parametrize(
    "fields",
    [{}, {"graph_ops": (5,), "graph_ends": (-1,)}],
    ids=["of an earlier version", "one graph"],
)
def test_there_is_no_strip_without_graphs_or_cuts(fields):
    assert strip(factories.result(**fields)) is None


def test_one_graph_that_ends_in_a_break_is_drawn():
    assert strip(factories.result(breaks=BREAKS, graph_ops=(5,), graph_ends=(0,))) is not None
