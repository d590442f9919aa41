"""The XLA target: is the model captured as a single XLA graph, and does it run on XLA's CPU device?

Each step has its own process, forked before there is any device client: a fallback affects a
capture, a failed conversion leaves a flag set, and XLA aborts a process in unexpected situations.
Passing is necessary for Neuron, whose compiler starts with the same graph, but not sufficient. What
is known about that compiler is recorded besides the verdict, as a prediction.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from compilewatch.data import NEURON_OPERATORS
from compilewatch.files import read_toml
from compilewatch.records import (
    SCHEMA_VERSION,
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
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError, TargetOutcome
from compilewatch.worker.targets.dynamo.failures import Codes
from compilewatch.worker.targets.dynamo.graph_breaks import UNATTRIBUTED
from compilewatch.worker.targets.xla.isolation import (
    OUT_OF_MEMORY,
    Enter,
    StepDiedError,
    StepFailedError,
    StepResult,
    StepTimeoutError,
    die_alike,
    isolated,
)

if TYPE_CHECKING:
    from compilewatch.worker.targets.xla.capture import Execution, HloCapture


class RejectedOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reviewed line: an operator that neuronx-cc is documented to reject, and the source.

    It is named by exactly one of `torch` (`aten::sort`), `hlo` (an opcode), `element_type` (`C64`).
    """

    reason: str
    source: str
    sdk: str
    date: datetime.date
    torch: str | None = None
    hlo: str | None = None
    element_type: str | None = None

    def __post_init__(self) -> None:
        if sum(name is not None for name in (self.torch, self.hlo, self.element_type)) != 1:
            raise ValueError("an operator needs one of `torch`, `hlo` and `element_type`")
        if not self.source.startswith("https://") or not self.reason.strip():
            raise ValueError("an operator needs a `reason` and a `source` (https://…)")

    @property
    def name(self) -> tuple[str | None, str | None, str | None]:
        """What the line is about."""
        return self.torch, self.hlo, self.element_type


