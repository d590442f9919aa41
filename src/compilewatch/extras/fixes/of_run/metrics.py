"""The metrics of a run's fixes: few series, whatever the number of models."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from compilewatch.analysis.summary import downloads_of
from compilewatch.contract.targets import target_label_value
from compilewatch.extras.fixes.of_run.cases import Case
from compilewatch.extras.fixes.of_run.records import FixState
from compilewatch.extras.fixes.records import FixKind
from compilewatch.sinks.prometheus import RUN, Definition

if TYPE_CHECKING:
    from compilewatch.extras.fixes.of_run.view import RunFixes

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_fixes_models",
        "Models with graph breaks by what a search for fixes found; absent for a run whose graph "
        "breaks were not searched.",
        ("fix_state", "target", "mode"),
        RUN,
    ),
    Definition(
        "compilewatch_fixes_downloads",
        "Downloads over 30 days of the models in compilewatch_fixes_models; absent where the "
        "source knows none.",
        ("fix_state", "target", "mode"),
        RUN,
    ),
    Definition(
        "compilewatch_fix_changes_models",
        "Models with a verified fix of a single graph, by the kinds of changes in it; a fix with "
        "changes of two kinds counts for both.",
        ("change_kind", "target", "mode"),
        RUN,
    ),
)

LABELS: dict[str, str] = {
    "fix_state": ", ".join(f"`{each.value}`" for each in FixState)
    + ": the states of a `RunFix` ([records](records.md))",
    "change_kind": ", ".join(f"`{each.value}`" for each in FixKind),
}

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""


def samples(part: RunFixes) -> Iterator[Sample]:
    """Yield the samples of a run that was searched; zeros too, so that a state falls to zero."""
    found = {(each.model, each.target): each for each in part.found}
    states: defaultdict[tuple[str, str], defaultdict[FixState, list[Case]]] = defaultdict(
        lambda: defaultdict(list)
    )
    kinds: Counter[tuple[str, str, str]] = Counter()
    for case in part.cases:
        target = case.request.target
        where = (target_label_value(target), target.mode_label)
        fix = found.get((case.name, target))
        states[where][fix.state if fix is not None else FixState.NOT_SEARCHED].append(case)
        if fix is not None and fix.state is FixState.VERIFIED:
            kinds.update((kind, *where) for kind in {each.kind.value for each in fix.fix.changes})
    for where, by_state in states.items():
        for state in FixState:
            cases = by_state[state]
            yield "compilewatch_fixes_models", (state.value, *where), len(cases)
            downloads = downloads_of(case.request.model for case in cases)
            if downloads is not None:
                yield "compilewatch_fixes_downloads", (state.value, *where), downloads
        for kind in FixKind:
            labels = (kind.value, *where)
            yield "compilewatch_fix_changes_models", labels, kinds[labels]
