"""Evaluates the input variants of a model, each on a module that nothing has called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from compilewatch.contract.failures import error_code, one_line
from compilewatch.records import Mode, Status, TensorSummary, VariantResult, Variants
from compilewatch.worker.example_inputs import summarize
from compilewatch.worker.example_inputs.variants import (
    decode_variants,
    main_variant,
    other_variants,
)
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import TargetOutcome

_WORSE = {Status.PASS: 0, Status.GRAPH_BREAK: 1, Status.ERROR: 2}

Make = Callable[[Subject], Subject]
"""Returns the subject of a variant, made from that of the main one."""


@dataclasses.dataclass(frozen=True)
class _Evaluated:
    """The outcome of one input variant, and its example inputs."""

    outcome: TargetOutcome
    inputs: tuple[TensorSummary, ...] = ()


def run_variants(
    subject: Subject,
    make: Callable[[frozenset[str]], Subject],
    run: Callable[[Subject], TargetOutcome],
    eager: Callable[[Subject], None],
) -> tuple[TargetOutcome, tuple[TensorSummary, ...]]:
    """Run the main variant and the others; return the worst outcome and its example inputs.

    `make` makes a subject without some arguments, `run` evaluates a subject, and `eager` calls
    it without the compiler. A variant that fails before the compiler has no verdict: its inputs may
    be the cause. An error of the main variant propagates.
    """
    others = _variants_of(subject, make)
    if not others:
        return run(subject), summarize(subject.inputs)
    main = main_variant(subject.inputs) or "prefill"
    evaluated = {
        main: _Evaluated(subject.in_fork(run, TargetOutcome), summarize(subject.inputs)),
        **{name: _evaluated(subject, variant, run, eager) for name, variant in others.items()},
    }
    worst = max(evaluated, key=lambda name: _WORSE.get(evaluated[name].outcome.status, -1))
    outcome = evaluated[worst].outcome
    detail = outcome.detail if worst == main else f"with {worst}: {outcome.detail}"
    variants = tuple(_variant(name, variant) for name, variant in evaluated.items())
    outcome = dataclasses.replace(outcome, detail=detail, variant=worst, variants=variants)
    return outcome, evaluated[worst].inputs


def _variants_of(subject: Subject, make: Callable[[frozenset[str]], Subject]) -> dict[str, Make]:
    """Return how to make each variant but the main one."""
    request = subject.request
    variants: dict[str, Make] = {}
    if request.variants is Variants.MAIN:
        return variants
    for name, without in other_variants(subject.module, subject.inputs).items():
        variants[name] = _making(make, without)
    if request.variants is Variants.ALL_DECODE and request.target.mode is Mode.EVAL:
        variants |= decode_variants(subject)
    return variants


def _making(make: Callable[[frozenset[str]], Subject], without: frozenset[str]) -> Make:
    return lambda _: make(without)


def _evaluated(
    subject: Subject,
    make: Make,
    run: Callable[[Subject], TargetOutcome],
    eager: Callable[[Subject], None],
) -> _Evaluated:
    """Make a variant's inputs and evaluate it. A prefill calls the model before a decode step."""

    def evaluated(subject: Subject) -> _Evaluated:
        request = msgspec.structs.replace(subject.request, keep_artifacts=False)
        inputs: tuple[TensorSummary, ...] = ()
        try:
            variant = dataclasses.replace(make(subject), request=request, enter=subject.enter)
            inputs = summarize(variant.inputs)
            variant.in_fork(eager, type(None))
            return _Evaluated(run(variant), inputs)
        except Exception as error:  # whatever code of the model raises
            if error_code(error) == "out_of_memory":
                raise
            return _Evaluated(
                TargetOutcome(status=Status.UNSUPPORTED, detail=one_line(error)), inputs
            )

    return subject.in_fork(evaluated, _Evaluated)


def _variant(name: str, evaluated: _Evaluated) -> VariantResult:
    outcome = evaluated.outcome
    return VariantResult(
        name=name,
        status=outcome.status,
        detail=outcome.detail,
        graphs=outcome.graphs,
        graph_breaks=outcome.graph_breaks,
        ops=outcome.ops,
        fullgraph=outcome.fullgraph,
        breaks=outcome.breaks,
        inputs=evaluated.inputs,
    )
