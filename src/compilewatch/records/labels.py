"""Values of labels in metrics and log events: each from a small, bounded set."""

from __future__ import annotations

from compilewatch.records.breaks import GraphBreak
from compilewatch.records.requests import Target


def mode_label_value(target: Target) -> str:
    """`eval`, `train`, `eval/dynamic` or `train/dynamic`."""
    return f"{target.mode.value}/dynamic" if target.dynamic else target.mode.value


def reason_label(graph_break: GraphBreak) -> str:
    """`GB0170 Data-dependent branching`, `xla_fallback aten::nonzero`, or the short code.

    Bounded, never free text: types are those of torch's registry, operators torch's own.
    """
    if graph_break.gb_id and graph_break.gb_type:
        return f"{graph_break.gb_id} {graph_break.gb_type}"
    if graph_break.gb_type and "::" in graph_break.gb_type:
        return f"{graph_break.code} {graph_break.gb_type}"
    return graph_break.code


def source_line(graph_break: GraphBreak) -> str:
    """The text of the line that broke, as it was when it ran; empty where it was not kept."""
    here = (graph_break.file, graph_break.line)
    return next((f.text for f in graph_break.user_stack if (f.file, f.line) == here), "")
