"""The search for a fix: which changes remove graph breaks, as few as possible, and verified.

The logic knows neither processes nor torch: an evaluator says what Dynamo does under changes, and a
verifier what the script of plain PyTorch says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.candidates import Place, after_rejection, proposals
from compilewatch.extras.fixes.code import pasteable
from compilewatch.extras.fixes.records import (
    Fix,
    FixChange,
    FixKind,
    FixStatus,
    FixTrial,
    Rejection,
    Verification,
)
from compilewatch.records import GraphBreak, Request, Result, StackFrame, Status
from compilewatch.report.wording import plural

Changes = tuple[FixChange, ...]

MAX_EVALUATIONS = 24
MAX_SECONDS = 600.0

MAX_VERIFICATIONS = 4
"""Each takes as long as several evaluations; what four scripts reject is not worth a fifth."""

MAX_REWRITES = 4
"""How many rewrites are made one after the other while the compiler still fails."""


WITHOUT = "without the fix, too"
"""What a script says of a failure that is not the fix's (`worker.results`): the search ends."""


Evaluator = Callable[[Changes], Result]
"""Says what Dynamo does with the model under changes, in a separate process."""

Verifier = Callable[[Changes], tuple[str, Verification]]
"""Writes the script that verifies changes, and runs it in a separate process."""


class LimitReachedError(Exception):
    """A limit of the search; the argument says which."""


