"""Shortcuts through torch: work that nobody reads, or whose result is always the same.

Each function replaces one attribute of torch, if this torch has it. None has an effect on what is
captured.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from traceback import FrameSummary, StackSummary
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
import torch.fx
from torch._decomp import decompositions_for_rng
from torch._dynamo import config, exc, output_graph, symbolic_convert, utils
from torch._dynamo.variables import builder
from torch._logging._internal import log_state
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule

from compilewatch.worker.process.operator_keys import describe_tensors_at_once, share_operators
from compilewatch.worker.process.stack_text import (
    format_each_place_once,
    keep_each_text_once,
)

_LOGS_WITH_NAMES = ("trace_call", "trace_source")
_UNREAD_RECORDS = "describe_"
_DYNAMO = "convert_frame"


PLAIN = "COMPILEWATCH_PLAIN_TORCH"
"""If this variable is set and not `0`, nothing of torch is replaced."""


def take(names: Iterable[str] | None = None) -> None:
    """Take the shortcuts that hold for each process. Called once, before its first capture.

    `names` of functions of this module are for measurements; the default is all of them.
    """
    if os.environ.get(PLAIN, "0") not in ("", "0"):
        return
    for shortcut in for_each_process():
        if names is None or shortcut.__name__ in names:
            shortcut()


def read_verbosity_once() -> None:
    """Make `config.verbose` a plain attribute: Dynamo reads it at each bytecode instruction.

    Dynamo's configuration computes a value at each access (torch 2.13), which takes 3 % of a
    capture for this value alone. TORCHDYNAMO_VERBOSE still works.
    """
    vars(config)["verbose"] = config.verbose


def name_no_functions() -> None:
    """Do not look for the names of functions, which only two debugging logs contain.

    Dynamo tokenizes the source file of each node in a graph for them
    (`InstructionTranslatorBase.get_line_of_code_header`, torch 2.9 to 2.15), also if those logs
    are off. With `TORCH_LOGS=trace_call` or `trace_source`, nothing is changed.
    """
    if not any(log_state.is_artifact_enabled(log) for log in _LOGS_WITH_NAMES):
        _replace(symbolic_convert, "get_funcname", lambda *_: None)


def describe_no_tensors() -> None:
    """Leave the records `describe_*` out of the structured trace.

    They are half of a trace's records. tlparse makes nothing of them, and no target reads them.
    """
    trace = meta_utils.trace_structured

    def trace_others(name: str, *args: Any, **options: Any) -> None:
        if not name.startswith(_UNREAD_RECORDS):
            trace(name, *args, **options)

    _replace(meta_utils, "trace_structured", trace_others)


def record_no_events() -> None:
    """Leave the events `chromium_event`, the times of a compilation's steps, out of the trace.

    They are three quarters of its records and a tenth of its bytes. Such times are not those of a
    compiler in use: graphs are captured on fake tensors and reduced, and no code is generated
    (`ChromiumEventLogger`, torch 2.9 to 2.15).
    """
    _replace(utils.ChromiumEventLogger, "_log_timed_event", lambda *_, **__: {})


def make_no_states_of_generators() -> None:
    """Let AOTAutograd share one empty tensor where it makes twelve for each graph.

    They stand for states of random number generators, and are only read if operators that draw
    random numbers are made functional (`functionalize_rng_ops`), which replaces them first
    (`PhiloxState`, torch 2.9 to 2.15).
    """
    empty = torch.tensor(())

    def reset(state: Any) -> None:
        state.seed = state.base_offset = empty
        state.relative_offset = 0
        state.offset_advanced_at_least_once = False

    _replace(decompositions_for_rng.PhiloxState, "reset", reset)


def examine_only_frames_above_dynamo() -> None:
    """Read the positions only of those frames that `get_stack_above_dynamo` returns.

    Torch reads them for all frames of Dynamo, too, of which `filter_stack` drops everything from
    `convert_frame` on (torch/_dynamo/exc.py, torch 2.13 to 2.15).
    """
    _replace(exc, "_extract_stack_with_positions", _stack_above_dynamo)


def generate_no_code_for_assertions() -> None:
    """Let Dynamo add assertions to a graph without generating and compiling code for it.

    For `insert_deferred_runtime_asserts` it makes a `GraphModule` that nothing calls, beside that
    of the backend (`OutputGraph.compile_and_call_fx_graph`, torch 2.9 to 2.15). Python's compiler
    takes 60 MiB for the code of 6,000 operators.
    """
    names = ModuleType("torch.fx")
    vars(names).update(vars(torch.fx), GraphModule=_CompiledWhenCalled)
    _replace(output_graph, "fx", names)


class _LazilyCompiled(type):
    """The type of `_CompiledWhenCalled`, of which every graph module is an instance."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return _LazyGraphModule(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.fx.GraphModule)


