"""What became of a request: its result, and whom a failure is due to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from compilewatch.contract.failures import error_record, how_to_get, one_line, type_names
from compilewatch.contract.messages import ChildResult
from compilewatch.errors import CompilewatchError
from compilewatch.records import (
    Depth,
    ErrorRecord,
    FactoryBuild,
    Phase,
    Request,
    Result,
    Status,
    TensorSummary,
    Tier,
)
from compilewatch.worker.targets import TargetOutcome

FAKE_ERRORS = frozenset(
    {
        "FakeUnsupportedError",
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "UnsupportedFakeTensorException",
        "UnsupportedMutationAliasingException",
        "UnsupportedOperatorException",
    }
)
"""Names of exceptions that only fake tensors raise; the modules of PyTorch's vary by version."""


DEVICES_MIXED = "Expected all tensors to be on the same device"

BEFORE_THE_COMPILER = frozenset({Phase.CREATE, Phase.INPUTS, Phase.EAGER})

_CPU = re.compile(r"\bcpu\b", re.IGNORECASE)


@dataclass(kw_only=True)
class Progress:
    """What is known so far; the result of a request that fails contains it too."""

    phase: Phase = Phase.SETUP
    depth: Depth = Depth.FULL
    probing: bool = False
    parameters: int | None = None
    dtype: str | None = None
    inputs: tuple[TensorSummary, ...] = ()
    strategy: str = ""
    started_at: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )


class UnsupportedError(Exception):
    """This environment cannot run the target; the argument says what is missing."""


def failed(error: BaseException, request: Request, tier: Tier, progress: Progress) -> ChildResult:
    from compilewatch.worker.model.resolve import MissingPackageError, UnknownArchitectureError

    record = error_record(error)
    # An error of ours is a sentence; its class adds nothing.
    detail = str(error) if isinstance(error, CompilewatchError) else one_line(error)
    status = Status.ERROR
    if isinstance(error, UnsupportedError | MissingPackageError | UnknownArchitectureError):
        status = Status.UNSUPPORTED
        if isinstance(error, MissingPackageError):
            own = isinstance(request.model.build, FactoryBuild)
            needs = f"needs the package {error.package}, which is not in this environment"
            detail = how_to_get(error.package) if own else needs
    elif record.code == "out_of_memory":
        status = Status.OOM
    if isinstance(error, UnsupportedError):  # a sentence of ours, not an error of the model
        return ChildResult(
            result=result_of(
                request, tier, progress, TargetOutcome(status=status, detail=str(error))
            )
        )
    outcome = TargetOutcome(status=status, detail=detail, error=record)
    result = result_of(request, tier, progress, outcome)
    fake = tier is Tier.FAKE or progress.probing
    if status is Status.ERROR and fake and _fake_is_to_blame(error, record, progress.phase):
        if tier is Tier.FAKE and request.tier is Tier.AUTO:
            return ChildResult(result=result, fake_failure=f"in {progress.phase}, {detail}")
        if request.device is not None:
            return ChildResult(result=_limit_of_fake_tensors(result))
    if status is Status.ERROR and _only_on_cpu(request, tier, record, progress.phase):
        return ChildResult(result=_limit_of_fake_tensors(result))
    return ChildResult(result=result)


def _limit_of_fake_tensors(result: Result) -> Result:
    """The result of a failure that a device which is only declared may have caused: no verdict."""
    return msgspec.structs.replace(
        result,
        status=Status.UNSUPPORTED,
        detail=f"fake tensors of {result.request.target.device} cannot show it: {result.detail}",
    )


def _only_on_cpu(request: Request, tier: Tier, record: ErrorRecord, phase: Phase) -> bool:
    """Whether a model failed on the CPU, which a probe uses for eager execution, and says so."""
    before = phase in BEFORE_THE_COMPILER
    return before and probes(request, tier) and _CPU.search(record.message) is not None


def _fake_is_to_blame(error: BaseException, record: ErrorRecord, phase: Phase) -> bool:
    """Whether fake tensors may be the cause.

    Before the compiler, any failure may be due to them; in it, only an error that says so.
    """
    names = type_names(error)
    if "WrongGuessError" in names:
        return True
    if names & {"CompilewatchError", "SyntaxError"} or record.code == "missing_package":
        return False
    if phase is Phase.EAGER and DEVICES_MIXED in record.message:
        return False  # fake tensors know their devices
    if phase in BEFORE_THE_COMPILER:
        return True
    return not names.isdisjoint(FAKE_ERRORS)


def result_of(request: Request, tier: Tier, progress: Progress, outcome: TargetOutcome) -> Result:
    return Result(
        request=request,
        phase=progress.phase,
        tier=Tier.FAKE if progress.probing else tier,
        depth=progress.depth,
        dtype=progress.dtype,
        parameters=progress.parameters,
        inputs=progress.inputs,
        inputs_strategy=progress.strategy,
        started_at=progress.started_at,
        **vars(outcome),
    )


def probes(request: Request, tier: Tier) -> bool:
    """Whether this is the second attempt for a declared device, whose tensors cannot be real.

    The model is built small and with real tensors on the CPU, which can make example inputs and run
    in eager mode; then its tensors become fake ones of the device, and only the compiler runs.
    """
    return request.device is not None and tier is Tier.REAL and request.tier is Tier.AUTO
