"""Evaluates one request, phase by phase, in a child of its own, and each of its input variants."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
import torch._dynamo
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from compilewatch import extras, plugins, records
from compilewatch.contract import failures
from compilewatch.contract.messages import ChildResult
from compilewatch.contract.targets import entry, naming_options
from compilewatch.errors import CompilewatchError, WrongGuessError
from compilewatch.records import Mode, Phase, Request, Result, Status, Tier
from compilewatch.worker import device, example_inputs
from compilewatch.worker.device import on_device
from compilewatch.worker.example_inputs import summarize, variants
from compilewatch.worker.model import resolve
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError, load_target
from compilewatch.worker.targets.numerics import seeded

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from compilewatch.worker.model.resolve import BuiltModel


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
_WORSE = {Status.PASS: 0, Status.GRAPH_BREAK: 1, Status.ERROR: 2}

Evaluated = tuple[records.TargetOutcome, tuple[records.TensorSummary, ...]]
"""The outcome of one input variant, and its example inputs."""


class UnsupportedError(Exception):
    """This environment cannot run the target; the argument says what is missing."""


def evaluate(
    request: Request, tier: Tier, folder: Path, mark: Callable[[Phase], None]
) -> ChildResult:
    """Run a request in one tier (never `auto`) and say what became of it.

    `folder` is the folder of this request and contains `artifacts`; `mark` is called when a phase
    starts. Whatever the model's code raises becomes the result, including `KeyboardInterrupt`.
    """
    result = Result(
        request=request,
        status=Status.ERROR,
        phase=Phase.SETUP,
        tier=tier,
        depth=request.depth,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )

    def know(**facts: object) -> None:
        nonlocal result
        result = msgspec.structs.replace(result, **facts)

    def enter(phase: Phase) -> None:
        know(phase=phase)
        mark(phase)

    try:
        know(**msgspec.structs.asdict(_run(request, tier, folder, enter, know)))
    except BaseException as error:  # noqa: BLE001  (the worker's top)
        return failed(error, result, tier)
    if result.status not in (Status.ERROR, Status.OOM):
        know(phase=Phase.DONE)
    return ChildResult(result=result)


def failed(error: BaseException, known: Result, tier: Tier) -> ChildResult:
    """Return the result of an exception, given what is known so far of the attempt in a tier."""
    request, record = known.request, failures.error_record(error)
    # An error of ours is a sentence; its class adds nothing.
    detail = str(error) if isinstance(error, CompilewatchError) else failures.one_line(error)
    if isinstance(error, UnsupportedError):  # a sentence of ours, not an error of the model
        unsupported = msgspec.structs.replace(known, status=Status.UNSUPPORTED, detail=str(error))
        return ChildResult(result=unsupported)
    status = Status.ERROR
    if isinstance(error, resolve.MissingPackageError):
        status = Status.UNSUPPORTED
        needs = f"needs the package {error.package}, which is not in this environment"
        own = isinstance(request.model.build, records.FactoryBuild)
        detail = failures.how_to_get(error.package) if own else needs
    elif isinstance(error, resolve.UnknownArchitectureError):
        status = Status.UNSUPPORTED
    elif record.code == "out_of_memory":
        status = Status.OOM
    result = msgspec.structs.replace(known, status=status, detail=detail, error=record)
    if status is not Status.ERROR:
        return ChildResult(result=result)
    before = result.phase in BEFORE_THE_COMPILER
    if result.tier is Tier.FAKE and _fake_is_to_blame(error, record.message, result.phase):
        if tier is Tier.FAKE and request.tier is Tier.AUTO:
            return ChildResult(result=result, fake_failure=f"in {result.phase}, {detail}")
        limited = request.device is not None
    else:
        # Whether a model failed on the CPU, which a probe uses for eager execution, and says so.
        limited = before and probes(request, tier) and _CPU.search(record.message) is not None
    if limited:  # what a device that is only declared may have caused is no verdict
        words = f"fake tensors of {request.target.device} cannot show it: {detail}"
        result = msgspec.structs.replace(result, status=Status.UNSUPPORTED, detail=words)
    return ChildResult(result=result)


def _fake_is_to_blame(error: BaseException, message: str, phase: Phase) -> bool:
    """Whether fake tensors may be the cause.

    Before the compiler, any failure may be due to them; in it, only an error that says so.
    """
    names = failures.type_names(error)
    if "WrongGuessError" in names:
        return True
    if (
        names & {"CompilewatchError", "SyntaxError"}
        or failures.error_code(error) == "missing_package"
    ):
        return False
    if phase is Phase.EAGER and DEVICES_MIXED in message:
        return False  # fake tensors know their devices
    return phase in BEFORE_THE_COMPILER or not names.isdisjoint(FAKE_ERRORS)


def probes(request: Request, tier: Tier) -> bool:
    """Whether this is the second attempt for a declared device, whose tensors cannot be real.

    The model is built small and with real tensors on the CPU, which can make example inputs and run
    in eager mode; what the target makes of them, its `probe` says.
    """
    return request.device is not None and tier is Tier.REAL and request.tier is Tier.AUTO


def _run(
    request: Request,
    tier: Tier,
    folder: Path,
    enter: Callable[[Phase], None],
    know: Callable[..., None],
) -> records.TargetOutcome:
    enter(Phase.SETUP)
    target, fake_mode = _set_up(request, tier, folder)

    def build() -> BuiltModel:
        built = seeded(lambda: resolve.build_model(request, fake_mode))
        built.module.train(request.target.mode is Mode.TRAIN)
        return built

    called: list[str] = []

    def prepared(without: frozenset[str] = frozenset()) -> Subject:
        """Return a model that nothing has called, with example inputs but some arguments.

        Some rules for inputs call the model, to learn how many features an image has. Then it is
        built again, also for later variants; so it is for a real device, to which it is moved.
        """
        moves = _uses_real_device(request)
        with _calls_noticed(called):
            inputs = example_inputs.make_inputs(
                built.module, request, fake_mode, without=without, real=real_builder(request)
            )
        subject = Subject(
            request=request,
            module=build().module if called or moves else built.module,
            inputs=inputs,
            fake_mode=fake_mode,
            artifacts=folder / "artifacts",
            enter=enter,
            rebuilt=lambda: build().module,
            maker=built.module if called else None,
        )
        return on_device(subject, device.torch_device(request.device)) if moves else subject

    enter(Phase.CREATE)
    built = build()
    know(depth=built.depth, parameters=built.parameters, dtype=dtype_of(built.module))
    enter(Phase.INPUTS)
    subject = prepared()
    step = f"{built.part}.forward: " if built.part else ""
    know(inputs=summarize(subject.inputs), inputs_strategy=step + subject.inputs.strategy)
    enter(Phase.EAGER)
    _call_once(subject)
    if request.work is not None:
        # Loaded by name, because no result of a target depends on it.
        reference = extras.WORK[request.work.name]
        done: records.TargetOutcome = plugins.load(reference)(subject, request.work.options)
        return done
    enter(Phase.COMPILE)
    run: Callable[[Subject], records.TargetOutcome] = target.run
    if probes(request, tier):
        know(tier=Tier.FAKE)
        run = target.probe
    outcome, inputs = _with_variants(subject, prepared, run)
    know(inputs=inputs)
    if request.shapes and outcome.status in (Status.PASS, Status.GRAPH_BREAK):
        outcome = msgspec.structs.replace(outcome, shapes=target.shapes(subject))
    return outcome


def _with_variants(
    subject: Subject,
    make: Callable[[frozenset[str]], Subject],
    run: Callable[[Subject], records.TargetOutcome],
) -> Evaluated:
    """Run the main input variant and the others; return the worst outcome and its example inputs.

    `make` makes a subject without some arguments. Each variant is evaluated on a module that
    nothing has called. One that fails before the compiler has no verdict: its inputs may be the
    cause. An error of the main variant propagates.
    """
    request = subject.request
    others: dict[str, Callable[[Subject], Subject]] = {}
    if request.variants is not records.Variants.MAIN:
        for name, less in variants.other_variants(subject.module, subject.inputs).items():
            others[name] = lambda _, less=less: make(less)  # type: ignore[misc]
    if request.variants is records.Variants.ALL_DECODE and request.target.mode is Mode.EVAL:
        others |= variants.decode_variants(subject)
    if not others:
        return run(subject), summarize(subject.inputs)
    main = variants.main_variant(subject.inputs) or "prefill"
    evaluated = {main: (subject.in_fork(run, records.TargetOutcome), summarize(subject.inputs))}
    for name, make_variant in others.items():
        evaluated[name] = _variant(subject, make_variant, run)
    worst = max(evaluated, key=lambda name: _WORSE.get(evaluated[name][0].status, -1))
    outcome, inputs = evaluated[worst]
    results = tuple(
        records.VariantResult(
            name=name,
            ops=one.ops,
            inputs=its_inputs,
            **{field: getattr(one, field) for field in records.Outcome.__struct_fields__},
        )
        for name, (one, its_inputs) in evaluated.items()
    )
    detail = outcome.detail if worst == main else f"with {worst}: {outcome.detail}"
    outcome = msgspec.structs.replace(outcome, detail=detail, variant=worst, variants=results)
    return outcome, inputs


def _variant(
    subject: Subject,
    make: Callable[[Subject], Subject],
    run: Callable[[Subject], records.TargetOutcome],
) -> Evaluated:
    """Make a variant's inputs and evaluate it. A prefill calls the model before a decode step."""

    def evaluated(inside: Subject) -> Evaluated:
        request = msgspec.structs.replace(inside.request, keep_artifacts=False)
        inputs: tuple[records.TensorSummary, ...] = ()
        try:
            variant = dataclasses.replace(make(inside), request=request, enter=inside.enter)
            inputs = summarize(variant.inputs)
            variant.in_fork(_eager, type(None))
            return run(variant), inputs
        except Exception as error:  # whatever code of the model raises
            if failures.error_code(error) == "out_of_memory" or _needs_values(error, inside):
                raise
            detail = failures.one_line(error)
            return records.TargetOutcome(status=Status.UNSUPPORTED, detail=detail), inputs

    return subject.in_fork(evaluated, Evaluated)


