"""Evaluates the input variants of a model on the module that was built for the main one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import msgspec

from compilewatch.contract.failures import error_code, one_line
from compilewatch.records import Mode, Request, Status, TensorSummary, VariantResult, Variants
from compilewatch.worker.example_inputs import summarize
from compilewatch.worker.example_inputs.decode import decode_variants
from compilewatch.worker.example_inputs.variants import main_variant, other_variants
from compilewatch.worker.model.state import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import Outcome

_WORSE = {Status.PASS: 0, Status.GRAPH_BREAK: 1, Status.ERROR: 2}

Make = Callable[[], ExampleInputs]


def variants_of(
    subject: Subject, make: Callable[[frozenset[str]], ExampleInputs]
) -> dict[str, Make]:
    """Return how to make the example inputs of each variant but the main one.

    `make` makes example inputs without some arguments.
    """
    request: Request = subject.request
    found: dict[str, Make] = {}
    if request.variants is Variants.MAIN:
        return found
    for name, without in other_variants(subject.module, subject.inputs).items():
        found[name] = _making(make, without)
    if request.variants is Variants.ALL_DECODE and request.target.mode is Mode.EVAL:
        found |= decode_variants(subject)
    return found


def run_variants(
    subject: Subject,
    others: Mapping[str, Make],
    run: Callable[[Subject], Outcome],
    eager: Callable[[Subject], None],
) -> tuple[Outcome, tuple[TensorSummary, ...]]:
    """Run the main variant, then the others; return the worst outcome and its example inputs.

    `run` evaluates a subject, and `eager` calls it without the compiler. A variant that fails
    before the compiler has no verdict: its inputs may be the cause. An error of the main variant
    propagates.
    """
    main = main_variant(subject.inputs) or "prefill"
    inputs = {main: summarize(subject.inputs)}
    if not others:
        return run(subject), inputs[main]
    with preserved(subject.module):
        outcomes = {main: run(subject)}
    for name, make in others.items():
        with preserved(subject.module):
            outcomes[name], inputs[name] = _run(subject, make, run, eager)
    worst = max(outcomes, key=lambda name: _WORSE.get(outcomes[name].status, -1))
    found = outcomes[worst]
    detail = found.detail if worst == main else f"with {worst}: {found.detail}"
    said = tuple(_variant(name, outcome, inputs[name]) for name, outcome in outcomes.items())
    return dataclasses.replace(found, detail=detail, variant=worst, variants=said), inputs[worst]


def _making(make: Callable[[frozenset[str]], ExampleInputs], without: frozenset[str]) -> Make:
    return lambda: make(without)


def _run(
    subject: Subject,
    make: Make,
    run: Callable[[Subject], Outcome],
    eager: Callable[[Subject], None],
) -> tuple[Outcome, tuple[TensorSummary, ...]]:
    request = msgspec.structs.replace(subject.request, keep_artifacts=False)
    inputs: tuple[TensorSummary, ...] = ()
    try:
        made = make()
        inputs = summarize(made)
        variant = dataclasses.replace(subject, request=request, inputs=made)
        eager(variant)
        return run(variant), inputs
    except Exception as error:  # whatever code of the model raises
        if error_code(error) == "out_of_memory":
            raise
        return Outcome(status=Status.UNSUPPORTED, detail=one_line(error)), inputs


def _variant(name: str, outcome: Outcome, inputs: tuple[TensorSummary, ...]) -> VariantResult:
    return VariantResult(
        name=name,
        status=outcome.status,
        detail=outcome.detail,
        graphs=outcome.graphs,
        graph_breaks=outcome.graph_breaks,
        ops=outcome.ops,
        fullgraph=outcome.fullgraph,
        breaks=outcome.breaks,
        inputs=inputs,
    )
