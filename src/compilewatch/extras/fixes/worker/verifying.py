"""Verifies a fix in plain PyTorch: the last part of the text of each script that `fix` writes.

The script has the texts of `comparing`, `forks`, `script_calls`, `capturing`, `results` and `cost`,
too, and nothing else of compilewatch. It defines `build(seed)`, which returns the model,
`inputs(shape, seed)`, which returns its arguments, and `compilable`, the context manager that is
the fix; `main` calls them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch.utils._pytree import tree_leaves

from compilewatch.extras.fixes.worker.capturing import captured, left_behind
from compilewatch.extras.fixes.worker.cost import costs
from compilewatch.extras.fixes.worker.forks import KILLED, Forks
from compilewatch.extras.fixes.worker.results import (
    captured_with_results,
    equal_calls,
    equal_with_inductor,
    for_unusual,
)
from compilewatch.extras.fixes.worker.script_calls import (
    CALLS,
    SEEDS,
    SHAPES,
    ScriptSubject,
    Step,
    arguments,
)

KEPT = 0.9
"""How many of the operators that were in graphs must stay there; a fix may need a few fewer."""

MEMORY_OF_TWO = 10
"""As many times the size of a model two requirements take: two models each, and their results."""


def verify(
    subject: ScriptSubject, report: Callable[[str, Step], None], forks: Forks
) -> dict[str, Any]:
    """Examine all requirements; `report` gets each as it is known. Returns the figures."""

    def step(name: str, found: Any) -> bool:
        passed, detail = found if isinstance(found, list) else (False, found["raised"])
        report(name, (passed, detail))
        return bool(passed)

    # One seed runs in the default mode, whose graphs are counted, and the other one in fullgraph.
    of_after = forks.start(partial(captured_with_results, subject))
    of_before = forks.start(partial(captured, subject, calls=1))
    of_graph = forks.start(partial(equal_calls, subject, 1, "eager"))
    of_settings = forks.start(partial(left_behind, subject))
    of_eager = {seed: forks.start(partial(equal_calls, subject, seed)) for seed in SEEDS}

    before, after = forks.result(of_before), forks.result(of_after)
    figures: dict[str, Any] = {"single_graph": False}
    for name in ("breaks", "graphs", "operators"):
        figures[name] = [before.get(name, -1), after.get(name, -1)]
    figures["compilations"] = [None, after.get("compilations", -1)]
    if "raised" in after:
        # A model that fails without the fix, too, was given inputs that do not suit it.
        before = forks.result(forks.start(partial(captured, subject, calls=len(CALLS))))
        same = after != KILLED and after["raised"] == before.get("raised")
        name = "the inputs of both shapes suit the model" if same else "Dynamo captures it"
        report(name, (False, after["raised"]))
        return figures
    accepted = forks.result(of_graph)
    whole = figures["single_graph"] = isinstance(accepted, list)
    if whole:
        report("fullgraph=True accepts it", (True, shapes_of(subject)))
    elif not after["breaks"]:
        report("fullgraph=True accepts it", (False, accepted["raised"]))
        return figures
    else:
        fewer = after["breaks"] < before.get("breaks", sys.maxsize)
        said = f"{before.get('breaks')} to {after['breaks']}"
        detail = said if fewer else f"{said}; {accepted['raised']}"
        report("it has fewer graph breaks", (fewer, detail))
        if not fewer:
            return figures
        of_graph = forks.start(partial(equal_calls, subject, 1, "eager", whole=False))
    report("the graphs contain the model", contained(before, after, whole=whole))
    report("compilations do not grow", not_grown(subject, after, figures, forks))
    of_unusual = forks.start(partial(for_unusual, subject, whole=whole))
    with_inductor = partial(equal_with_inductor, subject, threads=forks.at_a_time)
    of_inductor = forks.start(partial(with_inductor, whole=whole))
    if not step("nothing stays changed", forks.result(of_settings)):
        return figures
    for seed in SEEDS:
        if not step(f"eager results, seed {seed}", forks.result(of_eager[seed])):
            return figures
    for seed, found in enumerate((after["results"], forks.result(of_graph))):
        if not step(f"results of the graph, seed {seed}", found):
            return figures
    if unusual_equal(forks.result(of_unusual), report):
        step("results of Inductor", forks.result(of_inductor))
    return figures


def shapes_of(subject: ScriptSubject) -> str:
    """Say whether the two shapes differ: example inputs of a person may have one only."""
    found = []
    for shape in SHAPES:
        tensors = filter(torch.is_tensor, tree_leaves(arguments(subject, shape, 0)))
        found.append([each.shape for each in tensors])
    return "both shapes" if found[0] != found[1] else "one shape: the example inputs have no other"


def contained(before: dict[str, int], after: dict[str, int], *, whole: bool) -> Step:
    """Whether a fix keeps operators in graphs, instead of excluding what breaks them.

    A single graph holds all of the model, in as many operators as it takes.
    """
    least = 1 if whole else max(KEPT * before.get("operators", 0), 1)
    counts = f"{before.get('operators')} operators without, {after['operators']} with the fix"
    return after["operators"] >= least, counts


def not_grown(
    subject: ScriptSubject, after: dict[str, int], figures: dict[str, Any], forks: Forks
) -> Step:
    """Whether each shape is compiled once, or the model compiles no more than without the fix.

    Only if it is not once, the compilations without the fix are counted, and put into `figures`.
    """
    with_fix = f"{after['compilations']} with the fix"
    if after["compilations"] <= len(SHAPES) and not after["late"]:
        return True, with_fix
    before = forks.result(forks.start(partial(captured, subject, calls=len(CALLS))))
    most = figures["compilations"][0] = before.get("compilations", 0)
    counts = f"{most} without, {with_fix}"
    if after["late"] > before.get("late", 0):
        return False, f"{counts}; {after['late']} in calls of a shape that was compiled before"
    return after["compilations"] <= max(most, len(SHAPES)), counts


def unusual_equal(found: Any, report: Callable[[str, Step], None]) -> bool:
    """Report what the graph computes for unusual values; whether that is what eager mode does."""
    if isinstance(found, dict):
        report("results for unusual values", (False, found["raised"]))
        return False
    for kind, passed, detail in found:
        report(f"results for {kind}", (passed, detail))
    return all(passed for _, passed, _ in found)


def warm_up(subject: ScriptSubject) -> int:
    """Build the model, and compile something else, so that no fork has to import all that again.

    Returns the bytes of its parameters and buffers.
    """

    def product(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    torch.set_num_threads(1)  # a fork has only the thread that forks
    model = subject.build(0)
    held = [*model.parameters(), *model.buffers()]
    size: int = sum(each.numel() * each.element_size() for each in held)
    del model, held
    compiled = torch.compile(product, backend="eager")
    for length in (2, 3):
        compiled(torch.ones(length))
    torch._dynamo.reset()
    gc.freeze()  # so that a collection in a fork copies no memory of this process
    return size


def at_a_time(size: int) -> int:
    """How many requirements of a model of so many bytes may be examined at a time."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    alone = "--one-at-a-time" in sys.argv or MEMORY_OF_TWO * size > memory
    return 1 if alone else min(2, os.cpu_count() or 1)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(subject: ScriptSubject) -> int:
    """Print each requirement, and with --json the figures. Returns the exit status.

    0: verified as a single graph; 1: as fewer graph breaks; 3: not verified. With --cost, it
    only prints the seconds of a call as JSON, and the exit status is 0. Requirements are
    examined two at a time where the memory suffices, with --one-at-a-time one after the other.
    """
    if "--cost" in sys.argv:
        say(json.dumps(costs(subject)))
        return 0
    as_json = "--json" in sys.argv
    began = time.monotonic()
    steps: list[tuple[str, bool, str]] = []

    def report(name: str, found: Step) -> None:
        steps.append((name, *found))
        if not as_json:
            say(f"{'ok  ' if found[0] else 'FAIL'} {name}: {found[1]}")

    size = warm_up(subject)
    with Forks(at_a_time(size)) as forks:
        figures = verify(subject, report, forks)
    holds = all(passed for _, passed, _ in steps)
    if as_json:
        seconds = round(time.monotonic() - began, 1)
        say(json.dumps({"steps": steps, **figures, "seconds": seconds}))
    else:
        for name in ("breaks", "graphs", "operators"):
            say(f"{name}: {figures[name][0]} without the fix, {figures[name][1]} with it")
        say("verified" if holds else "not verified")
    return (0 if figures["single_graph"] else 1) if holds else 3
