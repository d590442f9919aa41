"""Whether a caller's model computes the same compiled as in eager mode, in their process.

The comparison, its tolerances and its reference in float64 are those of the target Inductor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch._inductor.config

from compilewatch.errors import UsageError
from compilewatch.records import Numerics, Phase, Tier
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.execution import Call, observed, observed_in_float64, samples
from compilewatch.worker.targets.inductor import InductorTarget
from compilewatch.worker.targets.outputs import from_bytes, to_bytes

INDUCTOR = "inductor"


def compared(subject: Subject, backend: str) -> Numerics:
    """Compare the results of all calls, and in train mode their gradients, with eager mode.

    `backend` compiles the model. Raises UsageError where the comparison is not possible here; what
    the compiler or the model raises propagates.
    """
    if subject.request.tier is Tier.FAKE:
        raise UsageError("numerics compares values, which fake tensors do not have")
    for_cpu = backend == INDUCTOR and subject.request.target.device == "cpu"
    if for_cpu and (missing := InductorTarget().missing()):
        raise UsageError(f"numerics compiles with Inductor: {missing}, or name a backend")
    subject.enter(Phase.COMPARE)

    def eager() -> dict[str, Any]:
        return from_bytes(subject.in_fork(lambda s: _results(s, s.module), bytes))

    def compiled() -> dict[str, Any]:
        return from_bytes(subject.in_fork(lambda s: _results(s, _compiled(s, backend)), bytes))

    def reference() -> dict[str, Any]:
        every = subject.in_fork(lambda s: _of_all_calls(s, observed_in_float64), bytes)
        return from_bytes(every)

    def sample(inputs: ExampleInputs) -> Any:
        return subject.in_fork(
            lambda single: observed(replace(single, inputs=inputs), single.module), dict
        )

    several = subject.later is not None
    alone = [] if several else [partial(sample, single.inputs) for single in samples(subject)]
    # A pool of compile workers would stay in the caller's process. Random numbers as in eager mode,
    # because dropout could not be compared otherwise.
    with torch._inductor.config.patch(compile_threads=1, fallback_random=True):
        return numerics.assess(eager, compiled, reference, alone)


def _compiled(subject: Subject, backend: str) -> Call:
    compiled: Call = torch.compile(
        subject.module, backend=backend, dynamic=subject.request.target.dynamic
    )
    return compiled


def _results(subject: Subject, call: Call) -> bytes:
    return _of_all_calls(subject, lambda one_call: observed(one_call, call))


def _of_all_calls(subject: Subject, results: Callable[[Subject], dict[str, Any]]) -> bytes:
    """The results of each call by path; each starts from the state in which the model was given."""
    if subject.later is None:
        return to_bytes(results(subject))
    return to_bytes(
        {
            f"call {number}: {path}": value
            for number, inputs in enumerate((subject.inputs, *subject.later), start=1)
            for path, value in results(replace(subject, inputs=inputs)).items()
        }
    )