class NeuronOperators(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file."""

    schema_version: int = SCHEMA_VERSION
    operator: tuple[RejectedOperator, ...] = ()

    def concerns(
        self,
        *,
        torch: Mapping[str, int],
        hlo: Mapping[str, int],
        element_types: Mapping[str, int],
    ) -> Iterator[NeuronConcern]:
        """Return the listed operators that a graph contains, given its counts by name."""
        for row in self.operator:
            named = ((row.torch, torch), (row.hlo, hlo), (row.element_type, element_types))
            for name, counts in named:
                if name is not None and counts.get(name):
                    yield NeuronConcern(
                        operator=name,
                        count=counts[name],
                        reason=row.reason,
                        source=row.source,
                        sdk=row.sdk,
                    )


def load_neuron_operators(path: Path | None) -> NeuronOperators:
    """Read a project's own list, if there is one, and the shipped lines on other operators.

    Raises ConfigError that names the file and the key for anything that violates the schema.
    """
    own = read_toml(path, NeuronOperators).operator if path is not None else ()
    named = {row.name for row in own}
    shipped = read_toml(NEURON_OPERATORS, NeuronOperators).operator
    return NeuronOperators(operator=(*own, *(row for row in shipped if row.name not in named)))


STABLEHLO_ARTIFACT = "graph.stablehlo.mlir"
DEVICE_VARIABLE = "PJRT_DEVICE"
DEVICE = "CPU"

CODES: Codes = (
    ("device_mismatch", r"not an XLA tensor|Expected XLA tensor|Expected all tensors to be on the"),
    # On the CPU, where a fallback runs, for a type that eager mode does not use there.
    ("xla_fallback_failed", r"\"\w+_cpu\" not implemented for"),
    ("xla_fallback", r"ops not capturable by Pytorch/XLA"),
    ("xla_invalid_argument", r"INVALID_ARGUMENT"),
    ("xla_unimplemented", r"UNIMPLEMENTED"),
    ("out_of_memory", r"RESOURCE_EXHAUSTED"),
    ("xla_internal", r"\bINTERNAL: |Check failed|torch_xla/csrc|XLA_CHECK"),
)
"""Causes that are specific to XLA (absl's status codes); others have Dynamo's codes."""

SIDE_SHARE = 0.25
"""Share of the phase's deadline for each step that does not decide the verdict."""
LAST_SHARE = 0.9
"""Share of the phase's deadline for Dynamo, so that it does not exceed the deadline."""


class XlaTarget(CompileTarget):
    """Lazy tensors of torch_xla on XLA's CPU device.

    Modes eval (under `no_grad`) and train (loss and backward; gradients are compared as well).
    """

    name = "xla"
    tiers = (Tier.REAL,)

    def missing(self) -> str | None:
        """Check for torch_xla, and that its device is the CPU."""
        if importlib.util.find_spec("torch_xla") is None:
            return "no torch_xla: compilewatch env create xla"
        device = os.environ.get(DEVICE_VARIABLE, DEVICE)
        if device != DEVICE:
            return f"{DEVICE_VARIABLE} is {device}: this target needs {DEVICE_VARIABLE}=CPU"
        return None

    def run(self, subject: Subject) -> TargetOutcome:
        """Run StableHLO, capture, attribution of graph breaks, execution, Dynamo, in this order.

        Raises FakeUnsupportedError for a subject of fake tensors; out-of-memory errors propagate.
        If XLA aborts the process of the capture or of the execution, this process ends in the same
        way.
        """
        if subject.fake_mode is not None:
            raise FakeUnsupportedError("XLA runs the compiled code: it needs real tensors")
        subject.enter(Phase.COMPILE)
        os.environ.setdefault(DEVICE_VARIABLE, DEVICE)

        return _Evaluation(subject).outcome()


def exported_hlo(subject: Subject) -> HloCapture | None:
    """Return the module of the exported program, stored as an artifact; None if there is none.

    For targets that use it if the call itself breaks. Requires what `XlaTarget.missing` checks;
    errors are neither raised nor do they end this process.
    """
    return _Evaluation(subject).exported()


class _Evaluation:
    """The evaluation of one subject, step by step."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._phase = Phase.COMPILE

    def outcome(self) -> TargetOutcome:
        detail = XlaDetail(stablehlo=self._stablehlo())
        outcome = self._verdict(detail)
        assert isinstance(outcome.details, XlaDetail)
        phase = self._phase
        detail = msgspec.structs.replace(outcome.details, openxla=self._dynamo())
        if outcome.status is Status.ERROR:
            self._enter(phase)  # the phase of the reported error
        artifacts = outcome.artifacts
        if detail.stablehlo is not None and detail.stablehlo.exported and self._keeps:
            artifacts = (*artifacts, STABLEHLO_ARTIFACT)
        remarks = filter(None, (outcome.detail, *_remarks(detail)))
        return replace(outcome, detail="; ".join(remarks), details=detail, artifacts=artifacts)

    def _verdict(self, detail: XlaDetail) -> TargetOutcome:
        """Capture and execute; the first that fails decides the verdict."""
        from compilewatch.worker.targets.xla.capture import (
            Execution,
            HloCapture,
            capture_hlo,
            execute,
        )

        try:
            captured = self.step(capture_hlo, HloCapture)
        except StepFailedError as error:
            return TargetOutcome(
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
        outcome = TargetOutcome(
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
        from compilewatch.worker.targets.xla.capture import Watched, settle, watch

        if captured.ready:
            return ()
        try:
            watched = self.step(watch, Watched, self.side_limit).breaks
        except _SIDE_FAILURES:
            watched = ()  # the counts still show them, without a place
        return settle(watched, captured.fallbacks, captured.executions)

    def _concerns(self, captured: HloCapture) -> tuple[NeuronConcern, ...]:
        path = self._subject.request.neuron_operators
        known = load_neuron_operators(Path(path) if path else None)
        concerns = known.concerns(
            torch=captured.lowered, hlo=captured.operators, element_types=captured.element_types
        )
        return tuple(concerns)

    def _stablehlo(self) -> ExportVariant:
        from compilewatch.worker.targets.xla.capture import to_stablehlo

        started = time.perf_counter()
        try:
            return self.step(to_stablehlo, ExportVariant, self.side_limit)
        except _SIDE_FAILURES as error:
            code, reason = _failure(error)
            spent = time.perf_counter() - started
            return ExportVariant(exported=False, duration_seconds=spent, code=code, reason=reason)

    def exported(self) -> HloCapture | None:
        """Return the capture of the exported program, if there is one without breaks.

        It only contains the forward pass, so in train mode it decides nothing.
        """
        from compilewatch.worker.targets.xla.capture import (
            HloCapture,
            capture_decomposed,
            capture_exported,
        )

        if self._subject.request.target.mode is Mode.TRAIN:
            return None
        for step in (capture_exported, capture_decomposed):
            try:
                captured = self.step(step, HloCapture, self.side_limit)
            except _SIDE_FAILURES:
                return None
            if captured.ready:
                return captured
        return None

    def _dynamo(self) -> OpenXla:
        from compilewatch.worker.targets.xla.capture import capture_for_xla

        self._enter(Phase.PROFILE)  # besides the verdict, with its own deadline
        limit = LAST_SHARE * self._subject.request.deadlines.profile_seconds
        try:
            return self.step(capture_for_xla, OpenXla, limit)
        except _SIDE_FAILURES as error:
            code, reason = _failure(error)
            return OpenXla(accepted=False, code=code, reason=reason)

    def step(
        self,
        step: Callable[[Subject, Enter], StepResult],
        kind: type[StepResult],
        limit_seconds: float | None = None,
    ) -> StepResult:
        """Run a step in its own process; without a limit, end in the same way as that process."""
        subject = self._subject
        try:
            return isolated(
                lambda enter: step(subject, enter), kind, self._enter, CODES, limit_seconds
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
    """Return code and reason of a step that does not decide the verdict."""
    if isinstance(error, StepFailedError):
        return error.record.code, error.record.message
    codes = {StepDiedError: "crashed", StepTimeoutError: "timeout", MemoryError: OUT_OF_MEMORY}
    return codes[type(error)], str(error)


def _broken(outcome: TargetOutcome, breaks: tuple[GraphBreak, ...]) -> TargetOutcome:
    return replace(
        outcome,
        status=Status.GRAPH_BREAK if breaks else outcome.status,
        graph_breaks=sum(graph_break.occurrences for graph_break in breaks),
        distinct_breaks=len(breaks),
        unattributed=sum(
            graph_break.occurrences for graph_break in breaks if graph_break.code == UNATTRIBUTED
        ),
        breaks=breaks,
    )


def _judged(outcome: TargetOutcome, detail: XlaDetail, ran: Execution) -> TargetOutcome:
    from compilewatch.worker.targets.xla.capture import unattributed

    if ran.graphs > 1 and not outcome.breaks:
        outcome = _broken(outcome, (unattributed(None, ran.graphs - 1),))
    wrong = ran.numerics.deterministic and not ran.numerics.matches
    phrases = []
    if not ran.numerics.deterministic:
        phrases.append("not deterministic: two eager runs differ, so numerics are not compared")
    elif wrong:
        phrases.append(f"differs from eager in {ran.numerics.difference}")
    phrases.append("one graph" if ran.graphs == 1 else f"{ran.graphs} graphs")
    if outcome.breaks:
        phrases.append(f"breaks {outcome.graph_breaks} ({outcome.distinct_breaks} distinct)")
    if ran.recompiles_same_inputs:
        phrases.append(f"the same inputs recompiled {ran.recompiles_same_inputs} graphs")
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
    """Yield phrases for people besides the verdict."""
    if detail.fallbacks and detail.hlo is None:
        yield "its HLO module is only valid for these inputs and is not kept"
    elif detail.hlo == "export":
        yield "its HLO module is that of torch.export"
    if detail.expected_to_fail_on_neuron:
        first, *others = detail.expected_to_fail_on_neuron
        more = f" and {len(others)} more" if others else ""
        yield f"expected to fail on Neuron: {first.operator}{more} (SDK {first.sdk})"
    if detail.stablehlo is not None and not detail.stablehlo.exported:
        yield f"StableHLO fails: {detail.stablehlo.code}"
    if detail.openxla is not None and not detail.openxla.accepted:
        openxla = detail.openxla
        many = (
            f"{openxla.graph_breaks} breaks" if openxla.graph_breaks else f"fails: {openxla.code}"
        )
        yield f"Dynamo with openxla {many}"
