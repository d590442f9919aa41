"""What torch printed is read again: the reasons of logged and of raised graph breaks."""

from __future__ import annotations

from compilewatch.extras.fixes.worker.minimal.checking import count_lines, reasons_in

PREFIX = (
    "V1125 04:10:42.051000 23753 torch/_dynamo/symbolic_convert.py:100] [0/0] [__graph_breaks] "
)
LOGGED = (
    "Graph break in user code at a.py:3\n"
    "Graph Break Reason: Encountered graph break:\n\nData dependent operator\n"
    "  Explanation: It reads data.\n\nUser code traceback:\n  File a.py\n"
)
RAISED = (
    "Traceback (most recent call last):\n  File a.py\n"
    "torch._dynamo.exc.Unsupported: Attempt to trace generator\n  Explanation: No.\n\n"
    "from user code:\n  File a.py\n"
)


def test_logged_reasons_end_before_the_stack() -> None:
    printed = "".join(PREFIX + line + "\n" for line in LOGGED.splitlines())
    (found,) = reasons_in(printed)
    assert found == (
        "Encountered graph break:\n\nData dependent operator\n  Explanation: It reads data."
    )


def test_raised_reasons_end_before_the_users_code() -> None:
    assert reasons_in(RAISED) == ["Attempt to trace generator\n  Explanation: No."]


def test_lines_are_counted_without_comments_and_empty_ones() -> None:
    assert count_lines("# a\n\nimport torch\n\nx = 1  # b\n") == 2
