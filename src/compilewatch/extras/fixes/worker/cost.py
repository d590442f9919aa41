"""What a call costs with a fix and without it: a part of each verification's text.

It runs by itself (`--cost`), and decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch._dynamo
from torch.utils.benchmark import Timer

from compilewatch.extras.fixes.worker.comparing import loss_of
from compilewatch.extras.fixes.worker.script_calls import SHAPES, ScriptSubject, arguments

ROUNDS = 5
ROUND_SECONDS = 0.2


def costs(subject: ScriptSubject) -> dict[str, float | None]:
    """Return the seconds of a call in eager mode, compiled without the fix, and compiled with it.

    The compiler is Inductor, the inputs are those of the first shape, and in mode train a backward
    belongs to a call. Each figure is the median of five measurements of
    `torch.utils.benchmark`, in turns, with one thread. None where the compiler raises an error.
    """
    with contextlib.ExitStack() as stack:
        calls = {
            "eager": called_again(subject, subject.unchanged, stack, None),
            "without": called_again(subject, subject.unchanged, stack, "inductor"),
            "with": called_again(subject, subject.compilable, stack, "inductor"),
        }
        found: dict[str, list[float]] = {name: [] for name, call in calls.items() if call}
        for _ in range(ROUNDS):
            for name, times in found.items():
                timer = Timer("call()", globals={"call": calls[name]})
                times.append(timer.blocked_autorange(min_run_time=ROUND_SECONDS).median)
    return {name: median(found[name]) if name in found else None for name in calls}


def called_again(
    subject: ScriptSubject,
    fix: Callable[..., Any],
    stack: contextlib.ExitStack,
    backend: str | None,
) -> Callable[[], Any] | None:
    """Return a model as a call that can be repeated, compiled by two calls; None if that fails.

    The fix stays in force until the stack ends, as in a program that makes many calls within it.
    """
    model = subject.build(0)
    args, kwargs = arguments(subject, SHAPES[0], 0)
    options: dict[str, Any] = {}
    torch._dynamo.reset()
    args, kwargs = stack.enter_context(fix(model, args, kwargs, options))
    run = model if backend is None else torch.compile(model, backend=backend, **options)
    call = partial(one_call, subject, run, args, kwargs)
    try:
        call()
        call()
    except Exception:  # noqa: BLE001  (the compiler's; the model as it is may not compile)
        return None
    return call


def one_call(
    subject: ScriptSubject, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with torch.set_grad_enabled(subject.train):
        output = run(*args, **kwargs)
    if subject.train and (loss := loss_of(output)) is not None:
        loss.backward()
