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
from compilewatch.extras.fixes.worker.forks import Forks
from compilewatch.extras.fixes.worker.results import equal_with_inductor
from compilewatch.extras.fixes.worker.script_calls import ScriptSubject, Step
from compilewatch.extras.fixes.worker.verifying import verify, warm_up


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the verification found: the figures, and each requirement with its name and a detail."""

    case: str
    fix: str
    single_graph: bool
    steps: list[tuple[str, bool, str]]
    seconds: float


def manager(change: FixChange) -> Any:
    """Return the context manager of a fix, from the source that is printed."""
    names: dict[str, Any] = {}
    exec("\n".join([*imports([change]), "\n", context_manager([change], change.name)]), names)
    return names[NAME]


def built(case: Case, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return case.model().train(case.train)


def subject_of(case: Case, change: FixChange) -> ScriptSubject:
    return ScriptSubject(partial(built, case), case.arguments, manager(change), train=case.train)


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
