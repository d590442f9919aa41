"""One capture by Dynamo, with everything that Dynamo reports about it."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import eval_frame, guards
from torch._dynamo.exc import get_stack_above_dynamo
from torch._dynamo.utils import counters
from torch._guards import CompileContext, TracingContext
from torch._logging._internal import LazyTraceHandler, TorchLogsFormatter, trace_log

from compilewatch.contract.failures import causes, one_line
from compilewatch.records import CaptureFigures, StackFrame
from compilewatch.worker.targets.dynamo.graph_breaks import (
    BreakLog,
    BreakReport,
    reason_in,
    stack_frame,
    user_stack,
)
from compilewatch.worker.targets.dynamo.operators import OperatorCount
from compilewatch.worker.targets.dynamo.settings import NESTED_GRAPH_BREAKS

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

OPERATORS_KEPT = 20
"""Of so many operators that ran eagerly a result has the counts."""

_BREAK_ARTIFACT = "dynamo_graph_break_reason"
_CONVERT_FRAME_LOGGER = "torch._dynamo.convert_frame"
_CONVERT_FRAME = "torch/_dynamo/convert_frame.py"
_TRACE_WRITER = "torch/_logging/"
_GIVEN_UP = re.compile(r"WON'T CONVERT (?P<function>\S+) (?P<file>.+) line (?P<line>\d+)\s")
"""The first line of `format_error_msg` (torch/_dynamo/exc.py)."""


@dataclass
class Capture:
    """The result of one capture.

    `graph_ops` counts the call_function nodes of each graph, `ops` those of all graphs.
    `guards` counts the guards of frames with a graph; both counts are as in `explain`. `frames` are
    the compile ids of the frames that Dynamo started to trace, `captured` those of the graphs, each
    in order; `skip_reasons` are Dynamo's reasons for frames that it skipped. `operators` counted
    what ran inside the graphs and outside of them, where counting was requested. `second` is what a
    second call met, and `second_error` the exception that ended it.
    """

    graph_ops: list[int] = field(default_factory=list)
    guards: int = 0
    captured: list[str] = field(default_factory=list)
    log: BreakLog = field(default_factory=BreakLog)
    frames: list[str] = field(default_factory=list)
    skip_reasons: tuple[str, ...] = ()
    operators: OperatorCount | None = None
    nested_graph_breaks: bool | None = None
    second: Capture | None = None
    second_error: str = ""

    @property
    def graphs(self) -> int:
        return len(self.captured)

    @property
    def ops(self) -> int:
        return sum(self.graph_ops)

    @property
    def is_single_graph(self) -> bool:
        """Whether the model's own frame became the only graph, with no break or fallback to eager.

        Python code that the compiled frame calls may be traced afterwards, without a graph.
        """
        return self.captured == self.frames[:1] != [] and not self.log.breaks()

    @property
    def is_empty(self) -> bool:
        """Whether the call ran no operation at all, inside a graph or outside."""
        count = self.operators
        return not self.captured and count is not None and count.captured + count.eager.total() == 0

    @property
    def figures(self) -> CaptureFigures:
        """The operators and frames of this capture; see `records.CaptureFigures`."""
        eager = self.operators.eager if self.operators is not None else Counter[str]()
        return CaptureFigures(
            operators_captured=self.operators.captured if self.operators is not None else None,
            operators_eager=eager.total() if self.operators is not None else None,
            frames_compiled=len({frame_of(compile_id) for compile_id in self.captured}),
            frames_skipped=self.log.frames_given_up,
            recompilations=sum(
                not compile_id.endswith("/0") for compile_id in dict.fromkeys(self.frames)
            ),
            eager_operators=dict(eager.most_common(OPERATORS_KEPT)),
            nested_graph_breaks=self.nested_graph_breaks,
        )

    @property
    def alone(self) -> bool:
        """Whether no other frame was traced; under `fullgraph=True`, another frame raises."""
        return len(self.frames) == 1


def capture(
    call: Callable[[Callable[..., Any]], None],
    module: torch.nn.Module,
    *,
    backend: Backend,
    dynamic: bool | None,
    trace_folder: Path | None = None,
    count_operators: bool = False,
    again: Callable[[Callable[..., Any]], None] | None = None,
    forget: Callable[[], None] = torch._dynamo.reset,
) -> Capture:
    """Compile `module` as `torch.compile(module, backend=backend)` does, and let `call` call it.

    With `again`, it is called a second time in that way, and an exception then is only recorded.
    `forget` lets Dynamo forget what it has compiled before.

    The counts are those of `torch._dynamo.explain`, which makes the same call with a backend that
    counts, but accepts neither `dynamic` nor another backend. With the backend `stop`, the capture
    ends with the first graph. With `trace_folder`, the structured trace is also written there, as
    with `TORCH_TRACE`. Exceptions of the compiler propagate.
    """
    first = Capture(operators=OperatorCount() if count_operators else None)
    current = first

    def recorder(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compile_id = str(CompileContext.current_compile_id())
        current.captured.append(compile_id)
        current.graph_ops.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        reason: Any = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            current.log.broken_graphs.add(compile_id)
        compiled = backend(graph, example_inputs)
        return first.operators.graph(compiled) if first.operators is not None else compiled

    def count_guards(exported: Any) -> None:
        current.guards += len(exported)

    recorder.__name__ = getattr(backend, "__name__", "backend")  # torch's messages name it
    forget()
    counters.clear()
    optimized = torch._dynamo.optimize(recorder, guard_export_fn=count_guards, dynamic=dynamic)(
        module
    )
    with _listening(first), _written(trace_folder):
        first.nested_graph_breaks = getattr(torch._dynamo.config, NESTED_GRAPH_BREAKS, None)
        try:
            call(first.operators.counted(optimized) if first.operators is not None else optimized)
        except Stopped:
            first.log.frames_excluded += 1
            first.operators = None  # nothing ran behind the first graph
            again = None
    if again is None:
        return first
    counters.clear()
    first.second = current = Capture()
    with _listening(current):
        try:
            again(optimized)
        except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
            first.second_error = one_line(error)
    return first


def frame_of(compile_id: str) -> str:
    """Return the frame's part of a compile id, which is the same for each recompilation."""
    return compile_id.rpartition("/")[0]


