"""A model of the caller's, with the caller's tensors, evaluated on Dynamo in their process.

It runs in a copy of the process, a fork, which leaves nothing in the process itself. That may have
threads, which a fork does not have: OpenMP's, those of a notebook. The copy therefore computes with
one thread, and if it waits for a lock or a thread that does not exist in it, it is ended.
"""

import contextlib
import functools
import gc
import importlib
import inspect
import logging
import os
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import torch
import torch._inductor.config
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.utils import get_compilation_metrics
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from compilewatch import records
from compilewatch.contract.failures import RecordedError, error_record, one_line
from compilewatch.contract.targets import default_dtype
from compilewatch.errors import UsageError
from compilewatch.records import Mode, Phase, Request, Result, ShapeSeries, Status, TargetOutcome
from compilewatch.worker import forked
from compilewatch.worker.caller.snapshot import NOT_RESTORED, apart, kept
from compilewatch.worker.example_inputs import summarize
from compilewatch.worker.example_inputs.sizes import inputs_of, sizes_of, with_marks
from compilewatch.worker.phases import dtype_of
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo.series import series
from compilewatch.worker.targets.dynamo.target import DynamoTarget
from compilewatch.worker.targets.dynamo.versions import Versions
from compilewatch.worker.targets.execution import compared, located
from compilewatch.worker.targets.inductor import InductorTarget

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of one call."""

Evaluation = tuple[Result, dict[str, str], tuple[str, ...], ShapeSeries | None]
"""A result, where the files that it names lie, what may be left in the process, and the calls of
other sizes."""

STRATEGY = "caller"
INDUCTOR = "inductor"

IDLE_SECONDS = 30.0
"""A copy that has used no CPU time for so long waits for something that it does not have."""

_ACCELERATORS = ("cuda", "xpu", "mtia", "hpu", "npu", "neuron")
_REJECTED_IN_FORKS = ("in forked subprocess", "fork-based multiprocessing")
"""In torch's messages where it cannot work in a fork: CUDA, and threads of autograd."""

_Value = TypeVar("_Value")


def hindrance(tensors: list[torch.Tensor]) -> str:
    """Return why this process cannot be copied for a call that uses `tensors`; "" if it can.

    A driver's state cannot be used in a fork, and macOS ends forks that use its frameworks.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no safe fork"
    real = (tensor for tensor in tensors if not isinstance(tensor, FakeTensor))
    for kind in sorted({tensor.device.type for tensor in real} - {"cpu", "meta"}):
        return f"tensors are on the device {kind}"
    for name in _ACCELERATORS:
        initialized = getattr(getattr(torch, name, None), "is_initialized", None)
        if initialized is not None and initialized():
            return f"the process uses the device {name}"
    return ""


@functools.cache
def _start_autograd() -> None:
    """Run a first backward before a `FakeTensorMode`, so that autograd starts no threads.

    After one, it would start a thread for each device of a guard that reports eight, and could not
    be used in a fork (see `worker.process.warmup`); then it is left to start in the copy.
    """
    was_compiled = bool(get_compilation_metrics())  # which `torch._dynamo.reset` keeps
    if not was_compiled and not torch._C._len_torch_dispatch_stack():
        with torch.inference_mode(mode=False):
            torch.ones((), device="cpu", requires_grad=True).backward()


@dataclass(frozen=True, kw_only=True)
class CallerSubject(Subject):
    """A model in a copy of its owner's process; each evaluation has a copy of that one."""

    def can_fork(self) -> bool:
        """Always: where the caller set a number of threads, torch starts an idle one in the copy.

        Each fork of the copy gets a thread pool of its own (`forked.renew_thread_pool`).
        """
        return True

    def in_fork(self, function: Callable[[Subject], _Value], kind: Any, **options: Any) -> _Value:
        """Call `function` in a fork, and take over what it has learnt about files."""

        def call(subject: Subject) -> tuple[_Value, dict[str, str]]:
            return function(subject), graph_breaks.PATHS

        value, paths = super().in_fork(call, tuple[kind, dict[str, str]], **options)
        graph_breaks.PATHS.update(paths)
        return value


