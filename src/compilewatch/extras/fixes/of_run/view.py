"""The fixes of a stored run, as the report, commands of the core and the sinks see them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from compilewatch.analysis.summary import downloads_of
from compilewatch.contract.targets import target_label_value
from compilewatch.extras.fixes.of_run.cases import Case, cases_of
from compilewatch.extras.fixes.of_run.journal import FixJournal
from compilewatch.extras.fixes.records import (
    Fix,
    FixKind,
    FixStatus,
    FixTrial,
    Rejection,
    RunFix,
    VerificationStep,
)
from compilewatch.records import Link, ModelFix, Status
from compilewatch.report.wording import plural
from compilewatch.sinks.prometheus import RUN, Definition
from compilewatch.store import StoredRun

_WORD = re.compile(r"[A-Za-z_][\w.]*")
"""The beginning of a change's name, which is a setting or a function where a hint names one."""


@dataclass(frozen=True, kw_only=True)
class RunFixes:
    """What `fix --all-of` stored in a run. `cases` are all models and targets to search."""

    cases: tuple[Case, ...]
    found: tuple[RunFix, ...]

    @cached_property
    def model_fixes(self) -> Sequence[ModelFix]:
        return tuple(map(model_fix, self.found))

    def links(self, model: str) -> Iterator[Link]:
        """Yield a link to each verification of a model."""
        for entry in self.found:
            if entry.model == model and entry.script_file:
                yield Link(
                    entry.script_file,
                    "Open the verification of the fix",
                    f"A script of plain PyTorch: {entry.fix.detail}.",
                )


def view_of_run(stored: StoredRun, baseline: StoredRun | None) -> tuple[RunFixes, Sequence[str]]:
    """The fixes of a run, and notes on damaged lines."""
    del baseline
    found, damaged = FixJournal(stored.path).read()
    cases, _ = cases_of(stored.results())
    mine = [found[case.key] for case in cases if case.key in found]
    return RunFixes(cases=cases, found=tuple(mine)), damaged


def fixes_of_run(stored: StoredRun) -> tuple[Sequence[ModelFix], Sequence[str]]:
    """The fixes of a run for commands of the core, and notes on damaged lines."""
    found, damaged = FixJournal(stored.path).read()
    return tuple(map(model_fix, found.values())), damaged


def model_fix(found: RunFix) -> ModelFix:
    """Return what the report shows of one stored fix."""
    fix, verification = found.fix, found.fix.verification
    detail = f"{found.fix.status.value.replace('_', ' ')}: {fix.detail}" if fix.detail else ""
    if found.fix.status is FixStatus.CAPTURED:
        detail = f"captured, not verified: {fix.rejections[-1].reason}"
    return ModelFix(
        model=found.model,
        target=found.target,
        detail=detail,
        verified=verification is not None,
        single_graph=found.fix.status is FixStatus.VERIFIED,
        changes=tuple(change.name for change in fix.changes),
        removed=fix.removed,
        code=fix.code,
        verification=tuple(_step(step) for step in verification.steps)
        if verification is not None
        else (),
        script=found.script_file,
        tried=tried_hints(fix),
    )


def _step(step: VerificationStep) -> str:
    return f"{step.name}: {step.detail}" if step.detail else f"{step.name}: equal"


def tried_hints(fix: Fix) -> dict[str, str]:
    """Return what became of the model under each hint that was tried and is no part of the fix."""
    used = {change.name for change in fix.changes}
    hints = {hint for graph_break in fix.breaks for hint in graph_break.hints}
    found: dict[str, str] = {}
    for hint in sorted(hints):
        named = [trial for trial in fix.trials if any(_names(c, hint) for c in trial.changes)]
        if not named or any(_names(name, hint) for name in used):
            continue
        trial = min(named, key=lambda each: len(each.changes))
        found[hint] = _outcome(trial, fix.rejections)
    return found


def _names(change: str, hint: str) -> bool:
    """Whether a hint is about what a change sets or replaces."""
    word = _WORD.match(change)
    return word is not None and ("_" in word[0] or "." in word[0]) and word[0] in hint


def _outcome(trial: FixTrial, rejections: Sequence[Rejection]) -> str:
    also = f", with {' and '.join(trial.changes)}" if len(trial.changes) > 1 else ""
    if trial.error:
        return f"compiler error {trial.error}{also}"
    if trial.status == Status.PASS:
        names = set(trial.changes)
        reasons = [rejection.reason for rejection in rejections if set(rejection.changes) == names]
        return (
            f"one graph{also}, but the script rejects it: {reasons[-1]}"
            if reasons
            else (f"one graph{also}, but not verified")
        )
    return f"{plural(trial.breaks or 0, 'graph break')}{also}" if trial.breaks else trial.detail


_STATES = tuple(each for each in FixStatus if each is not FixStatus.NO_BREAK)

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
    "fix_state": ", ".join(f"`{each.value}`" for each in _STATES)
    + ": the states of a `RunFix` ([records](records.md))",
    "change_kind": ", ".join(f"`{each.value}`" for each in FixKind),
}

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""


def samples(part: RunFixes) -> Iterator[Sample]:
    """Yield the samples of a run that was searched; zeros too, so that a state falls to zero."""
    found = {(entry.model, entry.target): entry for entry in part.found}
    states: defaultdict[tuple[str, str], defaultdict[FixStatus, list[Case]]] = defaultdict(
        lambda: defaultdict(list)
    )
    kinds: Counter[tuple[str, str, str]] = Counter()
    for case in part.cases:
        target = case.request.target
        where = (target_label_value(target), target.mode_label)
        fix = found.get((case.name, target))
        states[where][fix.fix.status if fix is not None else FixStatus.NOT_SEARCHED].append(case)
        if fix is not None and fix.fix.status is FixStatus.VERIFIED:
            kinds.update(
                (kind, *where) for kind in {change.kind.value for change in fix.fix.changes}
            )
    for where, by_state in states.items():
        for state in _STATES:
            cases = by_state[state]
            yield "compilewatch_fixes_models", (state.value, *where), len(cases)
            downloads = downloads_of(case.request.model for case in cases)
            if downloads is not None:
                yield "compilewatch_fixes_downloads", (state.value, *where), downloads
        for kind in FixKind:
            labels = (kind.value, *where)
            yield "compilewatch_fix_changes_models", labels, kinds[labels]
