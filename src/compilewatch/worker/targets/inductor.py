"""The Inductor target: does the model compile and run on this CPU, correctly, and how fast?

Everything is measured on one thread. Generated code is written to a folder for this request only,
so that the cold compile is cold. What belongs to the tool chain and not to a model (torch's
precompiled header, the check for vector instructions, Inductor's imports) is made before, and
shared.
"""

from __future__ import annotations

import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from compilewatch.contract.failures import one_line
from compilewatch.contract.processes import PeakMemory
from compilewatch.records import ErrorRecord, Numerics, Performance, Phase, Status, Tier
from compilewatch.worker.model.state import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError, Outcome, numerics
from compilewatch.worker.targets.compiler_errors import Codes, compiler_failure
from compilewatch.worker.targets.execution import (
    Call,
    enlarged,
    forward,
    observed,
    observed_in_float64,
)

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

    def run(self, subject: Subject) -> Outcome:
        """Compile cold, compare with eager, measure, compile warm.

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
                prepare_tool_chain()
            except Exception as error:  # noqa: BLE001  (any error of a broken tool chain)
                compiler_failure(error, CODES)
                detail = f"the C++ compiler cannot build for torch: {one_line(error)}"
                return Outcome(status=Status.UNSUPPORTED, detail=detail)
            with fresh_cache():
                return _Measurement(subject).outcome()


def prepare_tool_chain() -> None:
    """Compile something small in torch's own cache, where later requests find it."""

    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    torch._dynamo.reset()
    torch.compile(double)(torch.ones(64))
    torch._dynamo.reset()


@dataclass
class _Measurement:
    """The evaluation of one subject, phase by phase."""

    subject: Subject
    compiled: Call = lambda: None

    def outcome(self) -> Outcome:
        subject = self.subject
        backend = subject.request.target.backend or "inductor"
        dynamic = subject.request.target.dynamic or None
        self.compiled = torch.compile(subject.module, backend=backend, dynamic=dynamic)
        counters.clear()
        try:
            with PeakMemory() as peak:
                cold = self._first_call()
        except Exception as error:  # noqa: BLE001  (the edge to the compiler)
            return _failed(error, "")
        graphs, ops = counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]
        performance = Performance(cold_compile_seconds=cold, compiler_peak_memory_bytes=peak.bytes)
        outcome = Outcome(status=Status.PASS, graphs=graphs, ops=ops, details=performance)
        subject.enter(Phase.COMPARE)
        try:
            found = self._numerics()
            performance = msgspec.structs.replace(performance, recompiles=self._recompiles())
        except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
            failed = _failed(error, "compiled once, then ")
            return replace(outcome, status=failed.status, detail=failed.detail, error=failed.error)
        subject.enter(Phase.PROFILE)
        performance, problem = self._profiled(performance)
        return replace(
            outcome,
            status=Status.MISMATCH if found.deterministic and not found.matches else Status.PASS,
            detail="; ".join(filter(None, (*_remarks(graphs, found, performance), problem))),
            numerics=found,
            details=performance,
        )

    def _first_call(self) -> float:
        started = time.perf_counter()
        with preserved(self.subject.module):
            forward(self.subject, self.compiled, self.subject.inputs)
        return time.perf_counter() - started

    def _numerics(self) -> Numerics:
        subject = self.subject

        return numerics.assess(
            lambda: observed(subject, subject.module),
            lambda: observed(subject, self.compiled),
            lambda: observed_in_float64(subject),
        )

    def _recompiles(self) -> int | None:
        """Count recompiled graphs for a batch larger by one; None if eager mode rejects it."""
        larger = enlarged(self.subject.inputs)
        if larger is None:
            return None
        with preserved(self.subject.module):
            try:
                forward(self.subject, self.subject.module, larger)
            except Exception:  # noqa: BLE001  (model code, with inputs that may not fit)
                return None
        before = counters["stats"]["unique_graphs"]
        with preserved(self.subject.module):
            forward(self.subject, self.compiled, larger)
        return int(counters["stats"]["unique_graphs"] - before)

    def _profiled(self, performance: Performance) -> tuple[Performance, str]:
        """Measure latencies and then the warm compile, which discards the code; return the problem.

        The verdict is already known: a model that cannot be called often is only not measured.
        """
        from torch._inductor.utils import clear_caches

        subject = self.subject
        try:
            eager, compiled, samples = latencies(
                lambda: forward(subject, subject.module, subject.inputs),
                lambda: forward(subject, self.compiled, subject.inputs),
            )
            performance = msgspec.structs.replace(
                performance,
                eager_latency_seconds=eager,
                compiled_latency_seconds=compiled,
                latency_samples=samples,
                speedup=eager / compiled,
            )
            torch._dynamo.reset()
            clear_caches()
            warm = self._first_call()
        except Exception as error:  # noqa: BLE001  (model code, called more often than it expects)
            compiler_failure(error, CODES)
            return performance, f"measuring stopped at {one_line(error)}"
        return msgspec.structs.replace(performance, warm_compile_seconds=warm), ""


def latencies(eager: Call, compiled: Call) -> tuple[float, float, int]:
    """Return median seconds of each and the number of samples, taken alternately.

    Alternating distributes the load of a busy machine over both.
    """
    for call in (eager, compiled) * WARM_UP_RUNS:
        call()
    taken: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + LATENCY_BUDGET_SECONDS
    while len(taken[0]) < MOST_SAMPLES:
        if len(taken[0]) >= LEAST_SAMPLES and time.perf_counter() > end:
            break
        for call, into in zip((eager, compiled), taken, strict=True):
            started = time.perf_counter()
            call()
            into.append(time.perf_counter() - started)
    return statistics.median(taken[0]), statistics.median(taken[1]), len(taken[0])


def _failed(error: Exception, when: str) -> Outcome:
    record: ErrorRecord = compiler_failure(error, CODES)
    return Outcome(status=Status.ERROR, detail=f"{when}{one_line(error)}", error=record)


def _remarks(graphs: int, found: Numerics, performance: Performance) -> Iterator[str]:
    """Yield phrases for people besides the verdict."""
    if not found.deterministic:
        yield "not deterministic: two eager runs differ, so numerics are not compared"
    elif not found.matches:
        yield f"differs from eager in {found.mismatches[0]}"
    yield "one graph" if graphs == 1 else f"{graphs} graphs"
    if performance.speedup is not None:
        yield f"{performance.speedup:.2f} times as fast as eager"