@dataclass(frozen=True, kw_only=True)
class SharedSubject(CallerSubject):
    """A model in its owner's process, where a copy is not possible.

    `left` receives what could not be restored after an evaluation.
    """

    forgotten: Callable[[], None]
    left: dict[str, None]

    owns_process: ClassVar[bool] = False

    def forget(self) -> None:
        self.forgotten()

    def in_fork(self, function: Callable[[Subject], _Value], *_: Any, **__: Any) -> _Value:
        """Call `function` here, and restore afterwards what it changed; see `snapshot`."""
        inputs = [
            (call_inputs.args, call_inputs.kwargs)
            for call_inputs in (self.inputs, *(self.later or ()))
        ]
        with kept(self.left, self.module, inputs):
            self.forget()
            _prepare(self.module, self.request.target.mode)
            return function(self)


def evaluate(
    model: Callable[..., Any],
    calls: Sequence[Call],
    *,
    mode: Mode,
    backend: str | None,
    dynamic: bool | None,
    numerics: bool = False,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    marked: Sequence[str] = (),
) -> Evaluation:
    """Compile a model, make all calls, and return what Dynamo reports.

    `calls` has at least one. After a single one, a call with equal inputs follows, as in other
    evaluations. `backend` None is that of the target: `eager`, and AOTAutograd in train mode.
    `numerics` also compares the results with eager mode, compiled with `backend` or Inductor.
    With `ranges` of dimensions (`x.0`), calls of other sizes are made as well, and the result is
    about these, too. `marked` are dimensions that torch is to keep dynamic.
    Whatever the model's code raises becomes the result. Raises UsageError inside of a function that
    is being compiled.

    The model runs in a copy of this process. Where there can be none, it runs here, and what it
    changed is restored as far as that is possible.
    """
    if torch.compiler.is_compiling() or get_eval_frame_callback() is not None:
        raise UsageError("check cannot be called from code that torch.compile compiles")
    _reject(model, calls)
    module = _as_module(model)
    first, *later = (ExampleInputs(strategy=STRATEGY, args=a, kwargs=k) for a, k in calls)
    phases = [Phase.COMPILE]
    subject = CallerSubject(
        request=_request(module, first, mode, backend, dynamic),
        module=module,
        inputs=first,
        fake_mode=None,
        artifacts=Path(),
        enter=phases.append,
        later=tuple(later) or None,
    )
    reason = hindrance(_tensors(module, [(one.args, one.kwargs) for one in (first, *later)]))
    evaluated = partial(_evaluation, numerics=numerics, ranges=ranges or {}, marked=marked)
    if not reason:
        _start_autograd()
        try:
            evaluation, modules = forked.in_fork(
                lambda: _in_copy(subject, phases, evaluated),
                tuple[Evaluation, list[str]],
                idle_seconds=IDLE_SECONDS,
            )
        except RecordedError as error:
            if "UsageError" in error.names:
                raise UsageError(str(error)) from None
            raise
        except forked.ForkEndedError as error:
            if not error.late:
                detail = f"the model ended its process with {error.how}"
                outcome = TargetOutcome(status=Status.CRASHED, detail=detail)
                return _result(subject, Phase.COMPILE, outcome), {}, (), None
            reason = str(error)
        except OSError as error:
            reason = str(error)
        else:
            for name in modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            reason = _limit_of_forks(evaluation[0])
            if not reason:
                return evaluation
    left = {f"evaluated in this process, since {reason}: {NOT_RESTORED}": None}
    with apart() as forgotten:
        shared = SharedSubject(**vars(subject), forgotten=forgotten, left=left)
        result, files, _, shapes = evaluated(shared, phases)
        return result, files, tuple(left), shapes


