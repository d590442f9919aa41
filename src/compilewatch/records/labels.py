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


def source_line(graph_break: GraphBreak) -> str:
    """Return the text of the line with the graph break as it was executed, "" if not stored."""
    here = (graph_break.file, graph_break.line)
    return next((f.text for f in graph_break.user_stack if (f.file, f.line) == here), "")
