"""Why a lazy graph of XLA ends early: operators that run outside XLA, and values that are read.

An operator without a lowering runs on the CPU: everything pending is compiled and executed, the
operands are copied to the CPU, and the result enters the next graph as data. torch_xla counts these
operators (`aten::…`) but not where they are; a second run, watched operator by operator, shows it.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable
from traceback import FrameSummary
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compilewatch.records import GraphBreak, Record, StackFrame
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.graph_breaks import (
    UNKNOWN,
    graph_break,
    merge,
    place_of,
    user_stack,
)
from compilewatch.worker.targets.dynamo.reasons import UNATTRIBUTED, BreakCause
from compilewatch.worker.targets.execution import forward
from compilewatch.worker.targets.xla import device as xla_device
from compilewatch.worker.targets.xla.isolation import Enter

FALLBACK = "xla_fallback"
VALUE_READ = "xla_value_read"
GRAPH_CUT = "xla_graph_cut"

VALUE_READS = frozenset({"aten::_local_scalar_dense", "aten::equal"})
"""Operators that return a Python value: it is not a tensor, so no graph can contain it."""

_TORCH = ("torch/", "torch_xla/")
_TRACEBACK = "traceback_"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)


class Watched(Record, frozen=True, kw_only=True):
    """The graph breaks of one watched call, each with its place."""

    breaks: tuple[GraphBreak, ...]


def watch(subject: Subject, _enter: Enter) -> Watched:
    """Run one call and record the line of each fallback and cut; a step for `isolated`.

    In the backward pass, the line is that of the forward operator.
    """
    placed = xla_device.on_device(subject)
    watcher = _Watcher()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), watcher:
        forward(placed, placed.module, placed.inputs)
    return Watched(breaks=merge(watcher.breaks))


def settle(
    watched: Iterable[GraphBreak], fallbacks: dict[str, int], executions: int
) -> tuple[GraphBreak, ...]:
    """Return the graph breaks that the counts of the unwatched call prove.

    Fallbacks are as watched; those that the watched run did not show have no place. Cuts have no
    counter of their own: they are as watched, and if graphs ran for no known reason, that is one.
    """
    left = Counter(fallbacks)
    settled = []
    for seen in watched:
        count = seen.occurrences
        if seen.gb_type is not None:
            count = min(count, left[seen.gb_type])
            left[seen.gb_type] -= count
        if count:
            settled.append(msgspec.structs.replace(seen, occurrences=count))
    settled += [unattributed(name, count) for name, count in left.items() if count > 0]
    if executions and not settled:
        settled.append(unattributed(None, executions))
    return tuple(settled)


class _Watcher(TorchDispatchMode):  # type: ignore[misc]
    """Compares torch_xla's counters before and after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks: list[GraphBreak] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before, ran = xla_device.fallbacks(), xla_device.executions()
        result = func(*args, **(kwargs or {}))
        after = Counter(xla_device.fallbacks())
        outside = after - Counter(before)
        stack = _stack() if outside or xla_device.executions() > ran else ()
        for name, count in outside.items():
            self.breaks += [_break(name, stack)] * count
        if stack and not outside:
            self.breaks.append(_cut(str(func), stack))
        return result


def _break(name: str, stack: tuple[StackFrame, ...]) -> GraphBreak:
    code, reason = (
        FALLBACK,
        (
            f"{name} has no lowering to XLA: it ran on the CPU, which ends the graph there and "
            "makes its result data of these inputs."
        ),
    )
    if name in VALUE_READS:
        code, reason = (
            VALUE_READ,
            (
                f"{name} returns a value to Python (.item(), a condition, a comparison): the graph "
                "ends there, and what follows is valid for these inputs only."
            ),
        )
    return graph_break(BreakCause(code=code, gb_type=name), reason, _place(stack), stack)


def _cut(name: str, stack: tuple[StackFrame, ...]) -> GraphBreak:
    reason = f"{name} needed values, for example on the CPU: everything pending ran first."
    return graph_break(BreakCause(code=GRAPH_CUT), reason, _place(stack), stack)


def unattributed(name: str | None, count: int) -> GraphBreak:
    """Return graph breaks that torch_xla's counters prove without a place, for one operator."""
    place = StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)
    what = name or "graphs besides the expected one"
    reason = f"torch_xla counted this break ({what}), but a second run did not show where."
    one = graph_break(BreakCause(code=UNATTRIBUTED, gb_type=name), reason, place)
    return msgspec.structs.replace(one, occurrences=count)


def _place(stack: tuple[StackFrame, ...]) -> StackFrame:
    """Return the model's innermost line, because its author cannot change torch below it."""
    return place_of([frame for frame in stack if not frame.file.startswith(_TORCH)] or stack)


def _stack() -> tuple[StackFrame, ...]:
    """Return the model's stack, outermost first; in backward that of the forward operator."""
    node = torch._C._current_autograd_node()
    recorded = node.metadata.get(_TRACEBACK) if node is not None else None
    frames: Iterable[FrameSummary] = traceback.extract_stack()[:-2]
    if recorded:
        text = "".join(recorded)
        frames = [FrameSummary(f["file"], int(f["line"]), f["name"]) for f in _FRAME.finditer(text)]
    return tuple(frame for frame in user_stack(frames) if frame.line)