def _needs_values(error: BaseException, subject: Subject) -> bool:
    """Whether a decode step needs values that fake tensors do not have, and may have real ones."""
    request = subject.request
    return (
        request.variants is records.Variants.ALL_DECODE
        and request.tier is Tier.AUTO
        and request.device is None
        and subject.fake_mode is not None
        and not failures.type_names(error).isdisjoint(FAKE_ERRORS)
    )


@contextmanager
def _calls_noticed(called: list[str]) -> Iterator[None]:
    """Add the name of each module that is called to a list."""
    hook = register_module_forward_pre_hook(lambda module, _: called.append(type(module).__name__))
    try:
        yield
    finally:
        hook.remove()


def _uses_real_device(request: Request) -> bool:
    return request.device is not None and request.tier is Tier.REAL


def dtype_of(module: nn.Module) -> str | None:
    """Return the type of a module's weights; None if none is a floating-point number."""
    types = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    dtype = next(types, None)
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def _set_up(
    request: Request, tier: Tier, folder: Path
) -> tuple[CompileTarget, FakeTensorMode | None]:
    build = request.model.build
    if isinstance(build, records.ConfigBuild) and build.weights:
        import huggingface_hub.constants

        # Workers are offline; only the download of requested real weights is allowed.
        huggingface_hub.constants.HF_HUB_OFFLINE = False
        os.environ.pop("HF_HUB_OFFLINE", None)
    target = load_target(request.target.name)
    if (missing := target.missing()) is not None:
        raise UnsupportedError(missing)
    backend = request.target.backend
    if backend is not None and entry(request.target.name).backends is None:
        try:
            torch._dynamo.lookup_backend(backend)
        except torch._dynamo.exc.InvalidBackend:  # not an error of the model
            raise UnsupportedError(f"torch.compile has no backend {backend!r} here") from None
    if tier not in target.tiers:
        raise FakeUnsupportedError(f"{target.name} runs the compiled code")
    if (missing := target.prepare(request, folder)) is not None:
        raise UnsupportedError(missing)
    if request.device is not None and _uses_real_device(request):
        kind = request.device.kind
        why = "this machine has none"
        try:
            present = device.is_present(kind)
        except ImportError as error:
            present, why = False, failures.one_line(error)
        if not present:
            raise UnsupportedError(
                f"real tensors on {kind} need the device, and {why}: --tier auto needs none"
            )
    elif request.device is not None:
        try:
            device.declare(request.device)
        except device.DeviceUnavailableError as error:
            raise UnsupportedError(str(error)) from None
        if request.target.mode is Mode.TRAIN and (lacking := device.lacking_for_training()):
            raise UnsupportedError(lacking)
    on = device.torch_device(request.device)
    return target, InputAwareFakeMode(on) if tier is Tier.FAKE else None


def real_builder(request: Request) -> Callable[[], nn.Module] | None:
    """Return what builds the model with real tensors, None for a device that need not be here."""
    if request.device is not None:
        return None
    training = request.target.mode is Mode.TRAIN
    return lambda: resolve.build_model(request, None).module.train(training)


def _eager(subject: Subject) -> None:
    """Run one forward call, so that a model that cannot run at all is not a compile error."""
    with subject.tensors():
        subject.call(subject.module)


def _call_once(subject: Subject) -> None:
    """Run the eager call. If its inputs were guessed, its failure is one of the guess."""
    try:
        subject.in_fork(_eager, type(None))
    except Exception as error:  # whatever code of the model raises
        inputs = subject.inputs
        if not inputs.guessed or failures.error_code(error) in ("out_of_memory", "missing_package"):
            raise
        subject.enter(Phase.INPUTS)
        name, where = subject.request.model.name, naming_options(subject.request)
        raise WrongGuessError(name, inputs, failures.one_line(error), where) from error