def _in_copy(
    subject: CallerSubject, phases: list[Phase], evaluated: Callable[..., Evaluation]
) -> tuple[Evaluation, list[str]]:
    """Evaluate in this process, which is a copy of the caller's.

    Returns also the modules of torch that it has imported, so that the next copy has them.
    """
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which then ends this group
    with contextlib.suppress(ValueError):  # if another thread than the main one has forked
        signal.set_wakeup_fd(-1)
    gc.freeze()  # a collection would copy the pages of all objects
    before = set(sys.modules)
    torch._dynamo.reset()
    torch.compiler.set_stance("default")
    torch._inductor.config.compile_threads = 1
    _prepare(subject.module, subject.request.target.mode)
    evaluation = evaluated(subject, phases)
    new = [name for name in sys.modules if name not in before]
    useful, starts_processes = ("torch.", "sympy."), "torch._inductor"
    return evaluation, [
        name for name in new if name.startswith(useful) and not name.startswith(starts_processes)
    ]


def _evaluation(
    subject: CallerSubject,
    phases: list[Phase],
    *,
    numerics: bool,
    ranges: Mapping[str, tuple[int, int]],
    marked: Sequence[str],
) -> Evaluation:
    """Evaluate; `phases` are those that the subject has entered."""
    shapes = None
    called = subject
    if marked:
        subject = replace(subject, inputs=with_marks(subject, marked))
        sizes = sizes_of(subject)
        ranges = {name: (sizes[name], 2 * sizes[name]) for name in marked}
    backend = subject.request.target.backend
    with (
        _quiet(),
        torch._dynamo.config.patch(error_on_recompile=False),
    ):
        outcome = _outcome(subject)
        if ranges and outcome.status in (Status.PASS, Status.GRAPH_BREAK):
            outcome, shapes = _with_sizes(subject, outcome, ranges, marked=bool(marked))
            inputs = [inputs_of(subject, call.sizes) for call in shapes.calls if not call.error]
            called = replace(subject, inputs=inputs[0], later=tuple(inputs[1:]))
        if numerics and outcome.status in (Status.PASS, Status.GRAPH_BREAK):
            outcome = _with_numerics(called, outcome, backend or INDUCTOR)
    result = _result(subject, phases[-1], outcome)
    return result, dict(graph_breaks.PATHS), (), shapes


def _with_sizes(
    subject: CallerSubject,
    outcome: TargetOutcome,
    ranges: Mapping[str, tuple[int, int]],
    *,
    marked: bool,
) -> tuple[TargetOutcome, ShapeSeries]:
    """Return the outcome with what calls of other sizes met, and these calls.

    A call that the model itself rejects is an error, unless its size was chosen here (`marked`).
    """

    def called(inside: Subject) -> tuple[ShapeSeries, list[records.GraphBreak]]:
        with series(inside, dynamic=inside.request.target.dynamic) as compiled:
            compiled.call_boundaries(ranges, inside.inputs if marked else None)
            return compiled.record(), compiled.breaks

    subject.enter(Phase.COMPILE)
    shapes, of_calls = subject.in_fork(called, tuple[ShapeSeries, list[records.GraphBreak]])
    breaks = graph_breaks.merge((*outcome.breaks, *of_calls))
    detail = f"compilations {shapes.compilations} in {len(shapes.calls)} calls"
    if not shapes.graphs and not breaks:
        detail += ": the first one computes nothing, and Dynamo runs all in eager mode"
    outcome = msgspec.structs.replace(
        outcome,
        status=Status.GRAPH_BREAK if breaks else outcome.status,
        detail=detail,
        breaks=breaks,
        graph_breaks=sum(graph_break.occurrences for graph_break in breaks),
        distinct_breaks=len(breaks),
        graphs=shapes.compilations,
        recompilations=shapes.recompilations,
    )
    for call in shapes.calls:
        if not call.error:
            continue
        alone = replace(subject, inputs=inputs_of(subject, call.sizes))
        eager = _caught(partial(alone.in_fork, _call, TargetOutcome))
        rejected = eager.status is not Status.PASS
        if not (rejected and marked):
            subject.enter(Phase.EAGER if rejected else Phase.COMPILE)
            sizes = ", ".join(f"{name}={size}" for name, size in call.sizes.items())
            detail = f"with {sizes}: {eager.detail or call.error}"
            return msgspec.structs.replace(outcome, status=Status.ERROR, detail=detail), shapes
    return outcome, shapes


