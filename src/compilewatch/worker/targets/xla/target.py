"""The XLA target: is the model captured as a single XLA graph, and does it run on XLA's CPU device?

Each step has a fork of its own, before there is any device client: a fallback affects a capture, a
failed conversion leaves a flag set, and XLA aborts a process in unexpected situations. Passing is
necessary for Neuron, whose compiler starts with the same graph, but not sufficient. What is known
about that compiler is recorded besides the verdict, as a prediction.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from compilewatch import records
from compilewatch.contract.failures import RecordedError, one_line
from compilewatch.records import GraphBreak, Phase, Status, TargetOutcome, XlaDetail
from compilewatch.worker.forked import ForkEndedError
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError
from compilewatch.worker.targets.dynamo.failures import Codes, compiler_failure

if TYPE_CHECKING:
    from compilewatch.worker.targets.xla.capture import Captured, Execution

_Value = TypeVar("_Value")


class NeuronOperators(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `data/neuron_operators.toml`."""

    schema_version: int = records.SCHEMA_VERSION
    rejected: tuple[records.NeuronConcern, ...] = ()


DEVICE_VARIABLE = "PJRT_DEVICE"
DEVICE = "CPU"
OUT_OF_MEMORY = "out_of_memory"

CODES: Codes = (
    ("device_mismatch", r"not an XLA tensor|Expected XLA tensor|Expected all tensors to be on the"),
    # On the CPU, where a fallback runs, for a type that eager mode does not use there.
    ("xla_fallback_failed", r"\"\w+_cpu\" not implemented for"),
    ("xla_fallback", r"ops not capturable by Pytorch/XLA"),
    ("xla_invalid_argument", r"INVALID_ARGUMENT"),
    ("xla_unimplemented", r"UNIMPLEMENTED"),
    (OUT_OF_MEMORY, r"RESOURCE_EXHAUSTED"),
    ("xla_internal", r"\bINTERNAL: |Check failed|torch_xla/csrc|XLA_CHECK"),
)
"""Causes that are specific to XLA (absl's status codes); others have Dynamo's codes."""

SIDE_SHARE = 0.25
"""Share of the phase's deadline for each step that does not decide the verdict."""

SIDE_FAILURES = (ForkEndedError, RecordedError)
"""What a step that decides nothing raises."""


def _step(
    subject: Subject, function: Callable[[Subject], _Value], kind: Any, *, decides: bool = True
) -> _Value:
    """Call `function` in a fork, and return its value of type `kind`; see `Subject.in_fork`.

    Raises RecordedError with the code of the compiler's failure, `out_of_memory` if memory ran out.
    If it does not decide the verdict, it has a limit: a fork that dies or is late raises
    ForkEndedError.
    """
    limit = None if decides else SIDE_SHARE * subject.request.deadlines.compile_seconds

    def guarded(inside: Subject) -> _Value:
        try:
            return function(inside)
        except BaseException as error:
            record = compiler_failure(error, CODES)
            if record.code == OUT_OF_MEMORY:
                raise MemoryError(one_line(error)) from error
            raise RecordedError(record, line=one_line(error), names=()) from error

    return subject.in_fork(guarded, kind, limit_seconds=limit, beside_threads=True)


class XlaTarget(CompileTarget):
    """Lazy tensors of torch_xla on XLA's CPU device.

    Modes eval (under `no_grad`) and train (loss and backward; gradients are compared as well).
    """

    name = "xla"
    tiers = (records.Tier.REAL,)

    def missing(self) -> str | None:
        """Check for torch_xla, and that its device is the CPU."""
        if importlib.util.find_spec("torch_xla") is None:
            return "no torch_xla: compilewatch env create xla"
        device = os.environ.get(DEVICE_VARIABLE, DEVICE)
        if device != DEVICE:
            return f"{DEVICE_VARIABLE} is {device}: this target needs {DEVICE_VARIABLE}=CPU"
        return None

    def run(self, subject: Subject) -> TargetOutcome:
        """Run capture, attribution of graph breaks, and execution, in this order.

        Raises FakeUnsupportedError for a subject of fake tensors; out-of-memory errors propagate.
        If XLA aborts the process of the capture or of the execution, this process ends in the same
        way.
        """
        if subject.fake_mode is not None:
            raise FakeUnsupportedError("XLA runs the compiled code: it needs real tensors")
        subject.enter(Phase.COMPILE)
        os.environ.setdefault(DEVICE_VARIABLE, DEVICE)
        outcome = _verdict(subject)
        assert isinstance(outcome.details, XlaDetail)
        phrases = (outcome.detail, *_remarks(outcome.details))
        return msgspec.structs.replace(outcome, detail="; ".join(filter(None, phrases)))


