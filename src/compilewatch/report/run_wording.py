"""How runs are worded, and what their tables hold, the same in the report and in the terminal."""

from __future__ import annotations

from collections import Counter

from compilewatch.analysis import summary
from compilewatch.analysis.rows import Cell, TargetReason
from compilewatch.contract.targets import TARGETS, target_label
from compilewatch.records import ChangeKind
from compilewatch.records.views import RunView
from compilewatch.report.wording import (
    OUTCOME_LABELS,
    ResultGroup,
    outcome,
    percent,
    status_words,
)

OTHER_OUTCOMES: dict[ResultGroup, tuple[str, str]] = {
    ResultGroup.GRAPH_BREAK: ("with graph breaks", "with graph breaks"),
    ResultGroup.MISMATCH: ("mismatch", "mismatches"),
    ResultGroup.COMPILE_ERROR: ("compile error", "compile errors"),
    ResultGroup.NO_VERDICT: ("error", "errors"),
    ResultGroup.NOT_RUN: ("not run", "not run"),
}
"""What the headline calls one and several results that are no pass."""

CHANGE_LABELS: dict[ChangeKind, str] = {
    ChangeKind.REGRESSION: "Regressions",
    ChangeKind.FIXED: "Fixed",
    ChangeKind.NEW: "New",
    ChangeKind.NOT_SELECTED: "Not selected",
    ChangeKind.PENDING: "Pending",
    ChangeKind.MISSING: "Missing",
    ChangeKind.GONE: "Removed",
    ChangeKind.NEWLY_TESTED: "Newly tested",
    ChangeKind.NO_LONGER_TESTED: "No longer tested",
}


def headline(view: RunView) -> str:
    """`1 of 19 models compiles without graph breaks (5.3 %); 18 errors`.

    Of all that was planned: what failed, was skipped or is missing is named behind it. With
    several targets or modes the unit is a request, a model on a target. On a target that does not
    count graph breaks, a model only passes.
    """
    total, passed = summary.planned(view), summary.summarise(view).passed
    targets = {
        target_label(t) for t in (*(r.request.target for r in view.results), *view.run.targets)
    }
    unit = "model" if len(targets) <= 1 else "request"
    names = {t.name for t in (*(r.request.target for r in view.results), *view.run.targets)}
    counted = all(name not in TARGETS or TARGETS[name].counts_graph_breaks for name in names)
    singular = 1 in (passed, total)
    verb = "passes" if singular else "pass"
    if counted:
        verb = f"{'compiles' if singular else 'compile'} without graph breaks"
    if total != 1:
        unit += "s"
    counts = Counter(outcome(result) for result in view.results)
    others = [
        f"{counts[kind]:,} {label if counts[kind] == 1 else plural_label}"
        for kind, (label, plural_label) in OTHER_OUTCOMES.items()
        if counts[kind]
    ]
    if missing := total - len(view.results):
        others.append(f"{missing:,} without a result")
    share = percent(summary.passed_share(view))
    said = f"{passed:,} of {total:,} {unit} {verb} ({share})"
    return "; ".join([said, *others])


def repository_words(view: RunView) -> str:
    """`repositories: 20 of 25 with a verdict on each evaluated part (whole 15 of 15, …)`.

    Empty without any.
    """
    found = summary.repositories(view)
    if found is None:
        return ""
    counted = f"repositories: {found.covered:,} of {found.total:,}"
    skipped = f", {found.partly:,} of them with skipped parts" if found.partly else ""
    parts = ", ".join(
        f"{part or 'nothing can be built'} {covered:,} of {total:,}"
        for part, (covered, total) in found.by_part.items()
    )
    return f"{counted} with a verdict on each evaluated part{skipped} ({parts})"


def cell_words(cell: Cell) -> str:
    """`pass`, `compile error`; of eager mode with the target that met the failure."""
    if cell.result is None:
        return OUTCOME_LABELS[ResultGroup.PASS]
    words = status_words(cell.result)
    target = cell.result.request.target
    return words if target.name == cell.layer else f"{words} ({target_label(target)})"


def cause_words(reason: TargetReason) -> str:
    """`GB0170 Data-dependent branching`, `type_error in compile`."""
    return reason.label if reason.phase is None else f"{reason.label} in {reason.phase.value}"