def _result(subject: CallerSubject, phase: Phase, outcome: TargetOutcome) -> Result:
    failed = outcome.status in (Status.ERROR, Status.OOM, Status.CRASHED)
    result = Result(
        request=subject.request,
        phase=phase if failed else Phase.DONE,
        tier=subject.request.tier,
        depth=records.Depth.FULL,
        dtype=dtype_of(subject.module),
        parameters=sum(p.numel() for p in subject.module.parameters() if not is_lazy(p)),
        inputs=summarize(subject.inputs),
        inputs_strategy=STRATEGY,
        **msgspec.structs.asdict(outcome),
    )
    return _over_all_calls(result) if subject.later else result


def _limit_of_forks(result: Result) -> str:
    """Return the message by which torch rejects something in a fork; "" without one."""
    message = result.error.message if result.error is not None else ""
    lines = (line for line in message.splitlines() if "fork" in line)
    rejected = any(words in message for words in _REJECTED_IN_FORKS)
    return next(lines, "") if rejected else ""


def _reject(model: Callable[..., Any], calls: Sequence[Call]) -> None:
    """Raises UsageError for what torch.compile takes and what yet says nothing."""
    called = model.forward if isinstance(model, nn.Module) else model
    if inspect.iscoroutinefunction(called):
        raise UsageError("an async function only makes a coroutine: check what it calls")
    if any(isinstance(leaf, types.GeneratorType) for leaf in tree_leaves(calls)):
        raise UsageError("a generator can be read only once, and check calls often: pass a list")


def _prepare(module: nn.Module, mode: Mode) -> None:
    """Set the mode, and let a module that `Module.compile` has compiled be compiled anew."""
    module._compiled_call_impl = None
    try:
        module.train(mode is Mode.TRAIN)
    except NotImplementedError as error:  # of an exported program
        raise UsageError(
            f"{type(module).__name__} has no modes ({error}): check the module that it was made of"
        ) from None


def _as_module(model: Callable[..., Any]) -> nn.Module:
    """Return a module that does what a model does, without what has already compiled it."""
    while isinstance(model, OptimizedModule):
        model = model._orig_mod
    if isinstance(model, nn.Module):
        return model
    function = innermost_fn(model)
    name = getattr(function, "__name__", type(function).__name__)
    if not hasattr(function, "__code__"):
        function = wrap_inline(function)  # as torch.compile does where there is no Python frame
    # The frame that Dynamo compiles first is then the function's own.
    members = {"forward": staticmethod(function), "__module__": function.__module__}
    wrapper: nn.Module = type(name, (nn.Module,), members)()
    return wrapper


def _request(
    module: nn.Module, inputs: ExampleInputs, mode: Mode, backend: str | None, dynamic: bool | None
) -> Request:
    tensors = _tensors(module, inputs.args, inputs.kwargs)
    device = tensors[0].device.type if tensors else "cpu"
    fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
    name, build = type(module).__name__, records.CallerBuild()
    return Request(
        model=records.ModelSpec(source=STRATEGY, name=name, build=build),
        target=records.Target(
            mode=mode, backend=backend, dynamic=dynamic, device=device, dtype=default_dtype(device)
        ),
        key="",
        tier=records.Tier.FAKE if fake else records.Tier.REAL,
        keep_artifacts=False,
    )


def _tensors(module: nn.Module, *inputs: object) -> list[torch.Tensor]:
    leaves = tree_leaves(inputs)
    arguments = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [*module.parameters(), *module.buffers(), *arguments]


def _outcome(subject: CallerSubject) -> TargetOutcome:
    """Return what the target says; where it failed, what the model alone fails with, if it does."""
    outcome = _caught(lambda: subject.in_fork(DynamoTarget().run, TargetOutcome))
    if outcome.status is not Status.ERROR:
        return outcome
    subject.enter(Phase.EAGER)
    alone = _caught(lambda: subject.in_fork(_call, TargetOutcome))
    if alone.status is Status.PASS:
        subject.enter(Phase.COMPILE)
        return outcome
    return alone


