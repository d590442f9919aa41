from __future__ import annotations

from typing import Any

from compilewatch.analysis.comparison import changed_breaks
from tests.factories import graph_break, result


def code(text: str, line: int) -> dict[str, Any]:
    return {"line": line, "source_start": line, "source": (text,)}


def test_a_break_on_the_same_line_of_code_has_not_changed_wherever_it_stands() -> None:
    old = result(breaks=(graph_break("f", **code("if x:", 5)),))
    new = result(breaks=(graph_break("f", **code("  if x:", 9)),))
    assert changed_breaks(old, new) == ()


def test_breaks_are_paired_by_fingerprint_then_by_function_and_the_rest_stand_alone() -> None:
    moved = graph_break("f", **code("if x:", 5)), graph_break("f", **code("if y:", 5))
    other = graph_break("g", "GB0001"), graph_break("g", "GB0002")
    gone, added = graph_break("h"), graph_break("i")
    old = result(breaks=(gone, other[0], moved[0]))
    new = result(breaks=(moved[1], other[1], added))
    assert changed_breaks(old, new) == (moved, other, (gone, None), (None, added))
