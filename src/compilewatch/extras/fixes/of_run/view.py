"""The fixes of a stored run, as the report, commands of the core and the sinks see them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from compilewatch.extras.fixes.of_run.cases import Case, cases_of, removes
from compilewatch.extras.fixes.of_run.journal import FixJournal
from compilewatch.extras.fixes.of_run.records import FixState, RunFix
from compilewatch.extras.fixes.records import Fix, FixTrial, Rejection, VerificationStep
from compilewatch.records import Status
from compilewatch.records.views import Link, ModelFix
from compilewatch.report.wording import plural
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
        for each in self.found:
            if each.model == model and each.script_file:
                yield Link(
                    each.script_file,
                    "Open the verification of the fix",
                    f"A script of plain PyTorch: {each.fix.detail}.",
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
    detail = f"{found.state.value.replace('_', ' ')}: {fix.detail}" if fix.detail else ""
    if found.state is FixState.CAPTURED:
        detail = f"captured, not verified: {fix.rejections[-1].reason}"
    return ModelFix(
        model=found.model,
        target=found.target,
        detail=detail,
        verified=verification is not None,
        single_graph=found.state is FixState.VERIFIED,
        changes=tuple(each.name for each in fix.changes),
        removed=removes(fix),
        code=fix.code,
        verification=tuple(_step(each) for each in verification.steps)
        if verification is not None
        else (),
        script=found.script_file,
        tried=tried_hints(fix),
    )


def _step(step: VerificationStep) -> str:
    return f"{step.name}: {step.detail}" if step.detail else f"{step.name}: equal"


def tried_hints(fix: Fix) -> dict[str, str]:
    """Return what became of the model under each hint that was tried and is no part of the fix."""
    used = {each.name for each in fix.changes}
    hints = {hint for each in fix.breaks for hint in each.hints}
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
        reasons = [each.reason for each in rejections if set(each.changes) == names]
        return (
            f"one graph{also}, but the script rejects it: {reasons[-1]}"
            if reasons
            else (f"one graph{also}, but not verified")
        )
    return f"{plural(trial.breaks or 0, 'graph break')}{also}" if trial.breaks else trial.detail
