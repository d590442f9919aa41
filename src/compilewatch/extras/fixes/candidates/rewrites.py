"""Rewrites of the source lines that break, by reviewed rules."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Sequence

from compilewatch.extras.fixes.candidates import NOT_LIBRARIES, Place, Proposer
from compilewatch.extras.fixes.records import Edit, FixChange
from compilewatch.extras.fixes.rewriting.changes import change
from compilewatch.extras.fixes.rewriting.rules import RULES
from compilewatch.extras.fixes.rewriting.sites import Site, site_at
from compilewatch.records import GraphBreak


class RewritesProposer(Proposer):
    def propose(self, breaks: Sequence[GraphBreak], place: Place, /) -> Iterator[FixChange]:
        """Propose each rule at all of its places together, then at each of them."""
        sites = [
            (graph_break, site)
            for graph_break in breaks
            if (site := _site(graph_break, place)) is not None
        ]
        caught = {
            graph_break.fingerprint for graph_break in breaks if _is_caught(graph_break, place)
        }
        for rule in RULES:
            found: dict[tuple[Edit, ...], None] = {}
            for each, site in sites:
                if rule.other_error and each.fingerprint in caught:
                    continue
                if re.search(rule.when, f"{each.code} {each.reason}") and (
                    edits := rule.apply(site)
                ):
                    found[edits] = None
            if len(found) > 1:
                together = {edit: None for edits in found for edit in edits}
                yield change(rule, tuple(together), place.source_of)
            for edits in found:
                yield change(rule, edits, place.source_of)


def _site(graph_break: GraphBreak, place: Place) -> Site | None:
    """The innermost place of a library on the stack of a break."""
    frames = [(frame.file, frame.line) for frame in reversed(graph_break.user_stack)]
    for file, line in [(graph_break.file, graph_break.line), *frames]:
        if file and not NOT_LIBRARIES.match(file):
            source = place.source_of(file)
            if source is not None:
                return site_at(source, file, line, graph_break.reason)
    return None


def _is_caught(graph_break: GraphBreak, place: Place) -> bool:
    """Whether the model catches errors at a line of the stack of a break."""
    for file, line in {
        (graph_break.file, graph_break.line),
        *((f.file, f.line) for f in graph_break.user_stack),
    }:
        source = None if NOT_LIBRARIES.match(file) else place.source_of(file)
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(source or "")):
                if not isinstance(node, ast.Try | ast.With):
                    continue
                catches = isinstance(node, ast.Try) and bool(node.handlers)
                if isinstance(node, ast.With):
                    catches = any("suppress" in ast.unparse(item) for item in node.items)
                if catches and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line):
                    return True
    return False
