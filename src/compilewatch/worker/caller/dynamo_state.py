"""Dynamo's state in a process that has compiled models of its own, and will compile more.

`torch._dynamo.reset()` starts anew, but for the complete process: every compiled model of the
caller would be compiled again at its next call, and their CUDA graphs and tables of kernels would
be gone. Here Dynamo starts anew for one model only:

- Dynamo keeps compiled code, and its decision to skip a function, with the function's code object.
  Functions that it has seen get a copy of their code, which has neither, until the end; the code of
  others is forgotten at the end.
- Tables and counters are emptied, and filled again at the end.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import callback, code_context, convert_frame, eval_frame, pgo, utils
from torch._dynamo.resume_execution import ContinueExecutionCache

_TABLES: tuple[tuple[Any, str], ...] = (
    (utils, "counters"),
    (utils, "guard_failures"),
    (utils, "graph_break_reasons"),
    (utils, "compilation_time_metrics"),
    (utils, "cumulative_time_spent_ns"),
    (utils, "warn_once_cache"),
    (utils, "_compilation_metrics"),
    (convert_frame, "FRAME_COMPILE_COUNTER"),
    (eval_frame, "cached_backends"),
    (callback.callback_handler, "start_callbacks"),
    (callback.callback_handler, "end_callbacks"),
)
"""Containers that are emptied in place, since other modules of torch hold the same objects.

Callbacks are emptied too: the caller's are about compilations of their own.
"""

_WEAK_TABLES: tuple[tuple[Any, str], ...] = (
    (ContinueExecutionCache, "cache"),
    (ContinueExecutionCache, "generated_code_metadata"),
    (code_context.code_context, "code_context"),
)

_VALUES: tuple[tuple[Any, str], ...] = (
    (convert_frame, "FRAME_COUNTER"),
    (convert_frame, "input_codes"),
    (convert_frame, "output_codes"),
    (utils, "curr_frame"),
    (pgo, "_CODE_STATE"),
    (pgo, "_INIT_CODE_STATE"),
    (pgo, "_LOGGED_DYNAMIC_ALLOWLIST"),
)
"""Attributes of torch's modules that hold state, not code."""


@contextmanager
def apart() -> Iterator[Callable[[], None]]:
    """Let Dynamo start anew, and restore its state at the end.

    Yields a function that forgets what has been compiled since. Tables that this version of torch
    does not have are left out.
    """
    tables = [(getattr(o, name), _content(getattr(o, name))) for o, name in _there(_TABLES)]
    weak = [(o, name, getattr(o, name)) for o, name in _there(_WEAK_TABLES)]
    values = [(o, name, getattr(o, name)) for o, name in _there(_VALUES)]
    seen = _codes(convert_frame.input_codes)

    def forget() -> None:
        for tracker in (convert_frame.input_codes, convert_frame.output_codes):
            for code in _codes(tracker):
                eval_frame.reset_code(code)
            tracker.clear()
        for table, _ in tables:
            table.clear()
        for owner, name, kept in weak:
            setattr(owner, name, type(kept)())
        pgo.reset_code_state()
        convert_frame.FRAME_COUNTER = 0

    with _fresh_code(seen):
        for owner, name, value in values:
            if isinstance(value, convert_frame.Tracker):
                setattr(owner, name, convert_frame.Tracker())
        forget()
        try:
            with torch.compiler.set_stance("default"):
                yield forget
        finally:
            forget()
            for owner, name, value in (*weak, *values):
                setattr(owner, name, value)
            for table, content in tables:
                (table.update if isinstance(table, dict | set) else table.extend)(content)


def _there(table: tuple[tuple[Any, str], ...]) -> Iterator[tuple[Any, str]]:
    return ((owner, name) for owner, name in table if hasattr(owner, name))


def _content(table: Any) -> Any:
    """The content of a container, with copies of the containers in it."""
    if isinstance(table, dict):
        nested = isinstance(next(iter(table.values()), None), dict | list)
        return {key: type(v)(v) if nested else v for key, v in table.items()}
    return list(table)


def _codes(tracker: Any) -> list[types.CodeType]:
    return [code for ref in tracker.seen if (code := ref()) is not None]


@contextmanager
def _fresh_code(seen: list[types.CodeType]) -> Iterator[None]:
    """Give all functions with one of these codes an equal code that Dynamo has not seen.

    Code of functions that exist no more, or only inside the code of another one, is left.
    """
    if not seen:
        yield
        return
    copies = {id(code): (code, code.replace()) for code in seen}
    changed: list[tuple[types.FunctionType, types.CodeType]] = []
    for function_seen in gc.get_referrers(*seen):
        if isinstance(function_seen, types.FunctionType) and id(function_seen.__code__) in copies:
            code, copy = copies[id(function_seen.__code__)]
            changed.append((function_seen, code))
            function_seen.__code__ = copy
    try:
        yield
    finally:
        for function, code in changed:
            function.__code__ = code
