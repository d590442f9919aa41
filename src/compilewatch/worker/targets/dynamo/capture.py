"""One capture by Dynamo, with everything it says about it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import eval_frame, guards
from torch._dynamo.exc import get_stack_above_dynamo
from torch._dynamo.utils import counters
from torch._guards import CompileContext, TracingContext
from torch._logging._internal import LazyTraceHandler, TorchLogsFormatter, trace_log

from compilewatch.contract.failures import causes
from compilewatch.records import StackFrame
from compilewatch.worker.targets.dynamo.graph_breaks import (
    BreakLog,
    BreakReport,
    reason_in,
    stack_frame,
    user_stack,
)

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

_BREAK_ARTIFACT = "dynamo_graph_break_reason"
_CONVERT_FRAME_LOGGER = "torch._dynamo.convert_frame"
_GIVEN_UP = re.compile(r"WON'T CONVERT (?P<function>\S+) (?P<file>.+) line (?P<line>\d+)\s")
"""The first line of `format_error_msg` (torch/_dynamo/exc.py)."""


@dataclass
class Capture:
    """What one capture gave. `graph_ops` counts the call_function nodes of each graph.

    Their sum is `ops`, as `explain` has it.
    `guards` counts those of frames that have a graph, as `explain` does. `frames` are the compile
    ids of the frames that Dynamo began to trace, `captured` those of the graphs, each in order;
    `skip_reasons` are of frames it left alone, in its words.
    """

    graph_ops: list[int] = field(default_factory=list)
    guards: int = 0
    captured: list[str] = field(default_factory=list)
    log: BreakLog = field(default_factory=BreakLog)
    frames: list[str] = field(default_factory=list)
    skip_reasons: tuple[str, ...] = ()

    @property
    def graphs(self) -> int:
        return len(self.captured)

    @property
    def ops(self) -> int:
        return sum(self.graph_ops)

    @property
    def whole(self) -> bool:
        """The model's own frame became the one graph, and nothing was cut or given up.

        Python code that the compiled frame calls may be traced after it, and give no graph.
        """
        return self.captured == self.frames[:1] != [] and not self.log.breaks()

    @property
    def alone(self) -> bool:
        """No other frame was traced: under `fullgraph=True`, one that is raises."""
        return len(self.frames) == 1


def capture(
    call: Callable[[Callable[..., Any]], None],
    module: torch.nn.Module,
    *,
    backend: Backend,
    dynamic: bool,
    trace_folder: Path | None = None,
) -> Capture:
    """Compile `module` as `torch.compile(module, backend=backend)` does and let `call` call it.

    The numbers are those of `torch._dynamo.explain`, which is the same call with a backend that
    counts; it takes neither `dynamic` nor a backend of ours. With `trace_folder` the structured
    trace is also written there, as with `TORCH_TRACE`. What the compiler raises propagates.
    """
    found = Capture()

    def recorder(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compile_id = str(CompileContext.current_compile_id())
        found.captured.append(compile_id)
        found.graph_ops.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        reason: Any = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            found.log.broken_graphs.add(compile_id)
        return backend(graph, example_inputs)

    def count_guards(exported: Any) -> None:
        found.guards += len(exported)

    recorder.__name__ = getattr(backend, "__name__", "backend")  # torch's messages name it
    torch._dynamo.reset()
    counters.clear()
    optimized = torch._dynamo.optimize(
        recorder, guard_export_fn=count_guards, dynamic=dynamic or None
    )(module)
    with _listening(found), _written(trace_folder):
        call(optimized)
    return found


@contextmanager
def unmeasured_guards() -> Iterator[None]:
    """Have Dynamo not time the guards of each frame: it flushes the CPU's caches for it.

    That costs 24 ms a frame (torch 2.13), disturbs whatever runs beside it, and yields a figure in
    torch's own metrics only. The guards are built and checked as ever.
    """
    measure = getattr(guards, "profile_guard_manager", None)
    if measure is None:
        yield
        return
    guards.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        guards.profile_guard_manager = measure


@contextmanager
def _listening(found: Capture) -> Iterator[None]:
    """Hear the structured trace and the frames given up; read the counters at the end."""
    listener = _TraceListener(found)
    give_ups = _GiveUps(found.log)
    logger = logging.getLogger(_CONVERT_FRAME_LOGGER)
    level = logger.level
    # torch 2.9 keeps no record of why Dynamo left a frame alone; 2.13 and later do.
    getattr(eval_frame, "reset_skip_reasons", lambda: None)()
    trace_log.addHandler(listener)
    logger.setLevel(logging.INFO)
    logger.addFilter(give_ups)
    try:
        yield
    finally:
        logger.removeFilter(give_ups)
        logger.setLevel(level)
        trace_log.removeHandler(listener)
        frames = counters["frames"]
        found.log.frames_given_up = frames["total"] - frames["ok"]
        found.log.cuts_counted = sum(counters["graph_break"].values())
        found.skip_reasons = tuple(getattr(eval_frame, "get_skip_reasons", tuple)())


@contextmanager
def _written(folder: Path | None) -> Iterator[None]:
    """Write the structured trace to a file in `folder`, by torch's own handler."""
    if folder is None:
        with nullcontext():
            yield
        return
    handler = LazyTraceHandler(str(folder.resolve()))
    handler.setFormatter(TorchLogsFormatter(trace=True))
    trace_log.addHandler(handler)
    try:
        yield
    finally:
        trace_log.removeHandler(handler)
        handler.close()