@dataclass(kw_only=True)
class Search:
    """A search for one model. `report` gets what is tried, and how many trials there were."""

    evaluate: Evaluator
    verify: Verifier
    place: Place
    max_evaluations: int = MAX_EVALUATIONS
    max_seconds: float = MAX_SECONDS
    rewrites: bool = True
    report: Callable[[str, int], None] = lambda *_: None
    trials: list[FixTrial] = field(default_factory=list)
    _known: dict[frozenset[str], Result] = field(default_factory=dict)
    _fix: Fix = field(init=False)
    _not_verified: Changes = ()
    """What helps, as far as this climb has come; it is verified where the evaluations end."""
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> Fix:
        """Search, verify, and return the best fix that was verified."""
        baseline = self._result(())
        self._fix = nothing(self.place.request, baseline.breaks)
        limit = ""
        if baseline.status is Status.PASS:
            return self._ended(FixStatus.NO_BREAK, "it has no graph breaks")
        if not baseline.is_verdict:  # it fails without the compiler
            return self._ended(FixStatus.NO_VERDICT, baseline.detail)
        self.place = replace(self.place, inputs=baseline.inputs)
        try:
            self._search(baseline)
        except LimitReachedError as reached:
            limit = str(reached)
            if self._fix.verification is None and self._not_verified:
                with suppress(LimitReachedError):  # of the time
                    self._verify(self._not_verified)
        return with_captured(self._ended(self._fix.status, self._fix.detail, limit))

    def _ended(self, status: FixStatus, detail: str, limit: str = "") -> Fix:
        return msgspec.structs.replace(
            self._fix,
            status=status,
            detail=detail,
            limit=limit,
            trials=tuple(self.trials),
            seconds=round(time.monotonic() - self._began, 1),
        )

    def _search(self, baseline: Result) -> None:
        banned: set[str] = set()
        for _ in range(MAX_VERIFICATIONS):
            chosen = self._climb(baseline, frozenset(banned))
            if not chosen or not _better(self._result(chosen), baseline):
                return
            chosen = self._minimised(chosen)
            if self._fix.verification is None or self._result(chosen).status is Status.PASS:
                self._verify(chosen)  # beside what is kept, only a single graph is better
            if self._fix.status is FixStatus.VERIFIED or any(
                WITHOUT in rejection.reason for rejection in self._fix.rejections
            ):
                return
            left = [change for change in chosen if change.name not in banned]
            banned.add(left[-1].name)  # the most intrusive one
            self._check_time()

    def _verify(self, changes: Changes) -> None:
        """Verify changes, and keep them if they hold and are not worse than what is kept."""

        def verify(changes: Changes) -> tuple[str, Verification]:
            self._check_time()
            self.report(f"verifying {names_of(changes)}", len(self.trials))
            return self.verify(changes)

        attempt = verified(verify, self._fix, changes)
        self._not_verified = ()
        if self._fix.verification is None or attempt.status is FixStatus.VERIFIED:
            left = self._left(attempt.changes) if attempt.changes else attempt.left
            self._fix = msgspec.structs.replace(attempt, left=left)
        else:
            self._fix = msgspec.structs.replace(self._fix, rejections=attempt.rejections)

    def _climb(self, baseline: Result, banned: frozenset[str]) -> Changes:
        """Add changes, from the first break to those that it hid, until nothing helps any more."""
        chosen: Changes = ()
        self._not_verified = ()
        result = baseline
        while result.status is not Status.PASS:
            added = self._next(chosen, result, banned)
            if added is None:
                break
            self._not_verified = chosen = (*chosen, *added)
            result = self._result(chosen)
        return chosen

    def _next(self, chosen: Changes, result: Result, banned: frozenset[str]) -> Changes | None:
        """Return what to add: everything plausible at once, or else the first change that helps."""
        have = {change.name for change in chosen} | banned
        offered = [
            change
            for change in proposals(_open(result), self.place, rewrites=self.rewrites)
            if change.name not in have
        ]
        usual = tuple(change for change in offered if not _is_tried_alone(change))
        mild = tuple(change for change in usual if change.kind is not FixKind.USAGE)
        together = [proposed for proposed in dict.fromkeys([mild, usual]) if proposed]
        for attempt in together:
            if _better(self._result((*chosen, *attempt)), result):
                return attempt
        singles = [(change,) for change in offered if (change,) not in together]
        for attempt in [*together[:1], *singles]:
            if _better(self._result((*chosen, *attempt)), result):
                return attempt
            mild_alone = attempt[0].kind not in (FixKind.REWRITE, FixKind.USAGE)
            beyond = self._beyond_error(chosen, result, attempt, have) if mild_alone else None
            if beyond is not None:
                return beyond
        return None

    def _beyond_error(
        self, chosen: Changes, result: Result, attempt: Changes, have: set[str]
    ) -> Changes | None:
        """Return changes that end in an error of the compiler with the rewrites that remove it.

        A rewrite stays as long as the error is at another place than before.
        """
        for _ in range(MAX_REWRITES):
            failed = self._result((*chosen, *attempt))
            names = have | {change.name for change in attempt}
            for change in proposals(_open(failed), self.place, rewrites=self.rewrites):
                if (
                    failed.error is None
                    or change.kind is not FixKind.REWRITE
                    or change.name in names
                ):
                    continue
                found = self._result((*chosen, *attempt, change))
                if _better(found, result):
                    return (*attempt, change)
                if found.error is not None and _place(found) != _place(failed):
                    attempt = (*attempt, change)
                    break
            else:
                return None
        return None

    def _minimised(self, chosen: Changes) -> Changes:
        """Return the changes without those whose removal brings no break back."""
        best = self._result(chosen)
        for change in reversed(chosen):
            without = tuple(other for other in chosen if other is not change)
            if without and not _better(best, self._result(without)):
                self._not_verified = chosen = without
        return tuple(sorted(chosen, key=lambda each: list(FixKind).index(each.kind)))

    def _left(self, chosen: Changes) -> tuple[GraphBreak, ...]:
        """The breaks that remain under changes, one of which may not have been evaluated."""
        known = self._known.get(frozenset(change.name for change in chosen))
        return known.breaks if known is not None else self._left(chosen[1:])

    def _result(self, changes: Changes) -> Result:
        key = frozenset(change.name for change in changes)
        if key not in self._known:
            self._check_time()
            if len(self.trials) >= self.max_evaluations:
                raise LimitReachedError(f"{self.max_evaluations} evaluations")
            self.report(f"trying {names_of(changes)}" if changes else "as it is", len(self.trials))
            began = time.monotonic()
            result = self._known[key] = self.evaluate(changes)
            self.trials.append(trial_of(changes, result, time.monotonic() - began))
        return self._known[key]

    def _check_time(self) -> None:
        if time.monotonic() - self._began > self.max_seconds:
            raise LimitReachedError(f"{self.max_seconds:g} seconds")


def nothing(request: Request, breaks: Sequence[GraphBreak]) -> Fix:
    """Return what is known of a model with graph breaks before anything is verified."""
    return Fix(
        model=request.model.name,
        target=target_label(request.target),
        status=FixStatus.NOTHING,
        detail="nothing that was tried is verified",
        breaks=tuple(breaks),
        left=tuple(breaks),
    )


