"""The four functions of torch that are replaced to save time, and why no verdict depends on them.

Each saves at least 4 % of a capture's CPU time alone (docs/plain-torch.md). None has an effect on
what is captured.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from traceback import FrameSummary, StackSummary
from types import FrameType
from typing import Any

from torch._dynamo import config, exc, symbolic_convert
from torch._logging._internal import log_state
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.contract.messages import PLAIN_TORCH

_LOGS_WITH_NAMES = ("trace_call", "trace_source")
_DYNAMO = "convert_frame"


def take() -> None:
    """Take the shortcuts. Called once in a process, before its first capture."""
    if os.environ.get(PLAIN_TORCH, "0") not in ("", "0"):
        return
    name_no_functions()
    read_verbosity_once()
    share_operators()
    examine_only_frames_above_dynamo()


def name_no_functions() -> None:
    """Do not look for the names of functions, which only two debugging logs contain.

    Dynamo tokenizes the source file of each node in a graph for them
    (`InstructionTranslatorBase.get_line_of_code_header`, torch 2.9 to 2.15), also if those logs
    are off. With `TORCH_LOGS=trace_call` or `trace_source`, nothing is changed.
    """
    if not any(log_state.is_artifact_enabled(log) for log in _LOGS_WITH_NAMES):
        _replace(symbolic_convert, "get_funcname", lambda *_: None)


def read_verbosity_once() -> None:
    """Make `config.verbose` a plain attribute: Dynamo reads it at each bytecode instruction.

    Dynamo's configuration computes a value at each access (torch 2.13 to 2.15).
    TORCHDYNAMO_VERBOSE still works.
    """
    vars(config)["verbose"] = config.verbose


def share_operators() -> None:
    """Let all fake modes of a process share what they computed for sizes that are numbers.

    A fake mode looks an operator up by its inputs, and also by the settings of its shape
    environment (`FakeTensorMode._cache_key`, torch 2.9 to 2.15). What runs between the graphs has
    none, and Dynamo's tracer has one, so that both computed every operator. Where a size is a
    symbol, torch keeps a result in that symbol's shape environment, whose settings never change.
    Elsewhere they do not matter: torch does not keep a result that depends on data or has a symbol
    that its inputs lack.
    """
    original = getattr(FakeTensorMode, "_cache_key", None)
    if original is None:  # another torch
        return

    def cache_key(
        self: FakeTensorMode,
        state: Any,
        func: Any,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Any:
        if not isinstance(func, OpOverload):
            return original(self, state, func, args, kwargs)
        shape_env, self.shape_env = self.shape_env, None
        try:
            return original(self, state, func, args, kwargs)
        finally:
            self.shape_env = shape_env

    FakeTensorMode._cache_key = cache_key


def examine_only_frames_above_dynamo() -> None:
    """Read the positions only of those frames that `get_stack_above_dynamo` returns.

    Torch reads them for all frames of Dynamo, too, of which `filter_stack` drops everything from
    `convert_frame` on (torch/_dynamo/exc.py, torch 2.13 to 2.15).
    """
    _replace(exc, "_extract_stack_with_positions", _stack_above_dynamo)


def _stack_above_dynamo() -> StackSummary:
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    stack = StackSummary()
    for outer in reversed(frames):
        if _DYNAMO in outer.f_code.co_filename:
            break
        stack.append(_summary(outer))
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
