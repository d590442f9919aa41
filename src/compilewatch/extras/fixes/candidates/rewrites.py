"""Rewrites of the source lines that break, by reviewed rules."""

from __future__ import annotations

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
        sites = [(each, site) for each in breaks if (site := _site(each, place)) is not None]
        for rule in RULES:
            found: dict[tuple[Edit, ...], None] = {}
            for each, site in sites:
                if re.search(rule.when, f"{each.code} {each.reason}") and (
                    edits := rule.apply(site)
                ):
                    found[edits] = None
            if len(found) > 1:
                together = {edit: None for edits in found for edit in edits}
                yield change(rule, tuple(together), place.source_of)
            for edits in found:
                yield change(rule, edits, place.source_of)


def _site(each: GraphBreak, place: Place) -> Site | None:
    """The innermost place of a library on the stack of a break."""
    frames = [(frame.file, frame.line) for frame in reversed(each.user_stack)]
    for file, line in [(each.file, each.line), *frames]:
        if file and not NOT_LIBRARIES.match(file):
            source = place.source_of(file)
            if source is not None:
                return site_at(source, file, line, each.reason)
    return None