def _exported_hlo(subject: Subject) -> Captured | None:
    """Return the module of the exported program, stored as an artifact; None if there is none.

    For where the call itself breaks. It only contains the forward pass, so in train mode there is
    none. Errors are neither raised nor do they end this process.
    """
    from compilewatch.worker.targets.xla import capture

    if subject.request.target.mode is records.Mode.TRAIN:
        return None
    for decomposed in (False, True):
        function = partial(capture.capture_exported, decomposed=decomposed)
        try:
            captured = _step(subject, function, capture.Captured, decides=False)
        except SIDE_FAILURES:
            return None
        if captured[0].hlo is not None:
            return captured
    return None


def _verdict(subject: Subject) -> TargetOutcome:
    """Capture and execute; the first that fails decides the verdict."""
    from compilewatch.worker.targets.xla import capture

    try:
        hlo, executions, artifacts = _step(subject, capture.capture_hlo, capture.Captured)
    except RecordedError as error:
        return _failed(TargetOutcome(status=Status.ERROR, details=XlaDetail()), error, "")
    breaks: tuple[GraphBreak, ...] = ()
    fallbacks = hlo.fallbacks
    if hlo.hlo is None:
        watched = breaks
        with contextlib.suppress(*SIDE_FAILURES):  # the counts still show them, without a place
            watched = _step(subject, capture.watch, tuple[GraphBreak, ...], decides=False)
        breaks = capture.settle(watched, fallbacks, executions)
        hlo, _, artifacts = _exported_hlo(subject) or (hlo, 0, ())
    detail = msgspec.structs.replace(hlo, fallbacks=fallbacks)
    outcome = _broken(
        TargetOutcome(
            status=Status.PASS,
            ops=sum(hlo.operators.values()) if hlo.hlo is not None else None,
            artifacts=artifacts,
            details=detail,
        ),
        breaks,
    )
    try:
        ran: Execution = _step(subject, capture.execute, capture.Execution)
    except RecordedError as error:
        return _failed(outcome, error, "captured, then ")
    graphs, draws, comparison, compilation = ran
    if graphs > 1 and not breaks:
        outcome = _broken(outcome, (capture.unattributed(None, graphs - 1),))
    distinct = f" ({outcome.distinct_breaks} distinct)"
    again = compilation["recompiles_same_inputs"]
    phrases = (
        comparison.remark,
        "one graph" if graphs == 1 else f"{graphs} graphs",
        f"breaks {outcome.graph_breaks}{distinct}" if outcome.breaks else "",
        f"the same inputs recompiled {again} graphs" if again else "",
        "random numbers drawn on the CPU for the comparison" if draws else "",
    )
    return msgspec.structs.replace(
        outcome,
        status=Status.MISMATCH if comparison.differs else outcome.status,
        detail="; ".join(filter(None, phrases)),
        graphs=graphs,
        numerics=comparison,
        details=msgspec.structs.replace(detail, **compilation),
    )


def _failed(outcome: TargetOutcome, error: RecordedError, when: str) -> TargetOutcome:
    """Return the outcome of a step that failed. Raises if memory ran out: that is no verdict."""
    if error.record.code == OUT_OF_MEMORY:
        raise error
    return msgspec.structs.replace(
        outcome, status=Status.ERROR, detail=when + error.line, error=error.record
    )


def _broken(outcome: TargetOutcome, breaks: tuple[GraphBreak, ...]) -> TargetOutcome:
    counts = [(graph_break.code, graph_break.occurrences) for graph_break in breaks]
    return msgspec.structs.replace(
        outcome,
        status=Status.GRAPH_BREAK if breaks else outcome.status,
        graph_breaks=sum(count for _, count in counts),
        distinct_breaks=len(breaks),
        unattributed=sum(count for code, count in counts if code == records.UNATTRIBUTED),
        breaks=breaks,
    )


def _remarks(detail: XlaDetail) -> Iterator[str]:
    """Yield phrases for people besides the verdict."""
    if detail.fallbacks and detail.hlo is None:
        yield "its HLO module is only valid for these inputs and is not kept"
    elif detail.hlo == "export":
        yield "its HLO module is that of torch.export"
    if detail.expected_to_fail_on_neuron:
        first, *others = detail.expected_to_fail_on_neuron
        more = f" and {len(others)} more" if others else ""
        yield f"expected to fail on Neuron: {first.operator}{more} (SDK {first.sdk})"
