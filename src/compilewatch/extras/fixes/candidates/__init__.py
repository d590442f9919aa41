"""The table of what is tried against graph breaks: one row and one class each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from compilewatch import plugins
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.records import GraphBreak, Request, TensorSummary


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a proposer may know: the request, its example inputs, and the source of a file.

    `source_of` returns the text of a file that a break names, None if it cannot be read.
    """

    request: Request
    source_of: Callable[[str], str | None]
    inputs: tuple[TensorSummary, ...] = ()


NOT_LIBRARIES = re.compile(r"torch/|<")
"""Files of torch itself, and code without a file: nothing of them is replaced or rewritten."""


class Proposer(Protocol):
    """Proposes changes that may remove graph breaks. Nothing that it proposes is believed."""

    def propose(self, breaks: Sequence[GraphBreak], place: Place, /) -> Iterator[FixChange]:
        """Yield changes that the causes of these breaks make plausible, most plausible first."""
        ...


PROPOSERS: dict[str, str] = {
    "settings": "compilewatch.extras.fixes.candidates.settings:SettingsProposer",
    "usage": "compilewatch.extras.fixes.candidates.usage:UsageProposer",
    "attributes": "compilewatch.extras.fixes.candidates.attributes:AttributesProposer",
    "arguments": "compilewatch.extras.fixes.candidates.arguments:ArgumentsProposer",
    "functions": "compilewatch.extras.fixes.candidates.functions:FunctionsProposer",
    "rewrites": "compilewatch.extras.fixes.candidates.rewrites:RewritesProposer",
}

_ORDER = {kind: number for number, kind in enumerate(FixKind)}


def proposals(
    breaks: Sequence[GraphBreak], place: Place, *, rewrites: bool = True
) -> tuple[FixChange, ...]:
    """Return what all proposers propose, the least intrusive first, each change once.

    What removes a check of the model comes last. Of a kind, what does its work once comes last.
    """
    changes: dict[str, FixChange] = {}
    for name, reference in PROPOSERS.items():
        if name == "rewrites" and not rewrites:
            continue
        proposer: Proposer = plugins.load(reference)()
        for change in proposer.propose(breaks, place):
            changes.setdefault(change.name, change)
    return tuple(
        sorted(
            changes.values(), key=lambda each: (each.removes_check, _ORDER[each.kind], each.once)
        )
    )
