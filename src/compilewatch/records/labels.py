"""Values of labels in metrics and log events. Each is from a small, bounded set."""

from __future__ import annotations

from compilewatch.records.breaks import GraphBreak
from compilewatch.records.requests import Target


def mode_label_value(target: Target) -> str:
    """Return `eval`, `train`, `eval/dynamic` or `train/dynamic`."""
    return f"{target.mode.value}/dynamic" if target.dynamic else target.mode.value


def reason_label(graph_break: GraphBreak) -> str:
    """Return `GB0170 Data-dependent branching`, `xla_fallback aten::nonzero`, or a short code.

    The value is bounded, never free text: types are those of PyTorch's registry, and operators
    are PyTorch's own.
    """
    if graph_break.gb_id and graph_break.gb_type:
        return f"{graph_break.gb_id} {graph_break.gb_type}"
    if graph_break.gb_type and "::" in graph_break.gb_type:
        return f"{graph_break.code} {graph_break.gb_type}"
    return graph_break.code


def source_lines(graph_break: GraphBreak) -> tuple[tuple[int, str], ...]:
    """The stored lines around a break with their numbers; of older runs at most its own line."""
    if graph_break.source:
        return tuple(enumerate(graph_break.source, start=graph_break.source_start))
    here = (graph_break.file, graph_break.line)
    texts = (f.text for f in graph_break.user_stack if (f.file, f.line) == here and f.text)
    return tuple((graph_break.line, text) for text in texts)[:1]


def source_line(graph_break: GraphBreak) -> str:
    """The text of the line that broke, as it was when it ran; empty where it was not kept."""
    return dict(source_lines(graph_break)).get(graph_break.line, "")
