"""The search for a fix: which changes remove graph breaks, as few as possible, and verified.

The logic knows neither processes nor torch: an evaluator says what Dynamo does under changes, and a
verifier what the script of plain PyTorch says.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes import records
from compilewatch.extras.fixes.candidates import Place, after_rejection, proposals
from compilewatch.extras.fixes.code import pasteable
from compilewatch.records import GraphBreak, Request, Result, StackFrame, Status
from compilewatch.report.wording import plural

Changes = tuple[records.FixChange, ...]

MAX_VERIFICATIONS = 4
"""Each takes as long as several evaluations; what four scripts reject is not worth a fifth."""

MAX_REWRITES = 4
"""How many rewrites are made one after the other while the compiler still fails."""

WITHOUT = "without the fix, too"
"""What a script says of a failure that is not the fix's (`worker.verifying`): the search ends."""

Evaluator = Callable[[Sequence[Changes]], list[Result]]
"""Says what Dynamo does with the model under each of some changes, in separate processes."""

Verifier = Callable[[Changes], tuple[str, records.Verification]]
"""Writes the script that verifies changes, and runs it in a separate process."""

Report = Callable[[str, int], None]
"""Gets what is tried, and how many trials there were."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    evaluations: int = 24
    seconds: float = 600.0


class LimitReachedError(Exception):
    """A limit of the search; the argument says which."""


class Search:
    """A search for one model.

    With `ahead`, what is probably asked next is evaluated beside what is asked; it is a trial when
    it is asked.
    """

    def __init__(
        self,
        evaluate: Evaluator,
        verify: Verifier,
        place: Place,
        limits: Limits,
        *,
        rewrites: bool = True,
        ahead: bool = False,
        report: Report = lambda *_: None,
    ) -> None:
        self._evaluate, self._verifier, self._place = evaluate, verify, place
        self._ahead = ahead
        self._limits, self._rewrites, self._report = limits, rewrites, report
        self._began = time.monotonic()
        self._trials: list[records.FixTrial] = []
        self._evaluated: dict[frozenset[str], Result] = {}
        self._known: dict[frozenset[str], Result] = {}
        self._fix = nothing(place.request, ())
        # What helps, as far as this climb has come; it is verified where the evaluations end.
        self._not_verified: Changes = ()

    def run(self) -> records.Fix:
        """Search, verify, and return the best fix that was verified."""
        baseline = self._result(())
        self._fix = nothing(self._place.request, baseline.breaks)
        if baseline.status is Status.PASS:
            return self._ended(status=records.FixStatus.NO_BREAK, detail=baseline.detail)
        if not baseline.is_verdict:  # it fails without the compiler
            return self._ended(status=records.FixStatus.NO_VERDICT, detail=baseline.detail)
        self._place = replace(self._place, inputs=baseline.inputs)
        limit = ""
        try:
            self._search(baseline)
        except LimitReachedError as reached:
            limit = str(reached)
            if self._fix.verification is None and self._not_verified:
                with suppress(LimitReachedError):  # of the time
                    self._verify(self._not_verified)
        return with_captured(self._ended(limit=limit))

    def _ended(self, **fields: object) -> records.Fix:
        seconds = round(time.monotonic() - self._began, 1)
        fields |= {"trials": tuple(self._trials), "seconds": seconds}
        return msgspec.structs.replace(self._fix, **fields)

    def _search(self, baseline: Result) -> None:
        banned: set[str] = set()
        for _ in range(MAX_VERIFICATIONS):
            chosen = self._climb(baseline, banned)
            if not chosen or not _better(self._result(chosen), baseline):
                return
            chosen = self._minimised(chosen)
            if self._fix.verification is None or self._result(chosen).status is Status.PASS:
                self._verify(chosen)  # beside what is kept, only a single graph is better
            if self._fix.status is records.FixStatus.VERIFIED or any(
                WITHOUT in rejection.reason for rejection in self._fix.rejections
            ):
                return
            left = [change for change in chosen if change.name not in banned]
            banned.add(left[-1].name)  # the most intrusive one
            self._check_time()

    def _verify(self, changes: Changes) -> None:
        """Verify changes, and keep them if they hold and are not worse than what is kept."""

        def verify(changes: Changes) -> tuple[str, records.Verification]:
            self._check_time()
            self._report(f"verifying {names_of(changes)}", len(self._trials))
            return self._verifier(changes)

        attempt = verified(verify, self._fix, changes)
        self._not_verified = ()
        if self._fix.verification is None or attempt.status is records.FixStatus.VERIFIED:
            changes = attempt.changes
            while changes and (known := self._known.get(_names(changes))) is None:
                changes = changes[1:]  # what was added for the verification alone
            left = known.breaks if changes and known is not None else attempt.left
            self._fix = msgspec.structs.replace(attempt, left=left)
        else:
            self._fix = msgspec.structs.replace(self._fix, rejections=attempt.rejections)

    def _climb(self, baseline: Result, banned: set[str]) -> Changes:
        """Add changes, from the first break to those that it hid, until nothing helps any more."""
        chosen: Changes = ()
        self._not_verified, result = chosen, baseline
        while result.status is not Status.PASS:
            added = next(self._helping(chosen, result, banned), None)
            if added is None:
                break
            self._not_verified = chosen = (*chosen, *added)
            result = self._result(chosen)
        return chosen

    def _helping(self, chosen: Changes, result: Result, banned: set[str]) -> Iterator[Changes]:
        """Yield what to add: everything plausible at once, or else each change that helps."""
        have = _names(chosen) | banned
        offered = [change for change in self._proposed(result) if change.name not in have]
        usual = tuple(c for c in offered if c.kind is not records.FixKind.REWRITE and not c.once)
        mild = tuple(change for change in usual if change.kind is not records.FixKind.USAGE)
        together = [proposed for proposed in dict.fromkeys([mild, usual]) if proposed]
        for attempt in together:
            all_of_them = (*chosen, *attempt)
            if _better(self._result(all_of_them, likely=all_of_them[:-1]), result):
                yield attempt
        singles = [(change,) for change in offered if (change,) not in together]
        attempts = [*together[:1], *singles]
        for attempt, following in zip(attempts, [*attempts[1:], ()], strict=False):
            likely = (*chosen, *following)
            if _better(self._result((*chosen, *attempt), likely=likely), result):
                yield attempt
            if attempt[0].kind not in (records.FixKind.REWRITE, records.FixKind.USAGE):
                yield from self._beyond_error(chosen, result, attempt, have)

    def _beyond_error(
        self, chosen: Changes, result: Result, attempt: Changes, have: frozenset[str]
    ) -> Iterator[Changes]:
        """Yield changes that end in an error of the compiler with the rewrites that remove it.

        A rewrite stays as long as the error is at another place than before.
        """
        for _ in range(MAX_REWRITES):
            failed = self._result((*chosen, *attempt))
            if (before := failed.error) is None:
                return
            names = have | _names(attempt)
            rewrites = [c for c in self._proposed(failed) if c.kind is records.FixKind.REWRITE]
            for change in rewrites:
                if change.name in names:
                    continue
                further = self._result((*chosen, *attempt, change))
                if _better(further, result):
                    yield (*attempt, change)
                after = further.error
                if after and (after.file, after.line) != (before.file, before.line):
                    attempt = (*attempt, change)
                    break
            else:
                return

    def _proposed(self, result: Result) -> Changes:
        return proposals(_open(result), self._place, rewrites=self._rewrites)

    def _minimised(self, chosen: Changes) -> Changes:
        """Return the changes without those whose removal brings no break back."""
        best = self._result(chosen)
        for change in reversed(chosen):
            without = tuple(other for other in chosen if other is not change)
            before = chosen.index(change)
            likely = without[: max(before - 1, 0)] + without[before:]
            if without and not _better(best, self._result(without, likely=likely)):
                self._not_verified = chosen = without
        kinds = list(records.FixKind)
        return tuple(sorted(chosen, key=lambda change: kinds.index(change.kind)))

    def _result(self, changes: Changes, *, likely: Changes = ()) -> Result:
        """Return what is found under changes; `likely` is what is probably asked next."""
        key = _names(changes)
        if key not in self._known:
            if changes:  # the model as it is is evaluated whatever the time
                self._check_time()
            if len(self._trials) >= self._limits.evaluations:
                raise LimitReachedError(f"{self._limits.evaluations} evaluations")
            what = f"trying {names_of(changes)}" if changes else "as it is"
            self._report(what, len(self._trials))
            if key not in self._evaluated:
                further = self._ahead and likely and _names(likely) not in self._evaluated
                asked = [changes, *([likely] if further else [])]
                self._evaluated |= zip(map(_names, asked), self._evaluate(asked), strict=True)
            result = self._known[key] = self._evaluated[key]
            self._trials.append(trial_of(changes, result))
        return self._known[key]

    def _check_time(self) -> None:
        if time.monotonic() - self._began > self._limits.seconds:
            raise LimitReachedError(f"{self._limits.seconds:g} seconds")


def nothing(request: Request, breaks: Sequence[GraphBreak]) -> records.Fix:
    """Return what is known of a model with graph breaks before anything is verified."""
    return records.Fix(
        model=request.model.name,
        target=target_label(request.target),
        status=records.FixStatus.NOTHING,
        detail="nothing that was tried is verified",
        breaks=tuple(breaks),
        left=tuple(breaks),
    )


def verified(verify: Verifier, fix: records.Fix, changes: Changes) -> records.Fix:
    """Return a fix with these changes if their verification holds.

    Where it fails for a reason that one more change removes, they are verified with that one. What
    was rejected is added in any case.
    """
    script, verification = verify(changes)
    rejections = list(fix.rejections)
    while not verification.holds:
        names = tuple(change.name for change in changes)
        rejections.append(records.Rejection(changes=names, reason=verification.failure))
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
    if any(graph_break.code.startswith(records.RECOMPILED) for graph_break in fix.breaks):
        most, least = verification.compilations
        detail = f"compile {least} times instead of {most} for other sizes"
    title = f"What makes {fix.model} {detail}."
    return msgspec.structs.replace(
        fix,
        status=records.FixStatus.VERIFIED if single else records.FixStatus.IMPROVES,
        detail=detail,
        changes=changes,
        code=pasteable(changes, title, verification.holds_if),
        script=script,
        verification=verification,
    )


def with_captured(fix: records.Fix) -> records.Fix:
    """Say where Dynamo captures a single graph under changes that the script rejected."""
    passed = [{*trial.changes} for trial in fix.trials if trial.status == Status.PASS]
    captured = any({*rejection.changes} in passed for rejection in fix.rejections)
    if fix.status is records.FixStatus.NOTHING and captured:
        return msgspec.structs.replace(fix, status=records.FixStatus.CAPTURED)
    return fix


def trial_of(changes: Changes, result: Result) -> records.FixTrial:
    """Return what an evaluation under changes found, as it is stored."""
    failed = result.error
    return records.FixTrial(
        changes=tuple(change.name for change in changes),
        status=result.status.value,
        detail=result.detail,
        breaks=None if failed is not None else _count(result),
        seconds=round(sum(result.durations.values()), 2),
        error=f"{failed.type}: {failed.message.splitlines()[0]}"[:300] if failed else "",
    )


def names_of(changes: Sequence[records.FixChange]) -> str:
    """Return the names of changes in one line."""
    return " and ".join(change.name for change in changes)


def _names(changes: Changes) -> frozenset[str]:
    return frozenset(change.name for change in changes)


def _better(new: Result, old: Result) -> bool:
    """Whether Dynamo comes further: it captures all, or it removes a break, and nothing fails."""
    if new.status is Status.PASS:
        return old.status is not Status.PASS
    if new.status is not Status.GRAPH_BREAK or old.status is not Status.GRAPH_BREAK:
        return new.status is Status.GRAPH_BREAK
    before, after = ({b.fingerprint for b in result.breaks} for result in (old, new))
    gone = len(before - after)
    return (gone > 0 or _count(new) < _count(old)) and _count(new) <= _count(old) + gone


def _count(result: Result) -> int:
    return sum(graph_break.occurrences for graph_break in result.breaks)


def _open(result: Result) -> tuple[GraphBreak, ...]:
    """The breaks of a result; of a failure, one that stands for the error at its place.

    Its stack is that of the model, which the message has.
    """
    error = result.error
    if error is None:
        return result.breaks
    of_user = error.message.partition("from user code:")[2]
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', of_user)
    return (
        GraphBreak(
            code=error.code,
            reason=f"{error.type}: {error.message}",
            fingerprint="",
            file=error.file or "",
            line=error.line or 0,
            function=error.function or "",
            user_stack=tuple(
                StackFrame(file=file, line=int(line), function=name) for file, line, name in frames
            ),
        ),
    )
