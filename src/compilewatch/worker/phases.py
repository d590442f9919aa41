"""Evaluates one request, phase by phase, in a child of its own."""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from compilewatch import extras, plugins
from compilewatch.contract.failures import (
    error_code,
    error_record,
    how_to_get,
    one_line,
    type_names,
)
from compilewatch.contract.messages import ChildResult
from compilewatch.contract.targets import entry
from compilewatch.errors import CompilewatchError, WrongGuessError
from compilewatch.records import (
    ConfigBuild,
    Depth,
    ErrorRecord,
    FactoryBuild,
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
    TargetOutcome,
    load_target,
)

if TYPE_CHECKING:
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    from compilewatch.worker.model.overrides import Overrides
    from compilewatch.worker.model.resolve import BuiltModel
    from compilewatch.worker.subject import Subject


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


SEED = 0


def evaluate(
    request: Request, tier: Tier, folder: Path, mark: Callable[[Phase], None]
) -> ChildResult:
    """Run a request in one tier (never `auto`) and say what became of it.

    `folder` is the folder of this request and contains `artifacts`; `mark` is called when a phase
    starts. Whatever the model's code raises becomes the result, including `KeyboardInterrupt`.
    """
    progress = Progress(depth=request.depth)

    def enter(phase: Phase) -> None:
        progress.phase = phase
        mark(phase)

    try:
        outcome = _run(request, tier, folder, enter, progress)
    except BaseException as error:  # noqa: BLE001  (the worker's top)
        return failed(error, request, tier, progress)
    result = result_of(request, tier, progress, outcome)
    if result.status not in (Status.ERROR, Status.OOM):
        result = msgspec.structs.replace(result, phase=Phase.DONE)
    return ChildResult(result=result)


def _run(
    request: Request,
    tier: Tier,
    folder: Path,
    enter: Callable[[Phase], None],
    progress: Progress,
) -> TargetOutcome:
    from compilewatch.worker.device.subjects import on_declared_device
    from compilewatch.worker.example_inputs import summarize
    from compilewatch.worker.model.overrides import overrides_of
    from compilewatch.worker.variants import run_variants

    enter(Phase.SETUP)
    target, fake_mode = _set_up(request, tier)
    overrides = overrides_of(request)
    preparation = _Preparation(request, fake_mode, overrides, folder / "artifacts", enter)
    enter(Phase.CREATE)
    built = preparation.build()
    progress.depth, progress.parameters = built.depth, built.parameters
    progress.dtype = _dtype_of(built.module)
    enter(Phase.INPUTS)
    subject = preparation.subject(built)
    step = f"{built.part}.forward: " if built.part else ""
    progress.inputs, progress.strategy = summarize(subject.inputs), step + subject.inputs.strategy
    enter(Phase.EAGER)
    _call_once(subject)
    if request.work is not None:
        # Loaded by name, because no result of a target depends on it.
        reference = extras.WORK[request.work.name]
        done: TargetOutcome = plugins.load(reference)(subject, request.work.options)
        return done
    enter(Phase.COMPILE)
    progress.probing = probes(request, tier)

    def probe(prepared: Subject) -> TargetOutcome:
        return target.probe(on_declared_device(prepared))

    run = probe if progress.probing else target.run

    def variant(without: frozenset[str]) -> Subject:
        return preparation.subject(built, without)

    outcome, progress.inputs = run_variants(subject, variant, run, _eager)
    return outcome


@dataclass(frozen=True)
class _Preparation:
    """Builds the model of a request and makes its example inputs."""

    request: Request
    fake_mode: FakeTensorMode | None
    overrides: Overrides
    artifacts: Path
    enter: Callable[[Phase], None]

    def build(self) -> BuiltModel:
        from compilewatch.worker.model.resolve import build_model

        _seed()
        built = build_model(self.request, self.fake_mode, self.overrides)
        built.module.train(self.request.target.mode is Mode.TRAIN)
        return built

    def subject(self, built: BuiltModel, without: frozenset[str] = frozenset()) -> Subject:
        """Return a model that nothing has called, with example inputs but some arguments.

        Some rules for inputs call the model, to learn how many features an image has. Then it is
        built again; so it is for a real device, to which it is moved after that.
        """
        from compilewatch.worker.device.subjects import on_real_device
        from compilewatch.worker.example_inputs import make_inputs
        from compilewatch.worker.subject import Subject

        moves = _uses_real_device(self.request)
        with _calls_noticed() as called:
            inputs = make_inputs(
                built.module,
                built.config,
                self.request,
                self.overrides,
                self.fake_mode,
                without=without,
                real=real_builder(self.request, self.overrides),
            )
        subject = Subject(
            request=self.request,
            module=self.build().module if called or moves else built.module,
            inputs=inputs,
            fake_mode=self.fake_mode,
            artifacts=self.artifacts,
            enter=self.enter,
            rebuilt=lambda: self.build().module,
        )
        return on_real_device(subject) if moves else subject


