"""Proves a fix in plain PyTorch: the last part of the text of each script that `fix` writes.

The script has the texts of `comparing`, `proof_calls`, `capturing`, `results` and `cost`, too, and
nothing else of compilewatch. It defines `build(seed)`, which returns the model, `inputs(shape,
seed)`, which returns its arguments, and `compilable`, the context manager that is the fix; `main`
calls them.
"""

from __future__ import annotations

import gc
import json
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
from compilewatch.extras.fixes.worker.proof_calls import (
    SEEDS,
    SHAPES,
    ProofSubject,
    Step,
    arguments,
    untouched,
)
from compilewatch.extras.fixes.worker.results import captured_with_results, equal_calls, for_unusual

KEPT = 0.9
"""How many of the operators that were in graphs must stay there; a fix may need a few fewer."""


def prove(subject: ProofSubject, report: Callable[[str, Step], None]) -> dict[str, Any]:
    """Examine all requirements; `report` gets each as it is known. Returns the figures."""

    def step(name: str, found: Any) -> bool:
        passed, detail = found if isinstance(found, list) else (False, found["raised"])
        report(name, (passed, detail))
        return bool(passed)

    before = untouched(partial(captured, subject, subject.unchanged))
    after = untouched(partial(captured_with_results, subject))
    figures: dict[str, Any] = {"single_graph": False}
    for name in ("breaks", "graphs", "operators", "compilations"):
        figures[name] = [before.get(name, -1), after.get(name, -1)]
    if "raised" in after:
        # A model that fails without the fix, too, was given inputs that do not suit it.
        same = after["raised"] == before.get("raised")
        name = "the inputs of both shapes suit the model" if same else "Dynamo captures it"
        report(name, (False, after["raised"]))
        return figures
    # One seed runs in the default mode, whose graphs are counted, and the other one in fullgraph.
    results = {0: after["results"], 1: untouched(partial(equal_calls, subject, 1, "eager"))}
    whole = figures["single_graph"] = isinstance(results[1], list)
    if whole:
        report("fullgraph=True accepts it", (True, shapes_of(subject)))
    elif not after["breaks"]:
        report("fullgraph=True accepts it", (False, results[1]["raised"]))
        return figures
    else:
        fewer = after["breaks"] < before.get("breaks", sys.maxsize)
        said = f"{before.get('breaks')} to {after['breaks']}"
        detail = said if fewer else f"{said}; {results[1]['raised']}"
        report("it has fewer graph breaks", (fewer, detail))
        if not fewer:
            return figures
        results[1] = untouched(partial(equal_calls, subject, 1, "eager", whole=False))
    report("the graphs contain the model", contained(before, after, whole=whole))
    report("compilations do not grow", not_grown(before, after))
    if not step("nothing stays changed", untouched(partial(left_behind, subject))):
        return figures
    for seed in SEEDS:
        if not step(f"eager results, seed {seed}", untouched(partial(equal_calls, subject, seed))):
            return figures
    for seed in SEEDS:
        if not step(f"results of the graph, seed {seed}", results[seed]):
            return figures
    prove_unusual(subject, step, report, whole=whole)
    return figures


def shapes_of(subject: ProofSubject) -> str:
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


def not_grown(before: dict[str, int], after: dict[str, int]) -> Step:
    """Whether each shape is compiled once, or the model compiles no more than without the fix."""
    most = max(before.get("compilations", 0), len(SHAPES))
    counts = f"{before.get('compilations')} without, {after['compilations']} with the fix"
    if after["late"] > before.get("late", 0):
        return False, f"{counts}; {after['late']} in calls of a shape that was compiled before"
    return after["compilations"] <= most, counts


def prove_unusual(
    subject: ProofSubject,
    step: Callable[[str, Any], bool],
    report: Callable[[str, Step], None],
    *,
    whole: bool,
) -> None:
    """Examine what the graph computes for unusual values, and what Inductor computes."""
    found = untouched(partial(for_unusual, subject, whole=whole))
    if isinstance(found, dict):
        report("results for unusual values", (False, found["raised"]))
        return
    for kind, passed, detail, _ in found:
        report(f"results for {kind}", (passed, detail))
    if not all(passed for _, passed, *_ in found):
        return
    raising = tuple(kind for kind, *_, raises in found if raises)

    def with_inductor() -> Step:
        from torch._inductor import config

        with config.patch(compile_threads=1, fallback_random=True):
            return equal_calls(subject, 0, "inductor", whole=whole, raising=raising)

    step("results of Inductor", untouched(with_inductor))


def warm_up(subject: ProofSubject) -> None:
    """Build the model, and compile something else, so that no fork has to import all that again."""

    def product(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    torch.set_num_threads(1)  # a fork has only the thread that forks
    subject.build(0)
    compiled = torch.compile(product, backend="eager")
    for size in (2, 3):
        compiled(torch.ones(size))
    torch._dynamo.reset()
    gc.freeze()  # so that a collection in a fork copies no memory of this process


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(subject: ProofSubject) -> int:
    """Print each requirement, and with --json the figures. Returns the exit status.

    0: a single graph, proven; 1: fewer graph breaks, proven; 3: not proven. With --cost, nothing is
    proven: it prints the seconds of a call as JSON, and the exit status is 0.
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

    warm_up(subject)
    figures = prove(subject, report)
    holds = all(passed for _, passed, _ in steps)
    if as_json:
        seconds = round(time.monotonic() - began, 1)
        say(json.dumps({"steps": steps, **figures, "seconds": seconds}))
    else:
        for name in ("breaks", "graphs", "operators", "compilations"):
            say(f"{name}: {figures[name][0]} without the fix, {figures[name][1]} with it")
        say("proven" if holds else "not proven")
    return (0 if figures["single_graph"] else 1) if holds else 3