class _CompiledWhenCalled(metaclass=_LazilyCompiled):
    """Makes graph modules whose code is generated at their first call."""


def define_classes_once() -> None:
    """Let `VariableBuilder._wrap` define its classes at its first call only.

    Without a GPU it defines three empty classes in place of Triton's at each call (torch 2.15),
    which takes a hundredth of a capture. The function gets a `__build_class__` of its own, as
    Python takes it from the globals that a function is created with.
    """
    wrap = getattr(builder.VariableBuilder, "_wrap", None)
    if not isinstance(wrap, FunctionType):
        return
    defined: dict[str, type] = {}
    build = builtins.__build_class__

    def build_once(body: Callable[[], Any], name: str, *bases: Any, **options: Any) -> Any:
        if bases or options or getattr(body, "__closure__", None):
            return build(body, name, *bases, **options)
        if name not in defined:
            defined[name] = build(body, name)
        return defined[name]

    names = wrap.__globals__
    own = names["__builtins__"]
    names["__builtins__"] = {**vars(builtins), "__build_class__": build_once}
    try:
        made = FunctionType(
            wrap.__code__, names, wrap.__name__, wrap.__defaults__, wrap.__closure__
        )
    finally:
        names["__builtins__"] = own
    made.__kwdefaults__, made.__qualname__ = wrap.__kwdefaults__, wrap.__qualname__
    builder.VariableBuilder._wrap = made


def examine_each_class_once() -> None:
    """Let `inspect.getattr_static`, which Dynamo calls for most attributes, examine a class once.

    Python 3.12 and later remember themselves whether a class has a `__dict__` of its own.
    """
    if sys.version_info >= (3, 12):
        return
    python: Any = inspect
    examine = python._shadowed_dict
    known: dict[int, tuple[type, Any]] = {}  # a class may not be hashable; kept, its id is its own

    def examine_once(class_: type) -> Any:
        if id(class_) not in known:
            known[id(class_)] = (class_, examine(class_))
        return known[id(class_)][1]

    python._shadowed_dict = examine_once


def ask_once_for_devices() -> None:
    """Let fake modes ask once whether a device may be initialised, instead of at each entry.

    A CUDA build calls the driver each time. For processes that declare no device, which would make
    another one available.
    """
    if os.environ.get(PLAIN, "0") not in ("", "0"):
        return
    avoids = FakeTensorMode(allow_non_fake_inputs=True).avoid_device_init
    _replace(FakeTensorMode, "avoid_device_init", avoids)


def _stack_above_dynamo() -> StackSummary:
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    stack = StackSummary()
    for each in reversed(frames):
        if _DYNAMO in each.f_code.co_filename:
            break
        stack.append(_summary(each))
    return stack


def _summary(frame: FrameType) -> FrameSummary:
    code = frame.f_code
    positions = islice(code.co_positions(), frame.f_lasti // 2, None)
    line, end_line, column, end_column = next(positions, (None, None, None, None))
    return FrameSummary(
        code.co_filename,
        frame.f_lineno if line is None else line,
        code.co_name,
        lookup_line=False,
        end_lineno=end_line,
        colno=column,
        end_colno=end_column,
    )


def _replace(owner: Any, name: str, replacement: Any) -> None:
    if hasattr(owner, name):
        setattr(owner, name, replacement)


def for_each_process() -> tuple[Callable[[], None], ...]:
    """Return the functions that replace something for each process, in order."""
    return (
        read_verbosity_once,
        name_no_functions,
        describe_no_tensors,
        record_no_events,
        make_no_states_of_generators,
        examine_only_frames_above_dynamo,
        format_each_place_once,
        keep_each_text_once,
        generate_no_code_for_assertions,
        share_operators,
        describe_tensors_at_once,
        define_classes_once,
        examine_each_class_once,
    )
