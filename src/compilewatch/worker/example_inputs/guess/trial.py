"""One call with guessed inputs, in a fork of this process, and what its failure tells."""

import copy
import inspect
import linecache
import re
import signal
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from compilewatch.contract.failures import RecordedError, error_code, one_line, type_names
from compilewatch.records import Record
from compilewatch.worker import forked
from compilewatch.worker.example_inputs.files import converted, fake_values
from compilewatch.worker.subject import ExampleInputs

MESSAGE = 2000
"""How much of a message is kept, in characters."""

SECONDS_ON_REAL = 30
"""How long a call with real tensors may take that confirms a guess."""


class Trial(Record, frozen=True, kw_only=True):
    """What became of a call. `calls` counts the modules that had been called when it failed.

    `statement` is the line that failed, `missing` are arguments that were None where the forward
    used them.
    """

    passed: bool = False
    line: str = ""
    message: str = ""
    code: str = ""
    names: tuple[str, ...] = ()
    calls: int = 0
    statement: str = ""
    missing: tuple[str, ...] = ()


def tried(module: nn.Module, inputs: ExampleInputs, mode: Any) -> Trial:
    """Call a module with real inputs, made fake under `mode`, so that the call leaves nothing.

    Where no fork is possible, the call is made here: then `phases` builds the model again.
    """
    return _in_fork(lambda: _called(module, inputs, mode, gradients=False))


def tried_on_real(
    build: Callable[[], nn.Module], inputs: ExampleInputs, *, gradients: bool
) -> Trial | None:
    """Build a module with real tensors and call it once with real inputs; None if it takes long.

    That is in a fork, where one is possible.
    """

    def call() -> Trial:
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(SECONDS_ON_REAL)
        try:
            with torch.compiler.set_stance("force_eager"):  # functions that the model compiles
                return _called(build(), copy.deepcopy(inputs), None, gradients=gradients)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    trial = _in_fork(call)
    return None if TooLongError.__name__ in f"{trial.names} {trial.line}" else trial


class TooLongError(Exception):
    """A call takes longer than `SECONDS_ON_REAL`."""


def _too_long(*_: object) -> None:
    raise TooLongError


def _in_fork(call: Callable[[], Trial]) -> Trial:
    if not forked.possible():
        return call()
    try:
        return forked.in_fork(call, Trial)
    except RecordedError as error:  # of the constructor, or SystemExit of the model's code
        return Trial(line=error.line, message=str(error), names=tuple(error.names))


def _called(module: nn.Module, inputs: ExampleInputs, mode: Any, *, gradients: bool) -> Trial:
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    hook = register_module_forward_pre_hook(count)
    try:
        args, kwargs = inputs.args, inputs.kwargs
        if mode is not None:
            args, kwargs = fake_values(args, mode), fake_values(kwargs, mode)
        else:
            device = next((p.device for p in module.parameters()), torch.device("cpu"))
            if device.type not in ("cpu", "meta"):
                args, kwargs = converted((args, kwargs), lambda t: t.to(device), device)
        with mode or nullcontext(), nullcontext() if gradients else torch.no_grad():
            module(*args, **kwargs)
        return Trial(passed=True, calls=calls)
    except Exception as error:  # noqa: BLE001  (whatever the model's code raises)
        return _failure(error, module, calls)
    finally:
        hook.remove()


def _failure(error: Exception, module: nn.Module, calls: int) -> Trial:
    own = [
        (frame, linecache.getline(frame.f_code.co_filename, line).strip())
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not re.search(r"/torch/|^<|example_inputs/guess", frame.f_code.co_filename)
    ]
    forward = getattr(inspect.unwrap(module.forward), "__code__", None)
    # The arguments of the forward that are None, those in the failing line first.
    absent = [
        (line, [name for name, value in frame.f_locals.items() if value is None])
        for frame, line in own
        if frame.f_code is forward
    ]
    missing = [[*(n for n in names if n in line), *names] for line, names in absent[:1]]
    return Trial(
        line=one_line(error),
        message=str(error)[:MESSAGE],
        code=error_code(error),
        names=tuple(sorted(type_names(error))),
        calls=calls,
        statement=own[-1][1][:200] if own else "",
        missing=tuple(dict.fromkeys(missing[0])) if missing else (),
    )