def verified(verify: Verifier, fix: Fix, changes: Changes) -> Fix:
    """Return a fix with these changes if their verification holds.

    Where it fails for a reason that one more change removes, they are verified with that one. What
    was rejected is added in any case.
    """
    script, verification = verify(changes)
    rejections = list(fix.rejections)
    while not verification.holds:
        names = tuple(change.name for change in changes)
        rejections.append(Rejection(changes=names, reason=verification.failure))
        more = after_rejection(verification.failure)
        if more is None or more.name in names:
            break
        try:
            script, verification = verify((more, *changes))
        except LimitReachedError:  # what was rejected until now is said all the same
            break
        changes = (more, *changes)
    fix = msgspec.structs.replace(fix, rejections=tuple(rejections))
    if not verification.holds:
        return fix
    before, after = verification.breaks
    single = verification.single_graph
    detail = "one graph" if single else f"{plural(after, 'graph break')} instead of {before}"
    title = f"What makes {fix.model} {detail}."
    return msgspec.structs.replace(
        fix,
        status=FixStatus.VERIFIED if single else FixStatus.IMPROVES,
        detail=detail,
        changes=changes,
        code=pasteable(changes, title, verification.holds_if),
        script=script,
        verification=verification,
    )


def with_captured(fix: Fix) -> Fix:
    """Say where Dynamo captures a single graph under changes that the script rejected."""
    passed = {trial.changes for trial in fix.trials if trial.status == Status.PASS}
    captured = any(set(rejection.changes) in map(set, passed) for rejection in fix.rejections)
    if fix.status is FixStatus.NOTHING and captured:
        return msgspec.structs.replace(fix, status=FixStatus.CAPTURED)
    return fix


def _is_tried_alone(change: FixChange) -> bool:
    """Whether a change is so intrusive that it is not tried together with all others."""
    return change.kind is FixKind.REWRITE or change.removes_check or change.once


def _better(new: Result, old: Result) -> bool:
    """Whether Dynamo comes further: it captures all, or it removes a break, and nothing fails."""
    if new.status is Status.PASS:
        return old.status is not Status.PASS
    if new.status is not Status.GRAPH_BREAK:
        return False
    if old.status is not Status.GRAPH_BREAK:
        return True
    gone = _fingerprints(old) - _fingerprints(new)
    return (bool(gone) or _count(new) < _count(old)) and _count(new) <= _count(old) + len(gone)


def _place(result: Result) -> tuple[str | None, int | None]:
    """Where the compiler failed."""
    error = result.error
    return (error.file, error.line) if error is not None else (None, None)


def _count(result: Result) -> int:
    return sum(graph_break.occurrences for graph_break in result.breaks)


def _fingerprints(result: Result) -> set[str]:
    return {graph_break.fingerprint for graph_break in result.breaks}


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_USER_CODE = "from user code:"
"""What stands before the stack of the model in the message of an error of Dynamo."""


def _user_stack(message: str) -> tuple[StackFrame, ...]:
    """The stack that the message of an error of the compiler has; empty if it has none."""
    frames = _FRAME.findall(message.partition(_USER_CODE)[2])
    return tuple(StackFrame(file=file, line=int(line), function=f) for file, line, f in frames)


def _open(result: Result) -> tuple[GraphBreak, ...]:
    """The breaks of a result; of a failure, one that stands for the error at its place."""
    error = result.error
    if error is None:
        return result.breaks
    return (
        GraphBreak(
            code=error.code,
            reason=f"{error.type}: {error.message}",
            fingerprint="",
            file=error.file or "",
            line=error.line or 0,
            function=error.function or "",
            user_stack=_user_stack(error.message),
        ),
    )


def trial_of(changes: Changes, result: Result, seconds: float) -> FixTrial:
    """Return what an evaluation under changes found, as it is stored."""
    failed = result.error
    return FixTrial(
        changes=tuple(change.name for change in changes),
        status=result.status.value,
        detail=result.detail,
        breaks=None if failed is not None else _count(result),
        seconds=round(seconds, 2),
        error=f"{failed.type}: {failed.message.splitlines()[0]}"[:300] if failed else "",
    )


def names_of(changes: Sequence[FixChange]) -> str:
    """Return the names of changes in one line."""
    return " and ".join(change.name for change in changes)