class _TraceListener(logging.Handler):
    """Takes breaks and traced frames out of the structured trace."""

    def __init__(self, found: Capture) -> None:
        super().__init__(logging.DEBUG)
        self._found = found
        self._function = ""

    def emit(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if "dynamo_start" in metadata:
            self._found.frames.append(compile_id)
            self._function = metadata["dynamo_start"]["stack"][-1]["name"]
        elif metadata.get("artifact", {}).get("name") == _BREAK_ARTIFACT:
            payload = str(getattr(record, "payload", ""))
            self._found.log.add(_report(compile_id, payload, self._function))


def _report(compile_id: str, payload: str, function: str) -> BreakReport:
    """What is being reported right now, with the stack as torch has it.

    Torch reports a break while it handles the exception, which then has the stack; a data-dependent
    jump is reported where it is met, so the tracer's own stack is the one. `function` is the frame
    being compiled: by now torch may have given a resume function another name.
    """
    error = sys.exc_info()[1]
    inside = getattr(error, "real_stack", None)
    if inside is None:
        error, inside = None, TracingContext.extract_stack()
    frames = list(inside)
    if frames:
        root = frames[0]
        frames[0] = FrameSummary(root.filename, root.lineno, function, line=root.line)
    reason = reason_in(payload)
    return BreakReport(
        compile_id=compile_id,
        reason=reason,
        stack=user_stack([*get_stack_above_dynamo(), *frames]) or _frame_given_up(reason),
        exceptions=type_names(error),
    )


class _GiveUps(logging.Filter):
    """Hears `ConvertFrame` say that a frame runs in eager mode, and why; lets only warnings out."""

    def __init__(self, log: BreakLog) -> None:
        super().__init__()
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        message = str(record.msg)
        if error is not None and _GIVEN_UP.match(message):
            self._log.give_ups_reported += 1
            compile_id = str(getattr(error, "compile_id", f"?/{self._log.give_ups_reported}"))
            if compile_id not in self._log.reports:
                self._log.add(_give_up(compile_id, error, message))
        return record.levelno >= logging.WARNING


def _give_up(compile_id: str, error: BaseException, message: str) -> BreakReport:
    """A frame that failed outside the tracer; where no stack says more, its place is the frame."""
    return BreakReport(
        compile_id=compile_id,
        reason=str(getattr(error, "msg", None) or error),
        stack=user_stack(getattr(error, "real_stack", None) or ()) or _frame_given_up(message),
        exceptions=type_names(error),
    )


def _frame_given_up(message: str) -> tuple[StackFrame, ...]:
    frame = _GIVEN_UP.match(message)
    if frame is None:
        return ()
    return (stack_frame(frame["file"], int(frame["line"]), frame["function"]),)


def type_names(error: BaseException | None) -> tuple[str, ...]:
    """The types of an exception and of its causes, outermost first."""
    return tuple(type(cause).__name__ for cause in causes(error)) if error is not None else ()