def _with_numerics(subject: CallerSubject, outcome: TargetOutcome, backend: str) -> TargetOutcome:
    """Return the outcome with a comparison of the results of all calls with eager mode.

    A graph break stays the status of a mismatch. Raises UsageError where the comparison is not
    possible here.
    """
    if subject.request.tier is records.Tier.FAKE:
        raise UsageError("numerics compares values, which fake tensors do not have")
    for_cpu = backend == INDUCTOR and subject.request.target.device == "cpu"
    if for_cpu and (missing := InductorTarget().missing()):
        raise UsageError(f"numerics compiles with Inductor: {missing}, or name a backend")
    subject.enter(Phase.COMPARE)

    def compiled(inside: Subject) -> Callable[..., Any]:
        dynamic = inside.request.target.dynamic
        function: Callable[..., Any] = torch.compile(
            inside.module, backend=backend, dynamic=dynamic
        )
        return function

    def compare() -> TargetOutcome:
        # A pool of compile workers would stay in the caller's process. Random numbers as in eager
        # mode, because dropout could not be compared otherwise.
        with torch._inductor.config.patch(compile_threads=1, fallback_random=True):
            comparison = located(subject, compiled, compared(subject, compiled))
            return msgspec.structs.replace(outcome, numerics=comparison)

    judged = _caught(compare)
    if judged.numerics is None:
        detail = f"with the backend {backend}: {judged.detail}"
        return msgspec.structs.replace(
            outcome, status=judged.status, detail=detail, error=judged.error
        )
    if not judged.numerics.differs or outcome.status is Status.GRAPH_BREAK:
        return judged
    detail = judged.numerics.remark
    return msgspec.structs.replace(judged, status=Status.MISMATCH, detail=detail)


def _caught(function: Callable[[], TargetOutcome]) -> TargetOutcome:
    try:
        return function()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the edge to the model's code)
        record = error_record(error)
        status = Status.OOM if record.code == "out_of_memory" else Status.ERROR
        return TargetOutcome(status=status, detail=one_line(error), error=record)


def _call(subject: Subject) -> TargetOutcome:
    subject.call(subject.module)
    return TargetOutcome(status=Status.PASS)


def _over_all_calls(result: Result) -> Result:
    """Return a result about all calls, and not only about the first one."""
    later = result.second_call
    if later is None:
        return result
    breaks = graph_breaks.merge((*result.breaks, *later.breaks))
    total = sum(graph_break.occurrences for graph_break in breaks)
    status = result.status
    graphs = (result.graphs or 0) + (later.graphs or 0)
    detail = f"graphs {graphs}, recompilations {len(result.recompilations)}"
    if later.error:
        status, detail = Status.ERROR, f"a later call failed: {later.error}"
    elif later.graph_breaks:
        status = Status.GRAPH_BREAK
    if breaks and not later.error:
        detail += f", breaks {total} ({len(breaks)} distinct)"
    if status is Status.MISMATCH:
        detail = f"{result.detail}; {detail}"
    return msgspec.structs.replace(
        result,
        status=status,
        phase=Phase.COMPILE if later.error else result.phase,
        detail=detail,
        breaks=breaks,
        graph_breaks=total,
        distinct_breaks=len(breaks),
        graphs=graphs,
        second_call=None,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own messages from the caller's terminal, unless `TORCH_LOGS` asks for them."""

    def passes(record: logging.LogRecord) -> bool:
        return not record.name.startswith("torch.")

    loggers = () if os.environ.get("TORCH_LOGS") else logging.root.manager.loggerDict.values()
    handlers = [
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger) and logger.name.partition(".")[0] == "torch"
        for handler in logger.handlers
        if not isinstance(handler, Versions)
    ]
    for handler in handlers:
        handler.addFilter(passes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(passes)
