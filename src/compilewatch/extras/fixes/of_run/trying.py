"""Changes that were verified for other models, tried on one more: cheaper than a search for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.code import pasteable
from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.records import Fix, FixStatus, FixTrial, Verification
from compilewatch.extras.fixes.search import (
    Changes,
    names_of,
    outcome_of,
    trial_of,
    verify_with_more,
)
from compilewatch.records import GraphBreak, Request, Result, Status


class FixFinder(Protocol):
    """Searches for a fix of a model, and evaluates and verifies single sets of changes."""

    def __call__(
        self,
        request: Request,
        limits: Limits,
        *,
        rewrites: bool = True,
        report: Callable[[str, int], None] = ...,
    ) -> Fix: ...

    def evaluate(self, request: Request, changes: Changes) -> Result: ...

    def verify(self, request: Request, changes: Changes) -> tuple[str, Verification]: ...


class KnownChangesTrial:
    """Tries changes on one model. `report` receives what is done; `trials` are all evaluations."""

    def __init__(
        self, finder: FixFinder, request: Request, report: Callable[[str, int], None]
    ) -> None:
        self._finder, self._request, self._report = finder, request, report
        self.trials: list[FixTrial] = []
        self._began = time.monotonic()

    def run(self, changes: Changes, breaks: Sequence[GraphBreak], *, minimal: bool) -> Fix | None:
        """Return the fix that is verified, or what the script rejected; None without help.

        `breaks` are those of the model as it is. Unless the changes are known to be `minimal` for
        these graph breaks, those that the model does not need are left out first.
        """
        if not self._captured(changes):
            return None
        for each in () if minimal else reversed(changes):
            without = tuple(other for other in changes if other is not each)
            if without and self._captured(without):
                changes = without
        attempt = verify_with_more(self._verify, changes)
        name = self._request.model.name
        fix = Fix(
            model=name,
            target=target_label(self._request.target),
            status=FixStatus.NOTHING,
            detail="nothing that was tried is verified",
            breaks=tuple(breaks),
            left=tuple(breaks),
            trials=tuple(self.trials),
            rejections=attempt.rejections,
            seconds=round(time.monotonic() - self._began, 1),
        )
        if not attempt.verification.holds:
            return fix
        status, detail = outcome_of(attempt.verification)
        return msgspec.structs.replace(
            fix,
            status=status,
            detail=detail,
            # Which ones went is not known where some remain.
            left=() if status is FixStatus.VERIFIED else tuple(breaks),
            changes=attempt.changes,
            code=pasteable(
                attempt.changes, f"What makes {name} {detail}.", attempt.verification.holds_if
            ),
            script=attempt.script,
            verification=attempt.verification,
        )

    def _verify(self, changes: Changes) -> tuple[str, Verification]:
        self._report(f"verifying {names_of(changes)}", len(self.trials))
        return self._finder.verify(self._request, changes)

    def _captured(self, changes: Changes) -> bool:
        """Whether Dynamo captures a single graph under these changes."""
        self._report(f"trying {names_of(changes)}", len(self.trials))
        began = time.monotonic()
        result = self._finder.evaluate(self._request, changes)
        self.trials.append(trial_of(changes, result, time.monotonic() - began))
        return result.status is Status.PASS