@contextmanager
def _calls_noticed() -> Iterator[list[str]]:
    """Yield a list that gets the name of each module that is called."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    called: list[str] = []
    hook = register_module_forward_pre_hook(lambda module, _: called.append(type(module).__name__))
    try:
        yield called
    finally:
        hook.remove()


def _seed() -> None:
    import torch

    random.seed(SEED)
    with contextlib.suppress(ImportError):  # torch does not require it
        import numpy

        numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def _uses_real_device(request: Request) -> bool:
    return request.device is not None and request.tier is Tier.REAL


def _dtype_of(module: nn.Module) -> str | None:
    types = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    dtype = next(types, None)
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def _set_up(request: Request, tier: Tier) -> tuple[CompileTarget, FakeTensorMode | None]:
    from compilewatch.worker.device import torch_device
    from compilewatch.worker.model.fake_mode import InputAwareFakeMode

    build = request.model.build
    if isinstance(build, ConfigBuild) and build.weights:
        import huggingface_hub.constants

        # Workers are offline; only the download of requested real weights is allowed.
        huggingface_hub.constants.HF_HUB_OFFLINE = False
        os.environ.pop("HF_HUB_OFFLINE", None)
    target = load_target(request.target.name)
    missing = target.missing()
    if missing is not None:
        raise UnsupportedError(missing)
    backend = request.target.backend
    if backend is not None and entry(request.target.name).backends is None:
        _check_backend(backend)
    if tier not in target.tiers:
        raise FakeUnsupportedError(f"{target.name} runs the compiled code")
    if request.device is not None:
        _declare(request)
    return target, InputAwareFakeMode(torch_device(request.device)) if tier is Tier.FAKE else None


def _declare(request: Request) -> None:
    """Prepare the device of a request. Raises UnsupportedError if it cannot be had here."""
    import torch

    from compilewatch.worker.device import DeviceUnavailableError, declare, trains

    assert request.device is not None
    if _uses_real_device(request):
        if not torch.cuda.is_available():
            raise UnsupportedError(
                "real tensors on cuda need a CUDA device, and this machine has none: "
                "--tier auto needs none"
            )
        return
    try:
        declare(request.device)
    except DeviceUnavailableError as error:
        raise UnsupportedError(str(error)) from None
    missing = trains(request.device) if request.target.mode is Mode.TRAIN else None
    if missing is not None:
        raise UnsupportedError(missing)


def _check_backend(name: str) -> None:
    """Raise UnsupportedError for a backend unknown to torch.compile: not an error of the model."""
    import torch._dynamo
    from torch._dynamo.exc import InvalidBackend

    try:
        torch._dynamo.lookup_backend(name)
    except InvalidBackend:
        raise UnsupportedError(f"torch.compile has no backend {name!r} here") from None


def real_builder(request: Request, overrides: Overrides) -> Callable[[], nn.Module] | None:
    """Return what builds the model with real tensors, None for a device that need not be here."""
    from compilewatch.worker.model.resolve import build_model

    if request.device is not None:
        return None
    training = request.target.mode is Mode.TRAIN
    return lambda: build_model(request, None, overrides).module.train(training)


def _eager(subject: Subject) -> None:
    """Run one forward call, so that a model that cannot run at all is not a compile error."""
    import torch

    training = subject.request.target.mode is Mode.TRAIN
    gradients: AbstractContextManager[Any] = nullcontext() if training else torch.no_grad()
    with subject.tensors(), gradients:
        subject.module(*subject.inputs.args, **subject.inputs.kwargs)


def _call_once(subject: Subject) -> None:
    """Run the eager call. If its inputs were guessed, its failure is one of the guess."""
    from compilewatch.contract.targets import naming_options

    try:
        subject.in_fork(_eager, type(None))
    except Exception as error:  # whatever code of the model raises
        inputs = subject.inputs
        if not inputs.guessed or error_code(error) in ("out_of_memory", "missing_package"):
            raise
        subject.enter(Phase.INPUTS)
        name, where = subject.request.model.name, naming_options(subject.request)
        raise WrongGuessError(name, inputs, one_line(error), where) from error
