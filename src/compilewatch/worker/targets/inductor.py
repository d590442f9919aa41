"""The Inductor target: does the model compile and run on this CPU, correctly, and how fast?

Everything is measured on one thread. Generated code is written to a folder for this request only,
so that the cold compile is cold. What belongs to the tool chain and not to a model (torch's
precompiled header, the check for vector instructions, Inductor's imports) is made before, and
shared.
"""

import statistics
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from compilewatch.contract.failures import one_line
from compilewatch.contract.processes import PeakMemory
from compilewatch.records import Performance, Phase, Status, TargetOutcome, Tier
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError, execution, numerics
from compilewatch.worker.targets.dynamo.capture import call_once
from compilewatch.worker.targets.dynamo.failures import Codes, compiler_failure, failed

WARM_UP_RUNS = 3
LEAST_SAMPLES = 5
MOST_SAMPLES = 500
LATENCY_BUDGET_SECONDS = 2.0
"""For eager and compiled runs together, beyond `LEAST_SAMPLES` of each."""

CODES: Codes = (
    ("cpp_compile_error", r"CppCompileError|C\+\+ compile error"),
    ("lowering_error", r"LoweringException|MissingOperator"),
)
"""Causes that are specific to Inductor; others have the codes of Dynamo's graph breaks."""

_Compiled = tuple[TargetOutcome, bytes]
"""The outcome so far of a model that compiles, and the encoded results of its first call."""


class InductorTarget(CompileTarget):
    """`torch.compile`, by default with Inductor; `backend` may name another one that runs code.

    Modes eval (under `no_grad`) and train (loss and backward; gradients are compared as well).
    """

    name = "inductor"
    tiers = (Tier.REAL,)

    def missing(self) -> str | None:
        """Check for a C++ compiler and Python's headers; whether they work is seen in use."""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return "no C++ compiler: install g++ or name one in CXX"
        header = Path(sysconfig.get_path("include")) / "Python.h"
        if not header.is_file():
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            return f"no {header}: install the headers of Python {version}"
        return None

    def run(self, subject: Subject) -> TargetOutcome:
        """Compile cold, compare with eager, compile warm, measure.

        Raises FakeUnsupportedError for a subject of fake tensors; out-of-memory errors propagate.
        """
        if subject.fake_mode is not None:
            raise FakeUnsupportedError("Inductor runs the compiled code: it needs real tensors")
        from torch._inductor import config
        from torch._inductor.utils import fresh_cache

        subject.enter(Phase.COMPILE)
        # One thread, because a pool of compile workers would be forked from this process. Random
        # numbers as in eager mode, because dropout could not be compared otherwise.
        with config.patch(compile_threads=1, fallback_random=True):
            try:
                # Another backend may need no C++ compiler.
                if subject.request.target.backend in (None, "inductor"):
                    prepare_tool_chain()
            except Exception as error:  # noqa: BLE001  (any error of a broken tool chain)
                compiler_failure(error, CODES)
                detail = f"the C++ compiler cannot build for torch: {one_line(error)}"
                return TargetOutcome(status=Status.UNSUPPORTED, detail=detail)
            with fresh_cache():
                return _evaluated(subject)


def prepare_tool_chain() -> None:
    """Compile something small in torch's own cache, where later requests find it."""

    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    torch._dynamo.reset()
    torch.compile(double)(torch.ones(64))
    torch._dynamo.reset()


