"""The XLA target: does the model become one graph of XLA's, compile and run on its CPU device.

Each question has a process of its own, forked before there is any device client: a fallback spoils
a capture, a failed conversion leaves a flag set, and XLA ends a process where it meets what it does
not expect. A clean answer is necessary for Neuron, whose compiler begins with the same graph, and
not sufficient: what is known of that compiler is said beside the verdict, as an expectation.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from compilewatch.records import (
    ExportVariant,
    GraphBreak,
    Mode,
    NeuronConcern,
    OpenXla,
    Phase,
    Status,
    Tier,
    XlaDetail,
)
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError, Outcome
from compilewatch.worker.targets.compiler_errors import Codes
from compilewatch.worker.targets.dynamo.reasons import UNATTRIBUTED
from compilewatch.worker.targets.xla.isolation import (
    OUT_OF_MEMORY,
    Answer,
    Enter,
    StepDiedError,
    StepFailedError,
    StepTimeoutError,
    die_alike,
    isolated,
)
from compilewatch.worker.targets.xla.operators import load_neuron_operators

if TYPE_CHECKING:
    from compilewatch.worker.targets.xla.capture import HloCapture
    from compilewatch.worker.targets.xla.execution import Execution

STABLEHLO_ARTIFACT = "graph.stablehlo.mlir"
DEVICE_VARIABLE = "PJRT_DEVICE"
DEVICE = "CPU"

CODES: Codes = (
    ("device_mismatch", r"not an XLA tensor|Expected XLA tensor|Expected all tensors to be on the"),
    # On the CPU, where a fallback runs, and there for a type that eager code does not use there.
    ("xla_fallback_failed", r"\"\w+_cpu\" not implemented for"),
    ("xla_fallback", r"ops not capturable by Pytorch/XLA"),
    ("xla_invalid_argument", r"INVALID_ARGUMENT"),
    ("xla_unimplemented", r"UNIMPLEMENTED"),
    ("out_of_memory", r"RESOURCE_EXHAUSTED"),
    ("xla_internal", r"\bINTERNAL: |Check failed|torch_xla/csrc|XLA_CHECK"),
)
"""Causes that only XLA knows (absl's status codes); others have the codes of Dynamo's breaks."""

SIDE_SHARE = 0.25
"""Of the phase's deadline: what each step may take that does not decide the verdict."""
LAST_SHARE = 0.9
"""Of the phase's deadline, for Dynamo, so that the launcher need not end what has its verdict."""


class XlaTarget(CompileTarget):
    """Lazy tensors of torch_xla on XLA's CPU device.

    Modes eval (under `no_grad`) and train (loss and backward; gradients are compared as well).
    """

    name = "xla"
    tiers = (Tier.REAL,)

    def missing(self) -> str | None:
        """torch_xla, and a device that is the CPU."""
        if importlib.util.find_spec("torch_xla") is None:
            return "no torch_xla: compilewatch env create xla"
        device = os.environ.get(DEVICE_VARIABLE, DEVICE)
        if device != DEVICE:
            return f"{DEVICE_VARIABLE} is {device}: this target needs {DEVICE_VARIABLE}=CPU"
        return None

    def run(self, subject: Subject) -> Outcome:
        """StableHLO, capture, attribution of what broke it, execution, Dynamo: in this order.

        Raises FakeUnsupportedError for a subject of fake tensors; out-of-memory errors propagate.
        Where XLA ends the process of the capture or of the execution, this one ends alike.
        """
        if subject.fake_mode is not None:
            raise FakeUnsupportedError("XLA runs what it compiles: it needs real tensors")
        subject.enter(Phase.COMPILE)
        os.environ.setdefault(DEVICE_VARIABLE, DEVICE)
        import torch_xla  # noqa: F401  (once, here; in each fork it would cost seconds)

        return _Inquiry(subject).outcome()


def exported_hlo(subject: Subject) -> HloCapture | None:
    """The module of the exported program, left among the artifacts; None where there is none.

    For targets that begin with it, where the call itself breaks. Needs what `XlaTarget.missing`
    names; nothing that goes wrong in it is raised or ends this process.
    """
    return _Inquiry(subject).exported()


class _Inquiry:
    """One subject on its way through the steps."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._phase = Phase.COMPILE

    def outcome(self) -> Outcome:
        detail = XlaDetail(stablehlo=self._stablehlo())
        outcome = self._verdict(detail)
        assert isinstance(outcome.details, XlaDetail)
        phase = self._phase
        detail = msgspec.structs.replace(outcome.details, openxla=self._dynamo())
        if outcome.status is Status.ERROR:
            self._enter(phase)  # where the error that is told belongs
        artifacts = outcome.artifacts
        if detail.stablehlo is not None and detail.stablehlo.exported and self._keeps:
            artifacts = (*artifacts, STABLEHLO_ARTIFACT)
        remarks = filter(None, (outcome.detail, *_remarks(detail)))
        return replace(outcome, detail="; ".join(remarks), details=detail, artifacts=artifacts)

    def _verdict(self, detail: XlaDetail) -> Outcome:
        """Capture and execution; the first that fails is the verdict."""
        from compilewatch.worker.targets.xla.capture import HloCapture, capture_hlo
        from compilewatch.worker.targets.xla.execution import Execution, execute

        try:
            captured = self.step(capture_hlo, HloCapture)
        except StepFailedError as error:
            return Outcome(
                status=Status.ERROR, detail=str(error), error=error.record, details=detail
            )
        breaks = self._breaks(captured)
        fallbacks, hlo = captured.fallbacks, captured
        if not captured.ready:
            hlo = self.exported() or captured
        detail = msgspec.structs.replace(
            detail,
            operators=hlo.operators,
            fallbacks=fallbacks,
            hlo=("lazy" if hlo is captured else "export") if hlo.ready else None,
            expected_to_fail_on_neuron=self._concerns(hlo),
        )
        outcome = Outcome(
            status=Status.PASS,
            ops=sum(hlo.operators.values()) if hlo.ready else None,
            artifacts=hlo.artifacts,
            details=detail,
        )
        outcome = _broken(outcome, breaks)
        try:
            ran = self.step(execute, Execution)
        except StepFailedError as error:
            line = f"captured, then {error}"
            return replace(outcome, status=Status.ERROR, detail=line, error=error.record)
        return _judged(outcome, detail, ran)

    def _breaks(self, captured: HloCapture) -> tuple[GraphBreak, ...]:
        from compilewatch.worker.targets.xla.fallbacks import Watched, settle, watch

        if captured.ready:
            return ()
        try:
            watched = self.step(watch, Watched, self.side_limit).breaks
        except _SIDE_FAILURES:
            watched = ()  # they are counted all the same, without a place
        return settle(watched, captured.fallbacks, captured.executions)

    def _concerns(self, captured: HloCapture) -> tuple[NeuronConcern, ...]:
        path = self._subject.request.neuron_operators
        known = load_neuron_operators(Path(path) if path else None)
        found = known.concerns(
            torch=captured.lowered, hlo=captured.operators, element_types=captured.element_types
        )
        return tuple(found)

    def _stablehlo(self) -> ExportVariant:
        from compilewatch.worker.targets.xla.stablehlo import to_stablehlo

        started = time.perf_counter()
        try:
            return self.step(to_stablehlo, ExportVariant, self.side_limit)
        except _SIDE_FAILURES as error:
            code, reason = _failure(error)
            spent = time.perf_counter() - started
            return ExportVariant(exported=False, duration_seconds=spent, code=code, reason=reason)

    def exported(self) -> HloCapture | None:
        """The capture of the exported program, where there is one and it is whole.

        It has the way there only, so in train mode it is no answer.
        """
        from compilewatch.worker.targets.xla.capture import HloCapture
        from compilewatch.worker.targets.xla.stablehlo import capture_decomposed, capture_exported

        if self._subject.request.target.mode is Mode.TRAIN:
            return None
        for step in (capture_exported, capture_decomposed):
            try:
                found = self.step(step, HloCapture, self.side_limit)
            except _SIDE_FAILURES:
                return None
            if found.ready:
                return found
        return None

    def _dynamo(self) -> OpenXla:
        from compilewatch.worker.targets.xla.dynamo import capture_for_xla

        self._enter(Phase.PROFILE)  # beside the verdict, with a deadline of its own
        limit = LAST_SHARE * self._subject.request.deadlines.profile_seconds
        try:
            return self.step(capture_for_xla, OpenXla, limit)
        except _SIDE_FAILURES as error:
            code, reason = _failure(error)
            return OpenXla(accepted=False, code=code, reason=reason)

    def step(
        self,
        step: Callable[[Subject, Enter], Answer],
        answer: type[Answer],
        limit_seconds: float | None = None,
    ) -> Answer:
        """Run one in a process of its own; without a limit, die as it died."""
        subject = self._subject
        try:
            return isolated(
                lambda enter: step(subject, enter), answer, self._enter, CODES, limit_seconds
            )
        except StepDiedError as error:
            if limit_seconds is None:
                die_alike(error)
            raise

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._subject.enter(phase)

    @property
    def side_limit(self) -> float:
        return SIDE_SHARE * self._subject.request.deadlines.compile_seconds

    @property
    def _keeps(self) -> bool:
        return self._subject.request.keep_artifacts


_SIDE_FAILURES = (StepFailedError, StepDiedError, StepTimeoutError, MemoryError)


def _failure(error: BaseException) -> tuple[str, str]:
    """Code and reason of a step that does not decide the verdict."""
    if isinstance(error, StepFailedError):
        return error.record.code, error.record.message
    codes = {StepDiedError: "crashed", StepTimeoutError: "timeout", MemoryError: OUT_OF_MEMORY}
    return codes[type(error)], str(error)


def _broken(outcome: Outcome, breaks: tuple[GraphBreak, ...]) -> Outcome:
    return replace(
        outcome,
        status=Status.GRAPH_BREAK if breaks else outcome.status,
        graph_breaks=sum(each.occurrences for each in breaks),
        distinct_breaks=len(breaks),
        unattributed=sum(each.occurrences for each in breaks if each.code == UNATTRIBUTED),
        breaks=breaks,
    )


def _judged(outcome: Outcome, detail: XlaDetail, ran: Execution) -> Outcome:
    from compilewatch.worker.targets.xla.fallbacks import unattributed

    if ran.graphs > 1 and not outcome.breaks:
        outcome = _broken(outcome, (unattributed(None, ran.graphs - 1),))
    wrong = ran.numerics.deterministic and not ran.numerics.matches
    phrases = []
    if not ran.numerics.deterministic:
        phrases.append("not deterministic: two eager runs differ, so numerics are not judged")
    elif wrong:
        phrases.append(f"differs from eager in {ran.numerics.mismatches[0]}")
    phrases.append("one graph" if ran.graphs == 1 else f"{ran.graphs} graphs")
    if outcome.breaks:
        phrases.append(f"breaks {outcome.graph_breaks} ({outcome.distinct_breaks} distinct)")
    if ran.recompiles_same_inputs:
        phrases.append(f"the same inputs compiled {ran.recompiles_same_inputs} graphs anew")
    if ran.draws:
        phrases.append("random numbers drawn on the CPU for the comparison")
    return replace(
        outcome,
        status=Status.MISMATCH if wrong else outcome.status,
        detail="; ".join(phrases),
        graphs=ran.graphs,
        numerics=ran.numerics,
        details=msgspec.structs.replace(
            detail,
            compile_seconds=ran.compile_seconds,
            recompiles_same_inputs=ran.recompiles_same_inputs,
            recompiles=ran.recompiles,
        ),
    )


def _remarks(detail: XlaDetail) -> Iterator[str]:
    """What people should read beside the verdict, a phrase each."""
    if detail.fallbacks and detail.hlo is None:
        yield "its HLO holds values of these inputs and is not kept"
    elif detail.hlo == "export":
        yield "its HLO is that of torch.export"
    if detail.expected_to_fail_on_neuron:
        first, *others = detail.expected_to_fail_on_neuron
        more = f" and {len(others)} more" if others else ""
        yield f"expected to fail on Neuron: {first.operator}{more} (SDK {first.sdk})"
    if detail.stablehlo is not None and not detail.stablehlo.exported:
        yield f"StableHLO fails: {detail.stablehlo.code}"
    if detail.openxla is not None and not detail.openxla.accepted:
        found = detail.openxla
        many = f"{found.graph_breaks} breaks" if found.graph_breaks else f"fails: {found.code}"
        yield f"Dynamo with openxla {many}"
