"""Values of labels in metrics and log events. Each is from a small, bounded set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from compilewatch.records.breaks import GraphBreak


def selection_label(settings: Mapping[str, Any]) -> str:
    """Return which models a run selects, from its settings: `top 25 (9f86d081)`.

    Runs with equal labels select alike, at the same depth. The digest distinguishes long lists.
    """
    stored = settings.get("selection")
    chosen: dict[str, Any] = stored if isinstance(stored, dict) else {}
    if chosen.get("names"):
        words = f"{len(chosen['names'])} by name"
    elif chosen.get("families"):
        words = f"{len(chosen['families'])} by family"
    elif chosen.get("all"):
        words = "all"
    else:
        words = f"top {chosen['top']}" if chosen.get("top") else "default"
    identity = [chosen, settings.get("depth"), settings.get("tier")]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return f"{words} ({digest[:8]})"


def reason_label(graph_break: GraphBreak, *, short: bool = False) -> str:
    """Return `GB0170 Data-dependent branching`, `xla_fallback aten::nonzero`, or a code.

    The value is bounded, never free text: types are those of PyTorch's registry, and operators
    are PyTorch's own. `short` leaves out the code where there is a type, and words it otherwise.
    """
    if short:
        return graph_break.gb_type or graph_break.code.replace("_", " ")
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
