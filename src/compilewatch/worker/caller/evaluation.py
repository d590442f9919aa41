"""A model of the caller's, with the caller's tensors, evaluated on Dynamo in their process."""

from __future__ import annotations

import inspect
import logging
import os
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch._dynamo.external_utils import wrap_inline
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from compilewatch.contract.failures import error_record, one_line
from compilewatch.contract.targets import default_dtype
from compilewatch.errors import UsageError
from compilewatch.records import (
    CallerBuild,
    CaptureFigures,
    Depth,
    GraphBreak,
    Mode,
    ModelSpec,
    Numerics,
    Phase,
    Recompilation,
    Request,
    Result,
    Status,
    Target,
    Tier,
)
from compilewatch.worker.caller.comparison import INDUCTOR, compared
from compilewatch.worker.caller.dynamo_state import apart
from compilewatch.worker.caller.recompilations import Recompilations
from compilewatch.worker.caller.snapshot import kept
from compilewatch.worker.example_inputs import summarize
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import TargetOutcome
from compilewatch.worker.targets.dynamo.graph_breaks import path_of
from compilewatch.worker.targets.dynamo.target import DynamoTarget

_Value = TypeVar("_Value")

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of one call."""

STRATEGY = "caller"


@dataclass(frozen=True, kw_only=True)
class CallerSubject(Subject):
    """A model in the process of its owner. Each evaluation starts from the state that they left."""

    forgotten: Callable[[], None]
    recompilations: Recompilations

    owns_process: ClassVar[bool] = False

    def forget(self) -> None:
        self.forgotten()

    def before_call(self, number: int) -> None:
        self.recompilations.call = number

    def in_fork(self, function: Callable[[Subject], _Value], _: type[_Value]) -> _Value:
        """Call `function` here, and restore afterwards what it changed; see `snapshot`."""
        with kept(self.module, self.inputs, self.later):
            self.forget()
            return function(self)


@dataclass(frozen=True, kw_only=True)
class CallerEvaluation:
    """A result, what was compiled again, and the paths of the files that its breaks name."""

    result: Result
    recompilations: tuple[Recompilation, ...]
    files: dict[str, str]


def evaluate(
    model: Callable[..., Any],
    calls: Sequence[Call],
    *,
    mode: Mode,
    backend: str | None,
    dynamic: bool,
    numerics: bool = False,
) -> CallerEvaluation:
    """Compile a model, make all calls, and return what Dynamo reports.

    `calls` has at least one. After a single one, a call with equal inputs follows, as in other
    evaluations. `backend` None is that of the target: `eager`, and AOTAutograd in train mode.
    `numerics` also compares the results with eager mode, compiled with `backend` or Inductor.
    Whatever the model's code raises becomes the result. Raises UsageError inside of a function that
    is being compiled.
    """
    if torch.compiler.is_compiling():
        raise UsageError("check cannot be called from code that is being compiled")
    _refuse(model, calls)
    module = _as_module(model)
    first, *later = (ExampleInputs(strategy=STRATEGY, args=a, kwargs=k) for a, k in calls)
    request = _request(module, first, mode, backend, dynamic)
    recompilations = Recompilations()
    phases = [Phase.COMPILE]
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(kept(module, first, later))
        forgotten = stack.enter_context(apart())
        stack.enter_context(recompilations.listening())
        stack.enter_context(torch._dynamo.config.patch(error_on_recompile=False))
        _set_mode(module, mode)
        subject = CallerSubject(
            request=request,
            module=module,
            inputs=first,
            fake_mode=None,
            artifacts=Path(),
            enter=phases.append,
            later=tuple(later) if later else None,
            forgotten=forgotten,
            recompilations=recompilations,
        )
        outcome = _outcome(subject)
        if numerics and outcome.status in (Status.PASS, Status.GRAPH_BREAK):
            outcome = _with_numerics(subject, outcome, backend or INDUCTOR)
    failed = outcome.status in (Status.ERROR, Status.OOM)
    result = Result(
        request=request,
        phase=phases[-1] if failed else Phase.DONE,
        tier=request.tier,
        depth=Depth.FULL,
        dtype=_dtype(module),
        parameters=sum(p.numel() for p in module.parameters() if not is_lazy(p)),
        inputs=summarize(first),
        inputs_strategy=STRATEGY,
        **vars(outcome),
    )
    if later:
        result = _over_all_calls(result)
    return CallerEvaluation(
        result=result, recompilations=recompilations.found(), files=_files(result)
    )


def _files(result: Result) -> dict[str, str]:
    """The paths of the files in which the graph breaks are, and of those that led there."""
    second = result.second_call.breaks if result.second_call is not None else ()
    breaks = (*result.breaks, *second)
    frames = {each.file for each in breaks}
    frames |= {frame.file for each in breaks for frame in each.user_stack}
    return {file: path for file in sorted(frames) if (path := path_of(file)) is not None}


def _refuse(model: Callable[..., Any], calls: Sequence[Call]) -> None:
    """Raises UsageError for what torch.compile takes and what yet says nothing."""
    called = model.forward if isinstance(model, nn.Module) else model
    if inspect.iscoroutinefunction(called):
        raise UsageError("an async function only makes a coroutine: check what it calls")
    if any(isinstance(leaf, types.GeneratorType) for leaf in tree_leaves(calls)):
        raise UsageError("a generator can be read only once, and check calls often: pass a list")


def _set_mode(module: nn.Module, mode: Mode) -> None:
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
    made: nn.Module = type(name, (nn.Module,), {"forward": staticmethod(function)})()
    return made


def _request(
    module: nn.Module, inputs: ExampleInputs, mode: Mode, backend: str | None, dynamic: bool
) -> Request:
    tensors = _tensors(module, inputs)
    device = tensors[0].device.type if tensors else "cpu"
    fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
    return Request(
        model=ModelSpec(source=STRATEGY, name=type(module).__name__, build=CallerBuild()),
        target=Target(
            mode=mode,
            backend=backend,
            dynamic=dynamic,
            device=device,
            dtype=default_dtype(device),
        ),
        key="",
        tier=Tier.FAKE if fake else Tier.REAL,
        keep_artifacts=False,
    )


def _tensors(module: nn.Module, inputs: ExampleInputs) -> list[torch.Tensor]:
    leaves = tree_leaves((inputs.args, inputs.kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [*module.parameters(), *module.buffers(), *given]


def _dtype(module: nn.Module) -> str | None:
    types = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    found = next(types, None)
    return str(found).removeprefix("torch.") if found is not None else None


def _outcome(subject: CallerSubject) -> TargetOutcome:
    """Return what the target says; where it failed, what the model alone fails with, if it does."""
    outcome = _caught(lambda: DynamoTarget().run(subject))
    if outcome.status is not Status.ERROR:
        return outcome
    subject.enter(Phase.EAGER)
    alone = _caught(lambda: subject.in_fork(_call, TargetOutcome))
    if alone.status is Status.PASS:
        subject.enter(Phase.COMPILE)
        return outcome
    return alone


def _with_numerics(subject: CallerSubject, outcome: TargetOutcome, backend: str) -> TargetOutcome:
    """Return the outcome with a comparison; a graph break stays the status of a mismatch."""
    found: list[Numerics] = []

    def compare() -> TargetOutcome:
        found.append(compared(subject, backend))
        return outcome

    failed = _caught(compare)
    if not found:
        detail = f"with the backend {backend}: {failed.detail}"
        return replace(outcome, status=failed.status, detail=detail, error=failed.error)
    differs = found[0].deterministic and not found[0].matches
    if not differs or outcome.status is Status.GRAPH_BREAK:
        return replace(outcome, numerics=found[0])
    detail = f"differs from eager in {found[0].difference}"
    return replace(outcome, status=Status.MISMATCH, detail=detail, numerics=found[0])


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
    training = subject.request.target.mode is Mode.TRAIN
    with torch.set_grad_enabled(training):
        subject.module(*subject.inputs.args, **subject.inputs.kwargs)
    return TargetOutcome(status=Status.PASS)


def _over_all_calls(result: Result) -> Result:
    """Return a result about all calls, and not only about the first one."""
    later = result.second_call
    if later is None:
        return result
    breaks = _joined((*result.breaks, *later.breaks))
    capture = result.capture or CaptureFigures()
    status = result.status
    graphs = (result.graphs or 0) + later.graphs
    again = capture.recompilations + later.recompilations
    detail = f"graphs {graphs}, recompilations {again}"
    if later.error:
        status, detail = Status.ERROR, f"a later call failed: {later.error}"
    elif later.graph_breaks:
        status = Status.GRAPH_BREAK
    if breaks and not later.error:
        total = sum(each.occurrences for each in breaks)
        detail += f", breaks {total} ({len(breaks)} distinct)"
    if status is Status.MISMATCH:
        detail = f"{result.detail}; {detail}"
    return msgspec.structs.replace(
        result,
        status=status,
        phase=Phase.COMPILE if later.error else result.phase,
        detail=detail,
        breaks=breaks,
        graph_breaks=sum(each.occurrences for each in breaks),
        distinct_breaks=len(breaks),
        graphs=graphs,
        capture=msgspec.structs.replace(capture, recompilations=again),
        second_call=None,
    )


def _joined(breaks: Sequence[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Return breaks with those of the same place and reason as one."""
    found: dict[str, GraphBreak] = {}
    for each in breaks:
        known = found.get(each.fingerprint)
        times = each.occurrences + (known.occurrences if known is not None else 0)
        found[each.fingerprint] = msgspec.structs.replace(known or each, occurrences=times)
    return tuple(found.values())


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
        if not isinstance(handler, Recompilations)
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
