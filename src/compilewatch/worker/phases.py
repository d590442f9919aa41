"""Evaluates one request, phase by phase, in a child of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from compilewatch import plugins
from compilewatch.contract.failures import causes, error_record, one_line
from compilewatch.contract.messages import ChildResult
from compilewatch.contract.targets import entry
from compilewatch.errors import CompilewatchError
from compilewatch.records import (
    ChaosBuild,
    ConfigBuild,
    Depth,
    ErrorRecord,
    Mode,
    Phase,
    Request,
    Result,
    Status,
    TensorSummary,
    Tier,
)
from compilewatch.worker.targets import (
    CompileTarget,
    FakeUnsupportedError,
    Outcome,
    load_target,
)

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from compilewatch.worker.model.overrides import Overrides
    from compilewatch.worker.model.resolve import BuiltModel
    from compilewatch.worker.subject import ExampleInputs, Subject

SEED = 0

TRAINING = "compilewatch.worker.profilers.training:train"

FAKE_ERRORS = frozenset(
    {
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "UnsupportedFakeTensorException",
        "UnsupportedMutationAliasingException",
        "UnsupportedOperatorException",
    }
)
"""Names of PyTorch's exceptions that only fake tensors raise; their modules vary by version."""


@dataclass(kw_only=True)
class _Progress:
    """What is known so far; the result of a request that fails contains it too."""

    phase: Phase = Phase.SETUP
    depth: Depth = Depth.FULL
    parameters: int | None = None
    inputs: tuple[TensorSummary, ...] = ()
    strategy: str = ""
    started_at: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )


class UnsupportedError(Exception):
    """This environment cannot run the target; the argument says what is missing."""


def evaluate(
    request: Request, tier: Tier, folder: Path, mark: Callable[[Phase], None]
) -> ChildResult:
    """Run a request in one tier (never `auto`) and say what became of it.

    `folder` is the folder of this request and contains `artifacts`; `mark` is called when a phase
    starts. Whatever the model's code raises becomes the result, including `SystemExit`.
    """
    progress = _Progress(depth=request.depth)

    def enter(phase: Phase) -> None:
        progress.phase = phase
        mark(phase)

    try:
        outcome = _run(request, tier, folder, enter, progress)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the worker's top)
        return _failed(error, request, tier, progress)
    result = _result(request, tier, progress, outcome)
    if result.status not in (Status.ERROR, Status.OOM):
        result = msgspec.structs.replace(result, phase=Phase.DONE)
    return ChildResult(result=result)


def _run(
    request: Request,
    tier: Tier,
    folder: Path,
    enter: Callable[[Phase], None],
    progress: _Progress,
) -> Outcome:
    from compilewatch.worker.example_inputs import summarize
    from compilewatch.worker.model.overrides import load_overrides
    from compilewatch.worker.model.resolve import build_model
    from compilewatch.worker.subject import Subject

    enter(Phase.SETUP)
    target, fake_mode = _set_up(request, tier)
    overrides = load_overrides(Path(request.overrides_dir) if request.overrides_dir else None)
    enter(Phase.CREATE)
    built = build_model(request, fake_mode, overrides)
    progress.depth, progress.parameters = built.depth, built.parameters
    built.module.train(request.target.mode is Mode.TRAIN)
    enter(Phase.INPUTS)
    inputs = _inputs(built, request, overrides, fake_mode)
    progress.inputs, progress.strategy = summarize(inputs), inputs.strategy
    subject = Subject(
        request=request,
        module=built.module,
        inputs=inputs,
        fake_mode=fake_mode,
        artifacts=folder / "artifacts",
        enter=enter,
    )
    enter(Phase.EAGER)
    _eager(subject)
    if request.training is not None:
        # Loaded by name, because no result of a target depends on it.
        trained: Outcome = plugins.load(TRAINING)(subject, request.training)
        return trained
    enter(Phase.COMPILE)
    return target.run(subject)


