"""One capture by Dynamo, with everything that Dynamo reports about it.

Counts operators while a compiled model runs: inside its graphs, and eagerly outside of them.

A mode of torch's dispatcher sees every operator that runs. It is torch's own kind of mode that
compilation ignores (`ignore_compile_internals`): torch takes it off the stack while it compiles,
which does not skip frames because of it, and puts it back while the compiled code runs. Graphs
announce themselves, because the backend wraps them. So both counts are of the same call and in the
same unit, and their sum is what plain PyTorch runs, unless the model takes another path or Dynamo
removes dead code.

In train mode only the forward is counted. On fake tensors, the joint graph is not run
(`joint_graph`); its forward operators are counted in the graph instead.

The backends of Dynamo that a capture uses.

`eager` generates Python code for each graph and compiles it, to run it once. Python's compiler
takes 10 KiB for each operator of a graph, 60 MiB for DeepSeek-V3 at full depth. On fake tensors, a
graph is therefore run node by node.

AOTAutograd for the fake tier: traces the joint graph of forward and backward without running it.

AOTAutograd captures loss and backward by tracing them with fake tensors. If the inputs are fake
too, running the result shows nothing that the trace did not, and takes a quarter of the time;
partitioning it into two graphs and compiling those takes another tenth. The two graphs are
therefore reduced to their inputs and to outputs of the right size, stride and dtype.

Code between graphs may read the output of a graph if it depends on known values only
(`worker/model/fake_mode.py`). Only integer and boolean tensors are read in this way, so a graph
that returns one that does not depend on weights runs unchanged.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import FrameSummary
from typing import Any, NoReturn

import msgspec
import torch
import torch._dynamo
from torch._dynamo import eval_frame, guards
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.exc import get_stack_above_dynamo
from torch._dynamo.utils import counters
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext
from torch._logging._internal import LazyTraceHandler, TorchLogsFormatter, trace_log
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compilewatch.contract.failures import causes, one_line
from compilewatch.records import UNATTRIBUTED, CaptureFigures, GraphBreak, Mode, StackFrame
from compilewatch.worker.model import replaced
from compilewatch.worker.model.fake_mode import values_shown
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import FakeUnsupportedError
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo.versions import Versions, writes_the_trace

FORWARD_OPERATORS = "forward_operators"
"""An attribute of a compiled graph that does not run its operators: their number."""

_NOT_COUNTED = ("prim",)
"""The namespace of what asks for a property of a tensor (`prim.device`), and computes nothing."""

_DETACH = torch.ops.aten.detach.default
"""AOTAutograd and autograd run it on what they keep, and it computes nothing."""


class OperatorCount(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it untyped
    """Counts the operators of all calls made through `counted`; see the module.

    Attributes:
        captured: calls of operators inside graphs.
        eager: calls outside of graphs, by operator.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.captured = 0
        self.eager: Counter[str] = Counter()
        self._inside = False
        self._counting = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    # torch 2.9 would compile this function, which is called between two graphs.
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_operator(func):
            if self._inside:
                self.captured += 1
            else:
                self.eager[str(func)] += 1
        return func(*args, **(kwargs or {}))

    def counted(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable that calls `module` and counts."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._counting = True
            try:
                with self:
                    return module(*args, **kwargs)
            finally:
                self._counting = False

        return call

    def graph(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled graph whose operators count as captured, whenever it runs."""
        known: int | None = getattr(compiled, FORWARD_OPERATORS, None)

        def run(*args: Any) -> Any:
            outer, before = self._inside, self.captured
            self._inside = True
            try:
                return compiled(*args)
            finally:
                self._inside = outer
                if known is not None and self._counting:
                    self.captured = before + known

        return run


def is_operator(func: Any) -> bool:
    """Whether a dispatched function counts: no query of a device or of a size, no `detach`."""
    if isinstance(func, OpOverload):
        named = func.namespace not in _NOT_COUNTED and not func._opname.startswith("sym_")
        return named and func is not _DETACH
    return isinstance(func, HigherOrderOperator)


def forward_operators(joint: torch.fx.GraphModule, outputs: int) -> int:
    """Return the number of operators that the first `outputs` outputs of a joint graph depend on.

    The other outputs are gradients. Their operators need not depend on a gradient that comes in:
    the derivative of `sin` needs a `cos`.
    """
    (output,) = joint.graph.find_nodes(op="output")
    return sum(
        node.op == "call_function" and is_operator(node.target)
        for node in _sources(output.args[0][:outputs])
    )


def _sources(nodes: Iterable[object]) -> set[Node]:
    """Return nodes of a graph and all that they depend on."""
    left = [node for node in nodes if isinstance(node, Node)]
    seen: set[Node] = set()
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += node.all_input_nodes
    return seen


NESTED_GRAPH_BREAKS = "nested_graph_breaks"
"""Of `torch._dynamo.config`: compile the functions that a graph break interrupts, not the outermost
one only."""


def has_nested_graph_breaks() -> bool:
    """Whether this torch has the setting."""
    return hasattr(torch._dynamo.config, NESTED_GRAPH_BREAKS)


def nested_graph_breaks(enabled: bool | None) -> AbstractContextManager[Any]:
    """Return the context in which Dynamo compiles with the setting; None leaves torch's default.

    A torch without the setting does what `False` asks for; `True` is checked before.
    """
    if enabled is None or not has_nested_graph_breaks():
        return nullcontext()
    context: AbstractContextManager[Any] = torch._dynamo.config.patch(
        {NESTED_GRAPH_BREAKS: enabled}
    )
    return context


Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

OPERATORS_KEPT = 20
"""Of so many operators that ran eagerly a result has the counts."""

_BREAK_ARTIFACT = "dynamo_graph_break_reason"
_CONVERT_FRAME_LOGGER = "torch._dynamo.convert_frame"
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
    second call met, and `second_error` the exception that ended it. `versions` is what both calls
    compiled.

    `reports` are those of graph breaks by compile id, in order, and `broken_graphs` the compile ids
    whose graph ended in one, according to the graph. The reports are checked with torch's counters:
    `frames_given_up`, total minus ok, and `cuts_counted`. In both, what the backend `stop` ended
    and what writes the trace does not count.
    """

    graph_ops: list[int] = field(default_factory=list)
    guards: int = 0
    captured: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    reports: dict[graph_breaks.CompileId, list[graph_breaks.BreakReport]] = field(
        default_factory=dict
    )
    broken_graphs: set[graph_breaks.CompileId] = field(default_factory=set)
    frames_given_up: int = 0
    give_ups_reported: int = 0
    cuts_counted: int = 0
    skip_reasons: tuple[str, ...] = ()
    operators: OperatorCount | None = None
    nested_graph_breaks: bool | None = None
    second: Capture | None = None
    second_error: str = ""
    versions: Versions = field(default_factory=Versions)

    def add(self, compile_id: graph_breaks.CompileId, report: graph_breaks.BreakReport) -> None:
        self.reports.setdefault(compile_id, []).append(report)

    def missing(self) -> int:
        """Return how many graph breaks the counts contain beyond the reports."""
        unreported_graphs = len(self.broken_graphs - self.reports.keys())
        unreported_frames = max(0, self.frames_given_up - self.give_ups_reported)
        reported = sum(len(reports) for reports in self.reports.values())
        unreported_cuts = max(0, self.cuts_counted - reported)
        return max(unreported_graphs + unreported_frames, unreported_cuts)

    def breaks(self, model: StackFrame | None = None) -> tuple[GraphBreak, ...]:
        """Return one entry per cause and place, in order; the occurrences sum to the total.

        `model` is the place of the model's own frame, for graph breaks that have no other.
        """
        merged = graph_breaks.merge(self._break(compile_id, model) for compile_id in self.reports)
        missing = self.missing()
        if not missing:
            return merged
        reason = "PyTorch's counters show this graph break, but PyTorch reported no reason."
        one = graph_breaks.graph_break(UNATTRIBUTED, reason, graph_breaks.NOWHERE)
        return (*merged, msgspec.structs.replace(one, occurrences=missing))

    def ends(
        self,
        graphs: Iterable[graph_breaks.CompileId],
        breaks: Sequence[GraphBreak],
        model: StackFrame | None,
    ) -> tuple[int, ...]:
        """For each graph, the index of the break (one of `breaks`) that it ended in, or -1."""
        identity = graph_breaks.identity
        places = {identity(entry): index for index, entry in enumerate(breaks)}
        return tuple(
            places.get(identity(self._break(graph, model)), -1) if graph in self.reports else -1
            for graph in graphs
        )

    def _break(self, compile_id: graph_breaks.CompileId, model: StackFrame | None) -> GraphBreak:
        """Combine the reports under one compile id to one graph break.

        The cause comes first. A report without a stack is about handling another one: the frame was
        given up after all. If the stack only has Dynamo's own frame, which is around the model (for
        example if its `forward` is disabled), the place is the model's.
        """
        reports = self.reports[compile_id]
        is_cut = compile_id in self.broken_graphs and reports[-1].stack
        first, *consequences = reports[-1:] if is_cut else reports
        place = graph_breaks.place_of(first.stack)
        if model is not None and place.file.startswith(graph_breaks.DYNAMO):
            place = model
        entry = graph_breaks.classify(first.reason, first.exceptions, place, first.stack)
        if not consequences:
            return entry
        reasons = (first.reason, *(report.reason for report in consequences))
        reason = graph_breaks.stored_reason("\n\nThen, in the same frame: ".join(reasons))
        return msgspec.structs.replace(entry, reason=reason)

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
        return self.captured == self.frames[:1] != [] and not self.breaks()

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
            # A frame's part of a compile id is the same for each recompilation.
            frames_compiled=len({compile_id.rpartition("/")[0] for compile_id in self.captured}),
            frames_skipped=self.frames_given_up,
            eager_operators=dict(eager.most_common(OPERATORS_KEPT)),
            nested_graph_breaks=self.nested_graph_breaks,
        )

    @property
    def proves_fullgraph(self) -> bool:
        """Whether `fullgraph=True` accepts the model, too.

        It differs in how it handles a graph break, a frame without operations, a second traced
        frame, and scalars or shapes that depend on data (which cause a break without it). A capture
        of one frame as a single graph met none of these, so tracing is the same.
        """
        return self.is_single_graph and len(self.frames) == 1


def capture(
    call: Callable[[Callable[..., Any]], None],
    module: torch.nn.Module,
    *,
    backend: Backend,
    dynamic: bool | None,
    trace_folder: Path | None = None,
    count_operators: bool = False,
    again: Callable[[Callable[..., Any], Versions], None] | None = None,
    forget: Callable[[], None] = torch._dynamo.reset,
) -> Capture:
    """Compile `module` as `torch.compile(module, backend=backend)` does, and let `call` call it.

    With `again`, it is called a second time in that way, and an exception then is only recorded;
    `again` also gets the versions, to say there which call it makes.
    `forget` lets Dynamo forget what it has compiled before.

    The counts are those of `torch._dynamo.explain`, which makes the same call with a backend that
    counts, but accepts neither `dynamic` nor another backend. With the backend `stop`, the capture
    ends with the first graph. With `trace_folder`, the structured trace is also written there, as
    with `TORCH_TRACE`. Exceptions of the compiler propagate.
    """
    versions = Versions(dynamic=dynamic)
    first = Capture(operators=OperatorCount() if count_operators else None, versions=versions)
    current = first

    def recorder(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compile_id = versions.graph(graph)
        current.captured.append(compile_id)
        current.graph_ops.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        reason: Any = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            current.broken_graphs.add(compile_id)
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
    with versions.listening(), listening(first, trace_folder):
        first.nested_graph_breaks = getattr(torch._dynamo.config, NESTED_GRAPH_BREAKS, None)
        try:
            call(first.operators.counted(optimized) if first.operators is not None else optimized)
        except Stopped:
            first.frames_given_up -= 1
            first.operators = None  # nothing ran behind the first graph
            again = None
    if again is None:
        return first
    counters.clear()
    first.second = current = Capture()
    with versions.listening(), listening(current):
        try:
            again(optimized, versions)
        except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
            first.second_error = one_line(error)
    return first


class Stopped(BaseException):
    """Ends a capture when the first graph is there; not an Exception, which Dynamo would wrap."""


def stop(_graph: torch.fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
    """A backend that ends the capture."""
    raise Stopped


def unmeasured_guards() -> AbstractContextManager[None]:
    """Keep Dynamo from timing the guards of each frame, for which it flushes the CPU's caches.

    That costs 24 ms per frame (torch 2.13), disturbs other processes, and only affects a figure in
    torch's own metrics. Guards are built and checked as usual.
    """
    if not hasattr(guards, "profile_guard_manager"):
        return nullcontext()
    return replaced(guards, "profile_guard_manager", lambda *_: 0.0)


@contextmanager
def tensors(subject: Subject) -> Iterator[None]:
    """The context in which Dynamo compiles a subject and calls it, as its request asks for."""
    with ExitStack() as stack:
        if subject.owns_process:
            stack.enter_context(unmeasured_guards())
        nested = subject.request.target.nested_graph_breaks
        stack.enter_context(nested_graph_breaks(nested))
        stack.enter_context(subject.tensors())
        if subject.fake_mode is not None:
            stack.enter_context(rejected_deepcopy())
            stack.enter_context(values_shown())
        yield


@contextmanager
def listening(record: Capture, trace_folder: Path | None = None) -> Iterator[None]:
    """Collect the structured trace and the frames that Dynamo gave up; finally read counters.

    With a folder, the trace is also written to a file there, with torch's own handler.
    """
    handlers: list[logging.Handler] = [_TraceListener(record)]
    if trace_folder is not None:
        handlers.append(LazyTraceHandler(str(trace_folder.resolve())))
        handlers[-1].setFormatter(TorchLogsFormatter(trace=True))
    give_ups = _GiveUps(record)
    logger = logging.getLogger(_CONVERT_FRAME_LOGGER)
    level = logger.level
    # torch 2.9 does not record why Dynamo skipped a frame; 2.13 and later do.
    getattr(eval_frame, "reset_skip_reasons", lambda: None)()
    for handler in handlers:
        trace_log.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.addFilter(give_ups)
    try:
        yield
    finally:
        logger.removeFilter(give_ups)
        logger.setLevel(level)
        for handler in handlers:
            trace_log.removeHandler(handler)
            handler.close()
        frames = counters["frames"]
        record.frames_given_up += frames["total"] - frames["ok"]
        record.cuts_counted += sum(counters["graph_break"].values())
        record.skip_reasons = tuple(getattr(eval_frame, "get_skip_reasons", tuple)())


class _TraceListener(logging.Handler):
    """Extracts graph breaks and traced frames from the structured trace."""

    def __init__(self, captured: Capture) -> None:
        super().__init__(logging.DEBUG)
        self._captured = captured
        self._function = ""

    def emit(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        is_break = metadata.get("artifact", {}).get("name") == _BREAK_ARTIFACT
        if not is_break and "dynamo_start" not in metadata:
            return  # of hundreds for each frame; the stack is long
        if writes_the_trace():
            self._captured.cuts_counted -= is_break
        elif "dynamo_start" in metadata:
            self._captured.frames.append(compile_id)
            self._function = metadata["dynamo_start"]["stack"][-1]["name"]
        elif is_break:
            payload = str(getattr(record, "payload", ""))
            self._captured.add(compile_id, _report(payload, self._function))


def _report(payload: str, function: str) -> graph_breaks.BreakReport:
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
    reason = graph_breaks.reason_in(payload)
    return graph_breaks.BreakReport(
        reason=reason,
        stack=graph_breaks.user_stack([*get_stack_above_dynamo(), *frames])
        or _frame_given_up(reason),
        exceptions=type_names(error),
    )


class _GiveUps(logging.Filter):
    """Records that a frame runs in eager mode, from `ConvertFrame`'s log; only passes warnings."""

    def __init__(self, captured: Capture) -> None:
        super().__init__()
        self._captured = captured

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        message = str(record.msg)
        if error is None or not _GIVEN_UP.match(message):
            return record.levelno >= logging.WARNING
        if writes_the_trace():
            self._captured.frames_given_up -= 1
        else:
            self._captured.give_ups_reported += 1
            compile_id = str(getattr(error, "compile_id", f"?/{self._captured.give_ups_reported}"))
            if compile_id not in self._captured.reports:
                self._captured.add(compile_id, _give_up(error, message))
        return record.levelno >= logging.WARNING


def _give_up(error: BaseException, message: str) -> graph_breaks.BreakReport:
    """Return the report of a frame that failed outside the tracer; without a stack, its place."""
    return graph_breaks.BreakReport(
        reason=str(getattr(error, "msg", None) or error),
        stack=graph_breaks.user_stack(getattr(error, "real_stack", None) or ())
        or _frame_given_up(message),
        exceptions=type_names(error),
    )


def _frame_given_up(message: str) -> tuple[StackFrame, ...]:
    frame = _GIVEN_UP.match(message)
    if frame is None:
        return ()
    return (graph_breaks.stack_frame(frame["file"], int(frame["line"]), frame["function"]),)


def type_names(error: BaseException | None) -> tuple[str, ...]:
    """Return the types of an exception and of its causes, outermost first."""
    return tuple(type(cause).__name__ for cause in causes(error)) if error is not None else ()


_COPYABLE = (torch.Tensor, bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def call_once(subject: Subject, module: Callable[..., Any]) -> Any:
    """Call the (compiled) module once, in train mode also backward through its loss."""
    if subject.request.target.mode is Mode.EVAL:
        return subject.call(module)
    subject.module.zero_grad(set_to_none=True)
    output = subject.call(module)
    if (loss := loss_of(output)) is not None:
        loss.backward()
    return output


def loss_of(output: Any) -> torch.Tensor | None:
    """Return the model's `loss`, or the sum of its float outputs' means; None without gradient."""
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.requires_grad:
        return own.mean()
    means = [
        leaf.float().mean()
        for leaf in tree_leaves(output)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()
    ]
    return torch.stack(means).sum() if means else None


def second_call(subject: Subject) -> Callable[[Callable[..., Any], Versions], None] | None:
    """Return what follows the first call: the later calls, or one more with equal inputs.

    Equal inputs are copied now, because a call may change them. None if an argument holds the state
    of earlier calls, or anything else that is not known how to copy.
    """
    inputs = subject.later
    if inputs is None:
        leaves = tree_leaves((subject.inputs.args, subject.inputs.kwargs))
        if not all(leaf is None or isinstance(leaf, _COPYABLE) for leaf in leaves):
            return None
        inputs = (subject.copied_inputs(),)

    def call(module: Callable[..., Any], versions: Versions) -> None:
        for number, call_inputs in enumerate(inputs, start=2):
            versions.call = number
            call_once(replace(subject, inputs=call_inputs), module)

    return call


_STAND_IN = torch.ops.aten.empty_strided.default
"""Takes no tensor as input. Made from a constant of a fake tensor, its output would be real."""

_TAG = "partitioner_tag"


def unexecuted_backend(
    graph: GraphModule,
    inputs: list[Any],
    *,
    decompositions: dict[OpOverload, Callable[..., Any]] | None = None,
    see: Callable[[str, GraphModule], None] | None = None,
) -> Callable[..., Any]:
    """A backend for `torch.compile` that stops before `aot_eager_default_partitioner` runs.

    What it returns says how many operators its forward would run (`FORWARD_OPERATORS`), where there
    is a joint graph: without a gradient, the graph runs as it is. `see` gets the graphs that a
    compiler would get, each with its direction (`inference`, or `forward` and `backward`).
    """
    counts: list[int] = []

    def partition(
        joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[GraphModule, GraphModule]:
        """Do as torch's `default_partition`, without the operations if that is safe."""
        counts.append(forward_operators(joint, num_fwd_outputs))
        if see is not None:
            complete = default_partition(
                joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options
            )
            for direction, part in zip(("forward", "backward"), complete, strict=True):
                see(direction, part)
        _cut_down(joint.graph, num_fwd_outputs, options.get("static_lifetime_input_indices") or ())
        parts: tuple[GraphModule, GraphModule] = default_partition(
            joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options
        )
        return parts

    def without_gradient(graph: GraphModule, inputs: list[Any]) -> Any:
        if see is not None:
            see("inference", graph)
        return boxed_nop(graph, inputs)

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed_nop,
        bw_compiler=boxed_nop,
        inference_compiler=without_gradient,
        partition_fn=partition,
        decompositions=decompositions,
        keep_inference_input_mutations=False,
    )
    compiled: Callable[..., Any] = backend(graph, inputs)

    def run(*args: Any) -> Any:
        return compiled(*args)

    if counts:
        setattr(run, FORWARD_OPERATORS, counts[-1])
    return run


unexecuted_backend.__name__ = "compiler_fn"  # the name in torch's own messages (AotAutograd)


def _cut_down(graph: Graph, forward_outputs: int, weights: Sequence[int]) -> None:
    """Replace the computation of the outputs; a graph that must run is not changed."""
    placeholders = graph.find_nodes(op="placeholder")
    primals = [node for node in placeholders if "tangents" not in str(node.target)]
    (output,) = graph.find_nodes(op="output")
    (results,) = output.args
    forward, backward = results[:forward_outputs], results[forward_outputs:]
    unknown = {primals[index] for index in weights if index < len(primals)}
    computed = [node for node in results if isinstance(node, Node) and node.op != "placeholder"]
    if not all(map(_is_plain_tensor, computed)) or _has_effects(graph):
        return
    if any(_may_be_read(node, unknown) for node in forward if node in computed):
        return
    stand_ins: dict[Node, Node] = {}
    with graph.inserting_before(output):
        for tag, nodes in (("is_forward", forward), ("is_backward", backward)):
            for node in nodes:
                if isinstance(node, Node) and node.op != "placeholder" and node not in stand_ins:
                    stand_ins[node] = _stand_in(graph, node, tag)
    output.args = (type(results)(stand_ins.get(node, node) for node in results),)
    graph.eliminate_dead_code()


def _stand_in(graph: Graph, node: Node, tag: str) -> Node:
    value = node.meta["val"]
    stand_in = graph.call_function(
        _STAND_IN,
        (list(value.shape), list(value.stride())),
        {"dtype": value.dtype, "device": value.device},
    )
    stand_in.meta = {"val": value, _TAG: tag}
    return stand_in


def _is_plain_tensor(node: Node) -> bool:
    """Whether a node is a dense tensor of a fixed size."""
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    )


def _has_effects(graph: Graph) -> bool:
    """Whether a graph does anything besides computing its outputs."""
    return any(
        node.op not in ("placeholder", "output", "get_attr")
        and (
            isinstance(node.target, torch._ops.HigherOrderOperator)
            or (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable)
        )
        for node in graph.nodes
    )


def _may_be_read(node: Node, unknown: Iterable[Node]) -> bool:
    """Whether eager code may read the values of a result: known integers or booleans."""
    value = node.meta["val"]
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return False
    return _sources([node]).isdisjoint(unknown)


def interpreted_backend(graph: GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
    """A backend for `torch.compile` that runs what `eager` runs, without generating code."""
    interpreter = Interpreter(graph)
    interpreter.extra_traceback = False  # messages are those of the operators, as with `eager`

    def run(*args: Any) -> Any:
        return interpreter.run(*args, enable_io_processing=False)

    return run


interpreted_backend.__name__ = "eager"  # the name in torch's own messages


def outputs_by_size(graph: GraphModule) -> Callable[..., Any] | None:
    """Return what makes tensors like the outputs of a graph of Dynamo, instead of running it.

    It is for fake tensors, in a call of which nothing reads a result. None where running the graph
    may show more: it changes an input, or returns something else than dense tensors of floats, or
    torch puts off a check of a size until it runs.
    """
    inputs = graph.graph.find_nodes(op="placeholder")
    (output,) = graph.graph.find_nodes(op="output")
    examples = [node.meta.get("example_value") for node in inputs]
    tensors = [value for value in examples if isinstance(value, torch.Tensor)]
    symbols = {
        value.node.expr: position
        for position, value in enumerate(examples)
        if isinstance(value, torch.SymInt)
    }
    results: list[Any] = [getattr(node, "meta", {}).get("example_value") for node in output.args[0]]
    given = {node: position for position, node in enumerate(inputs)}
    positions = [given.get(node) for node in output.args[0]]
    environment: Any = getattr(TracingContext.get().fake_mode, "shape_env", None)
    if (
        not all(map(_is_dense_float, results))
        or not free_symbols(results) <= symbols.keys()
        or free_unbacked_symbols(tensors)
        or any(tensor._version for tensor in tensors)
        or environment is None
        or environment.deferred_runtime_asserts
    ):
        return None

    def run(*args: Any) -> tuple[Any, ...]:
        sizes = {symbol: args[position] for symbol, position in symbols.items()}

        def known(several: Iterable[Any]) -> list[int]:
            return [n if isinstance(n, int) else int(n.node.expr.xreplace(sizes)) for n in several]

        return tuple(
            torch.empty_strided(
                known(value.shape), known(value.stride()), dtype=value.dtype, device=value.device
            )
            if position is None
            else args[position]
            for position, value in zip(positions, results, strict=True)
        )

    return run


def _is_dense_float(value: Any) -> bool:
    return (
        isinstance(value, FakeTensor)
        and value.layout is torch.strided
        and (value.is_floating_point() or value.is_complex())
    )


def capturing_backend(subject: Subject) -> Backend:
    """The backend that the request names; by default `eager`, in train mode AOTAutograd."""
    target = subject.request.target
    if target.backend is not None:
        named: Backend = torch._dynamo.lookup_backend(target.backend)
        return named
    if target.mode is Mode.EVAL:
        return eager_backend(subject)
    # The default partitioner: how forward and backward are partitioned changes no verdict, and
    # the one that saves memory takes an eighth of a capture.
    fake = subject.fake_mode is not None
    plain: Backend = torch._dynamo.lookup_backend("aot_eager_default_partitioner")
    return unexecuted_backend if fake else plain


def eager_backend(subject: Subject) -> Backend:
    """What runs as with `backend="eager"`."""
    fake = subject.fake_mode is not None
    return interpreted_backend if fake else torch._dynamo.lookup_backend("eager")


def rejected_deepcopy() -> AbstractContextManager[None]:
    """Make `copy.deepcopy` of a fake tensor raise FakeUnsupportedError.

    It copies the fake mode with the tensor (torch 2.13 to 2.15), in Python code that Dynamo then
    compiles, which causes graph breaks that real tensors do not cause.
    """

    def reject(_self: FakeTensor, _memo: dict[int, Any]) -> NoReturn:
        raise FakeUnsupportedError("the model copies a tensor with copy.deepcopy")

    return replaced(FakeTensor, "__deepcopy__", reject)
