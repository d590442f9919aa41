"""What the verification says of the fixes of `tempting_fixes.py`, in a process that can fork.

Prints one JSON object a line, `Said`, for each fix that an argument names by its model and `wrong`
or `right`, in that order. With `--inductor` they are compiled with Inductor, too; otherwise
AOTAutograd takes its place, whose graphs eager mode runs: it is what Inductor begins with.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

import msgspec
import torch
from tempting_fixes import CASES, Case

from compilewatch.extras.fixes.code import NAME, context_manager, imports
from compilewatch.extras.fixes.records import FixChange
from compilewatch.extras.fixes.worker import verifying
from compilewatch.extras.fixes.worker.script import of_subject
from compilewatch.extras.fixes.worker.verifying import (
    Forks,
    ScriptSubject,
    Step,
    equal_with_inductor,
    verify,
    warm_up,
)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the verification found: the figures, and each requirement with its name and a detail."""

    case: str
    fix: str
    single_graph: bool
    steps: list[tuple[str, bool, str]]
    tried: list[str]
    holds_if: list[str]
    seconds: float


def built(case: Case, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return case.model().train(case.train)


def subject_of(case: Case, change: FixChange) -> ScriptSubject:
    """Return the case with a fix, from the source that is printed and written."""
    names: dict[str, Any] = {}
    exec("\n".join([*imports([change]), "\n", context_manager([change], change.name)]), names)
    given = eval(of_subject((change,), train=case.train), names)
    return ScriptSubject(partial(built, case), case.arguments, names[NAME], **given)


def said(case: Case, fix: str) -> Said:
    change = getattr(case, fix)
    steps: list[tuple[str, bool, str]] = []

    def report(name: str, step: Step) -> None:
        steps.append((name, *step))

    began = time.monotonic()
    subject = subject_of(case, change)
    with Forks(1) as forks:
        figures = verify(subject, report, forks)
    return Said(
        case=case.name,
        fix=fix,
        single_graph=figures["single_graph"],
        steps=steps,
        tried=figures["tried"],
        holds_if=[*change.holds_if, *figures["holds_if"]],
        seconds=round(time.monotonic() - began, 1),
    )


if __name__ == "__main__":
    warm_up(subject_of(CASES[0], CASES[0].wrong))
    channel = os.dup(1)
    os.dup2(2, 1)  # what the modules print
    if "--inductor" not in sys.argv:
        quick = partial(equal_with_inductor, backend="aot_eager")
        setattr(verifying, "equal_with_inductor", quick)  # noqa: B010
    cases = {each.name: each for each in CASES}
    for argument in sys.argv[1:]:
        name, _, which = argument.partition(".")
        if which:
            os.write(channel, msgspec.json.encode(said(cases[name], which)) + b"\n")
