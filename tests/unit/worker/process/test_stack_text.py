from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from torch.fx import Graph, Node

from compilewatch.worker.process.stack_text import format_each_place_once, keep_each_text_once


@pytest.fixture
def formatted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the frames that Python itself formats, after the first of each place."""
    names: list[str] = []
    original = traceback.StackSummary.format_frame_summary

    def counted(
        self: traceback.StackSummary, frame_summary: traceback.FrameSummary, **options: object
    ) -> str:
        names.append(frame_summary.name)
        return original(self, frame_summary, **options)

    monkeypatch.setattr(traceback.StackSummary, "format_frame_summary", counted)
    format_each_place_once()
    yield names
    monkeypatch.undo()


def error_in(divisor: int, *, capture_locals: bool = False) -> list[str]:
    """The text of a stack with one frame, which has marks below its line."""
    try:
        _ = [10, 20][1] + (1 / divisor)
    except ZeroDivisionError as error:
        return list(
            traceback.TracebackException.from_exception(
                error, capture_locals=capture_locals
            ).stack.format()
        )
    return []


def test_the_text_is_that_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as unchanged:
        unchanged.setattr(
            traceback.StackSummary,
            "format_frame_summary",
            traceback.StackSummary.format_frame_summary,
        )
        expected = error_in(0)
        format_each_place_once()
        assert error_in(0) == error_in(0) == expected
    assert "^" in expected[0]


def test_a_place_is_formatted_once(formatted: list[str]) -> None:
    assert error_in(0) == error_in(0)
    assert formatted == ["error_in"]


def test_places_on_the_same_line_are_distinguished(formatted: list[str]) -> None:
    frames = [
        traceback.FrameSummary(
            __file__, 1, "same", lookup_line=False, end_lineno=1, colno=0, end_colno=end
        )
        for end in (4, 11)
    ]
    first, second = (traceback.StackSummary.from_list([f]).format()[0] for f in frames)
    assert first.count("^") == 4
    assert second.count("^") == 11
    assert len(formatted) == 2


def test_variables_are_those_of_each_stack(formatted: list[str]) -> None:
    first = "".join(error_in(0, capture_locals=True))
    second = "".join(error_in(False, capture_locals=True))
    assert "divisor = 0\n" in first
    assert "divisor = False\n" in second
    assert len(formatted) == 2


def test_nodes_share_the_text_of_equal_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "stack_trace", vars(Node)["stack_trace"])
    keep_each_text_once()
    graph = Graph()
    first, second, other, none = (graph.placeholder(name) for name in "abcd")
    for node, line in ((first, 1), (second, 1), (other, 2)):
        node.stack_trace = f"file.py, line {line}"
    none.stack_trace = None
    assert first.stack_trace == "file.py, line 1"
    assert first.stack_trace is second.stack_trace
    assert other.stack_trace == "file.py, line 2"
    assert none.stack_trace is None
