"""Formats each place of a stack once, and keeps each text once.

Dynamo writes the stack of the model's code to every node of a graph (`SubgraphTracer._create_proxy`
of torch/_dynamo/output_graph.py, torch 2.13 to 2.15). Python parses the source line of each frame
for that, each time anew, which takes a twentieth of a capture. The frames are always the same few
hundred, and their text depends on nothing else. The nodes of equal layers have equal texts, of
4 KiB each.
"""

from __future__ import annotations

import traceback
from typing import Any

from torch.fx import Node


def format_each_place_once() -> None:
    """Let `traceback.StackSummary` keep the text of every frame that it formats.

    Frames with local variables, which differ between two stacks, are formatted as before, and so
    are subclasses that format frames themselves.
    """
    original = traceback.StackSummary.format_frame_summary
    texts: dict[tuple[Any, ...], str] = {}

    def format_frame_summary(
        self: traceback.StackSummary, frame_summary: traceback.FrameSummary, **options: Any
    ) -> str:
        if frame_summary.locals:
            return original(self, frame_summary, **options)
        place = (
            frame_summary.filename,
            frame_summary.lineno,
            frame_summary.end_lineno,
            frame_summary.colno,
            frame_summary.end_colno,
            frame_summary.name,
            frame_summary.line,
            *options.items(),
        )
        text = texts.get(place)
        if text is None:
            text = texts[place] = original(self, frame_summary, **options)
        return text

    traceback.StackSummary.format_frame_summary = format_frame_summary  # type: ignore[method-assign]


def keep_each_text_once() -> None:
    """Let the nodes of all graphs share equal texts of their stacks."""
    own: Any = vars(Node).get("stack_trace")
    if not isinstance(own, property) or own.fset is None:
        return
    store = own.fset
    texts: dict[str | None, str | None] = {}

    def store_once(self: Node, trace: str | None) -> None:
        store(self, texts.setdefault(trace, trace))

    Node.stack_trace = own.setter(store_once)
