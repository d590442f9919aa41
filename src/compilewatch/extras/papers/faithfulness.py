"""Does the code contain the paper's contribution, or a stock network with its name on it?

Three sources of evidence: the structure of the code, the reviewer's rubric (whose quotations are
looked up), and formulas that are computed beside the code in the sandbox (`worker/`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilewatch.extras.papers.liveness import LivePart, live_parts
from compilewatch.extras.papers.operations import operations_in
from compilewatch.extras.papers.records import (
    Claim,
    Evidence,
    FindingClass,
    PaperFinding,
    PaperPlan,
    PipelineStage,
    Review,
)

VERSION = 1
"""Raised when a change of the structural check can change a finding."""

LINES_AROUND = 2
"""A reviewer may miss the line of a quotation by this much."""


def check_structure(source: str, plan: PaperPlan) -> tuple[PaperFinding, ...]:
    """A finding for each claim that no live part of the code can implement."""
    parts = live_parts(ast.parse(source))
    found = {part.name: _operations(part) for part in parts}
    return tuple(finding for claim in plan.claims for finding in _check_claim(claim, parts, found))


def check_rubric(source: str, plan: PaperPlan, review: Review) -> tuple[PaperFinding, ...]:
    """A finding for each claim that the reviewer does not confirm with a line of the code."""
    said = {one.claim: one for one in review.claims}
    found = []
    for claim in plan.claims:
        one = said.get(claim.id)
        if one is None or not one.present:
            found.append(_finding(f"the review does not find claim {claim.id}: {claim.statement}"))
        elif not any(_is_quoted(source, evidence) for evidence in one.evidence):
            found.append(
                _finding(
                    f"the review confirms claim {claim.id}, but its evidence is not in the code"
                )
            )
    return tuple(found)


def _finding(evidence: str, line: int | None = None) -> PaperFinding:
    one_line = " ".join(evidence.split())
    return PaperFinding(
        kind=FindingClass.UNFAITHFUL,
        stage=PipelineStage.FAITHFUL,
        evidence=one_line[:400],
        line=line,
    )


def _operations(part: LivePart) -> set[str]:
    return {name for name, _ in operations_in([*part.statements, *part.layers])}


def _check_claim(
    claim: Claim, parts: tuple[LivePart, ...], found: dict[str, set[str]]
) -> Iterator[PaperFinding]:
    """The operations of a claim must meet in one class, else they may belong to something else."""
    wanted = set(claim.operations)
    if not parts:
        yield _finding(f"claim {claim.id}: model() uses no class of this module, only stock layers")
        return
    if any(wanted <= operations for operations in found.values()):
        return
    nearest = max(parts, key=lambda part: len(wanted & found[part.name]))
    missing = ", ".join(sorted(wanted - found[nearest.name]))
    yield _finding(
        f"claim {claim.id} ({claim.statement}): no class that the model uses contains "
        f"{', '.join(sorted(wanted))}; {nearest.name} comes closest and lacks {missing}",
        nearest.line,
    )


def _is_quoted(source: str, evidence: Evidence) -> bool:
    """Whether the quotation stands at the line, or within a few lines of it."""
    lines = source.splitlines()
    quote = "".join(evidence.quote.split())
    if len(quote) < 4:
        return False
    start = max(0, evidence.line - 1 - LINES_AROUND)
    near = lines[start : evidence.line + LINES_AROUND]
    return quote in "".join("".join(near).split())