def _set_up(request: Request, tier: Tier) -> tuple[CompileTarget, FakeTensorMode | None]:
    import huggingface_hub.constants
    import numpy
    import torch

    from compilewatch.worker.model.fake_mode import InputAwareFakeMode

    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)
    build = request.model.build
    if isinstance(build, ConfigBuild) and build.weights:
        # Workers are offline; only the download of requested real weights is allowed.
        huggingface_hub.constants.HF_HUB_OFFLINE = False
        os.environ.pop("HF_HUB_OFFLINE", None)
    if isinstance(build, ChaosBuild):
        from compilewatch.worker.model import chaos

        chaos.misbehave(build.behaviour, Phase.SETUP)
    target = load_target(request.target.name)
    missing = target.missing()
    if missing is not None:
        raise UnsupportedError(missing)
    backend = request.target.backend
    if backend is not None and entry(request.target.name).backends is None:
        _check_backend(backend)
    if tier not in target.tiers:
        raise FakeUnsupportedError(f"{target.name} runs the compiled code")
    return target, InputAwareFakeMode() if tier is Tier.FAKE else None


def _check_backend(name: str) -> None:
    """Raise UnsupportedError for a backend unknown to torch.compile: not an error of the model."""
    import torch._dynamo
    from torch._dynamo.exc import InvalidBackend

    try:
        torch._dynamo.lookup_backend(name)
    except InvalidBackend:
        raise UnsupportedError(f"torch.compile has no backend {name!r} here") from None


def _inputs(
    built: BuiltModel, request: Request, overrides: Overrides, fake_mode: FakeTensorMode | None
) -> ExampleInputs:
    from compilewatch.worker.example_inputs import make_inputs
    from compilewatch.worker.subject import ExampleInputs

    build = request.model.build
    if isinstance(build, ChaosBuild):
        from compilewatch.worker.model import chaos

        chaos.misbehave(build.behaviour, Phase.INPUTS)
        with fake_mode if fake_mode is not None else nullcontext():
            return ExampleInputs(strategy="chaos", kwargs=chaos.example_kwargs())
    return make_inputs(built.module, built.config, request, overrides, fake_mode)


def _eager(subject: Subject) -> None:
    """Run one forward call, so that a model that cannot run at all is not a compile error."""
    import torch

    training = subject.request.target.mode is Mode.TRAIN
    gradients: AbstractContextManager[Any] = nullcontext() if training else torch.no_grad()
    with subject.tensors(), gradients:
        subject.module(*subject.inputs.args, **subject.inputs.kwargs)


def _failed(error: BaseException, request: Request, tier: Tier, progress: _Progress) -> ChildResult:
    from compilewatch.worker.model.resolve import MissingPackageError, UnknownArchitectureError

    record = error_record(error)
    # An error of ours is a sentence; its class adds nothing.
    detail = str(error) if isinstance(error, CompilewatchError) else one_line(error)
    status = Status.ERROR
    if isinstance(error, UnsupportedError | MissingPackageError | UnknownArchitectureError):
        status = Status.UNSUPPORTED
        if isinstance(error, MissingPackageError):
            detail = f"needs the package {error.package}, which is not in this environment"
    elif record.code == "out_of_memory":
        status = Status.OOM
    outcome = Outcome(status=status, detail=detail, error=record)
    result = _result(request, tier, progress, outcome)
    suspected = status is Status.ERROR and tier is Tier.FAKE and request.tier is Tier.AUTO
    if suspected and _fake_is_to_blame(error, record, progress.phase):
        return ChildResult(result=result, fake_failure=f"in {progress.phase}, {detail}")
    return ChildResult(result=result)


def _fake_is_to_blame(error: BaseException, record: ErrorRecord, phase: Phase) -> bool:
    """Whether fake tensors may be the cause.

    Before the compiler, any failure may be due to them; in it, only an error that says so.
    """
    if isinstance(error, CompilewatchError | SyntaxError) or record.code == "missing_package":
        return False
    if phase in (Phase.CREATE, Phase.INPUTS, Phase.EAGER):
        return True
    return any(
        isinstance(cause, FakeUnsupportedError) or type(cause).__name__ in FAKE_ERRORS
        for cause in causes(error)
    )


def _result(request: Request, tier: Tier, progress: _Progress, outcome: Outcome) -> Result:
    return Result(
        request=request,
        phase=progress.phase,
        tier=tier,
        depth=progress.depth,
        parameters=progress.parameters,
        inputs=progress.inputs,
        inputs_strategy=progress.strategy,
        started_at=progress.started_at,
        **vars(outcome),
    )
