"""Why a graph broke, in words with few values."""

from __future__ import annotations

from compilewatch.records import GraphBreak


def reason_label(graph_break: GraphBreak) -> str:
    """`GB0170 Data-dependent branching`, or the short code: bounded, never free text."""
    if graph_break.gb_id and graph_break.gb_type:
        return f"{graph_break.gb_id} {graph_break.gb_type}"
    return graph_break.code