class Stopped(BaseException):
    """Ends a capture when the first graph is there; not an Exception, which Dynamo would wrap."""


def stop(_graph: torch.fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
    """A backend that ends the capture."""
    raise Stopped


@contextmanager
def unmeasured_guards() -> Iterator[None]:
    """Keep Dynamo from timing the guards of each frame, for which it flushes the CPU's caches.

    That costs 24 ms per frame (torch 2.13), disturbs other processes, and only affects a figure in
    torch's own metrics. Guards are built and checked as usual.
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
def _listening(record: Capture) -> Iterator[None]:
    """Collect the structured trace and the frames that Dynamo gave up; finally read counters."""
    listener = _TraceListener(record)
    give_ups = _GiveUps(record.log)
    logger = logging.getLogger(_CONVERT_FRAME_LOGGER)
    level = logger.level
    # torch 2.9 does not record why Dynamo skipped a frame; 2.13 and later do.
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
        record.log.frames_given_up = frames["total"] - frames["ok"] - record.log.frames_excluded
        record.log.cuts_counted = sum(counters["graph_break"].values()) - record.log.cuts_excluded
        record.skip_reasons = tuple(getattr(eval_frame, "get_skip_reasons", tuple)())


@contextmanager
def _written(folder: Path | None) -> Iterator[None]:
    """Write the structured trace to a file in `folder`, with torch's own handler."""
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
    """Extracts graph breaks and traced frames from the structured trace."""

    def __init__(self, captured: Capture) -> None:
        super().__init__(logging.DEBUG)
        self._found = captured
        self._function = ""

    def emit(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        is_break = metadata.get("artifact", {}).get("name") == _BREAK_ARTIFACT
        if writes_the_trace():
            self._found.log.cuts_excluded += is_break
        elif "dynamo_start" in metadata:
            self._found.frames.append(compile_id)
            self._function = metadata["dynamo_start"]["stack"][-1]["name"]
        elif is_break:
            payload = str(getattr(record, "payload", ""))
            self._found.log.add(_report(compile_id, payload, self._function))


def _report(compile_id: str, payload: str, function: str) -> BreakReport:
    """Return the graph break that is being reported, with torch's stack.

    Torch reports a graph break while it handles the exception, which then has the stack. It reports
    a data-dependent jump where it occurs, so the stack is the tracer's own. `function` is the frame
    being compiled: torch may have renamed a resume function by now.
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
    """Records that a frame runs in eager mode, from `ConvertFrame`'s log; only passes warnings."""

    def __init__(self, log: BreakLog) -> None:
        super().__init__()
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        message = str(record.msg)
        if error is None or not _GIVEN_UP.match(message):
            return record.levelno >= logging.WARNING
        if writes_the_trace():
            self._log.frames_excluded += 1
        else:
            self._log.give_ups_reported += 1
            compile_id = str(getattr(error, "compile_id", f"?/{self._log.give_ups_reported}"))
            if compile_id not in self._log.reports:
                self._log.add(_give_up(compile_id, error, message))
        return record.levelno >= logging.WARNING


def writes_the_trace() -> bool:
    """Whether the frame that Dynamo compiles now writes the structured trace.

    A backward pass that is compiled between two graphs writes it there, and only because something
    listens: to plain PyTorch, these frames do not exist.
    """
    frame: FrameType | None = sys._getframe(1)
    compiling = False
    while frame is not None:
        file = frame.f_code.co_filename
        compiling = compiling or file.endswith(_CONVERT_FRAME)
        if compiling and _TRACE_WRITER in file:
            return True
        frame = frame.f_back
    return False


def _give_up(compile_id: str, error: BaseException, message: str) -> BreakReport:
    """Return the report of a frame that failed outside the tracer; without a stack, its place."""
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
    """Return the types of an exception and of its causes, outermost first."""
    return tuple(type(cause).__name__ for cause in causes(error)) if error is not None else ()