def _evaluated(subject: Subject) -> TargetOutcome:
    """Compile, compare and measure, with a fork for each call that must be a model's first."""
    outcome, results = numerics.seeded(lambda: subject.in_fork(_compile, _Compiled))
    if outcome.status is not Status.PASS:
        return outcome
    assert isinstance(outcome.details, Performance)
    subject.enter(Phase.COMPARE)
    try:
        comparison = execution.compared(subject, _compiled, results)
        call, seconds = _compile_again(subject)
        performance = msgspec.structs.replace(
            outcome.details, warm_compile_seconds=seconds, recompiles=_recompiles(subject, call)
        )
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        return failed(outcome, error, CODES, "compiled once, then ")
    subject.enter(Phase.PROFILE)
    measured, problem = latencies(subject, subject.module, call)
    if measured is not None:
        eager, compiled, samples = measured
        performance = msgspec.structs.replace(
            performance,
            eager_latency_seconds=eager,
            compiled_latency_seconds=compiled,
            latency_samples=samples,
            speedup=eager / compiled,
        )
    graphs = "one graph" if outcome.graphs == 1 else f"{outcome.graphs} graphs"
    speedup = performance.speedup
    speed = "" if speedup is None else f"{speedup:.2f} times as fast as eager"
    return msgspec.structs.replace(
        outcome,
        status=Status.MISMATCH if comparison.differs else Status.PASS,
        detail="; ".join(filter(None, (comparison.remark, graphs, speed, problem))),
        numerics=comparison,
        details=performance,
    )


def _compiled(subject: Subject) -> execution.Call:
    target = subject.request.target
    compiled: execution.Call = torch.compile(
        subject.module, backend=target.backend or "inductor", dynamic=target.dynamic
    )
    return compiled


def _compile(subject: Subject) -> _Compiled:
    """Compile cold and return what that took, and the results of the first call."""
    call = _compiled(subject)
    counters.clear()
    try:
        with PeakMemory() as peak:
            started = time.perf_counter()
            results = execution.observed(subject, call)
            seconds = time.perf_counter() - started
    except Exception as error:  # noqa: BLE001  (the edge to the compiler)
        return failed(TargetOutcome(status=Status.ERROR), error, CODES), b""
    outcome = TargetOutcome(
        status=Status.PASS,
        graphs=counters["stats"]["unique_graphs"],
        ops=counters["stats"]["calls_captured"],
        details=Performance(cold_compile_seconds=seconds, compiler_peak_memory_bytes=peak.bytes),
    )
    return outcome, numerics.to_bytes(results)


def _compile_again(subject: Subject) -> tuple[execution.Call, float]:
    """Compile with the caches of the first compile on disk; return the seconds of the call."""
    torch._dynamo.reset()
    call = _compiled(subject)
    # Copies, because code that is compiled for a view of a tensor is for no other.
    inputs = execution.mapped(subject.inputs, torch.clone)
    started = time.perf_counter()
    with preserved(subject.module):
        call_once(replace(subject, inputs=inputs), call)
    return call, time.perf_counter() - started


def _recompiles(subject: Subject, call: execution.Call) -> int | None:
    """Count recompiled graphs for a batch larger by one; None if eager mode rejects it."""
    larger = execution.enlarged(subject)
    if larger is None:
        return None
    before = counters["stats"]["unique_graphs"]
    with preserved(subject.module):
        call_once(larger, call)
    return int(counters["stats"]["unique_graphs"] - before)


def latencies(
    subject: Subject, eager: execution.Call, compiled: execution.Call
) -> tuple[tuple[float, float, int] | None, str]:
    """Return median seconds of calls of a subject and the number of samples, taken alternately.

    Alternating distributes the load of a busy machine over both. None with the problem that ended
    it: the verdict is already known, and a model that cannot be called often is only not measured.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    try:
        for call in (eager, compiled) * WARM_UP_RUNS:
            call_once(subject, call)
        end = time.perf_counter() + LATENCY_BUDGET_SECONDS
        while len(taken[0]) < MOST_SAMPLES:
            if len(taken[0]) >= LEAST_SAMPLES and time.perf_counter() > end:
                break
            for call, into in zip((eager, compiled), taken, strict=True):
                started = time.perf_counter()
                call_once(subject, call)
                into.append(time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001  (model code, called more often than it expects)
        compiler_failure(error, CODES)
        return None, f"measuring stopped at {one_line(error)}"
    return (statistics.median(taken[0]), statistics.median(taken[1]), len(taken[0])), ""
