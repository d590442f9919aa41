"""A series of calls of one compiled model: what each of them compiles, and what serves it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from compilewatch.contract.failures import one_line
from compilewatch.records import (
    STANDARD_TRACE,
    CompiledGraph,
    Depth,
    DynamicDimension,
    GraphBreak,
    Phase,
    ShapeCall,
    Shapes,
    ShapeSeries,
    StackFrame,
    TraceFigures,
)
from compilewatch.worker import forked
from compilewatch.worker.example_inputs.sizes import BATCH, SEQUENCE, inputs_of, sizes_of
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo import capture as captures
from compilewatch.worker.targets.dynamo.capture import Capture, call_once
from compilewatch.worker.targets.dynamo.versions import Version, Versions

RECOMPILE_LIMIT = "GB0039"
"""The graph break of a frame at the limit, in torch 2.11 to 2.15; 2.9 reports none."""

TIME_SHARE = 0.9
"""Of the phase's deadline: on a busy machine, calls take several times their CPU time."""

RECOMPILATIONS_KEPT = 30
"""A sweep stores the causes of so many."""

Compiled = Callable[..., Any]
"""Compiles a function with the argument `backend`."""


class Series:
    """Calls of one compiled model, one after the other; see `series`.

    `compile_ids` are those of the graphs, of which `versions` knows more.
    """

    output: Any = None
    """What the last call has returned."""

    def __init__(
        self, subject: Subject, dynamic: bool | None, compiled_with: Compiled | None
    ) -> None:
        self._subject, self._dynamic = subject, dynamic
        backend = captures.capturing_backend(subject)
        self.versions = Versions(dynamic=dynamic)
        self.compile_ids: list[str] = []
        self._ran: list[int] = []
        self.calls: list[ShapeCall] = []
        self.breaks: list[GraphBreak] = []
        self.limit: StackFrame | None = None
        self._whole = compiled_with is None and backend is captures.interpreted_backend

        def recorder(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            number, compile_id = len(self.compile_ids), self.versions.graph(graph)
            if compile_id not in self.versions.compiled:
                return backend(graph, inputs)  # torch 2.9 compiles functions of the fake mode, too
            self.compile_ids.append(compile_id)
            compiled = self._unread(graph, compile_id) or backend(graph, inputs)

            def run(*args: Any) -> Any:
                self._ran.append(number)
                return compiled(*args)

            return run

        recorder.__name__ = getattr(backend, "__name__", "backend")  # torch's messages name it
        if compiled_with is None:
            compiled_with = partial(torch.compile, subject.module, dynamic=dynamic)
        self._compiled = compiled_with(backend=recorder)

    def _unread(self, graph: GraphModule, compile_id: str) -> Callable[..., Any] | None:
        """What stands for a graph that is the whole call, so that nothing reads its outputs."""
        entry = next(iter(self.versions.compiled)).partition("/")[0]
        reason: Any = getattr(graph, "compile_subgraph_reason", None)
        self._whole = self._whole and compile_id.partition("/")[0] == entry
        self._whole = self._whole and not (reason is not None and reason.graph_break)
        return captures.outputs_by_size(graph) if self._whole else None

    def call(self, sizes: dict[str, int], inputs: ExampleInputs) -> ShapeCall:
        """Call the compiled model, and return what that compiled; an exception is recorded."""
        self.versions.call = len(self.calls) + 1
        self._ran.clear()
        before, error = len(self.compile_ids), ""
        captured = Capture()
        counters.clear()
        with self.versions.listening(), captures.listening(captured):
            try:
                self.output = call_once(replace(self._subject, inputs=inputs), self._compiled)
            except Exception as failure:  # noqa: BLE001  (the edge to the compiler and to the model)
                error = one_line(failure)
        for graph_break in () if error else captured.breaks():
            self.breaks.append(graph_break)
            if graph_break.code == RECOMPILE_LIMIT and self.limit is None:
                self.limit = StackFrame(
                    file=graph_break.file, line=graph_break.line, function=graph_break.function
                )
        call = ShapeCall(
            sizes=sizes,
            compiled=len(self.compile_ids) - before,
            served_by=tuple(dict.fromkeys(self._ran)),
            error=error,
        )
        self.calls.append(call)
        return call

    def call_boundaries(
        self, ranges: Mapping[str, tuple[int, int]], first: ExampleInputs | None = None
    ) -> None:
        """Call with the sizes of `boundary_sizes`, then around the numbers that guards name.

        A dimension has its other sizes while the others have that in the middle of their range.
        `first` are the inputs of the first call, instead of those that have its sizes.
        """
        groups = _groups(self._subject, ranges)
        middles = [(low + high) // 2 for low, high in groups.values()]
        called: set[tuple[int, ...]] = set()
        waiting = sorted(product(*map(boundary_sizes, groups.values())), key=_has_equal_sizes)
        while waiting:
            for chosen in waiting:
                pairs = zip(groups, chosen, strict=True)
                sizes = {name: size for names, size in pairs for name in names}
                self.call(sizes, first or inputs_of(self._subject, sizes))
                first = None
            called.update(waiting)
            versions = self.versions.compiled.values()
            edges = sorted({edge for version in versions for edge in version.edges()})
            around = [
                (*middles[:place], edge, *middles[place + 1 :])
                for place, (low, high) in enumerate(groups.values())
                for edge in edges
                if low <= edge <= high
            ]
            waiting = [chosen for chosen in dict.fromkeys(around) if chosen not in called]

    def record(self) -> ShapeSeries:
        """Return what all calls met."""
        compiled = self.versions.compiled
        return ShapeSeries(
            dynamic=self._dynamic,
            calls=tuple(self.calls),
            graphs=tuple(_graph(compiled[compile_id]) for compile_id in self.compile_ids),
            recompilations=self.versions.recompilations(),
            graph_breaks=sum(graph_break.occurrences for graph_break in self.breaks),
            limit=self.limit,
        )


def boundary_sizes(bounds: tuple[int, int]) -> list[int]:
    """The sizes that are called in any case: both ends, 1, 2, and one in the middle."""
    low, high = bounds
    return sorted({low, 1, 2, (low + high) // 2, high} & {*range(low, high + 1)})


def _groups(
    subject: Subject, ranges: Mapping[str, tuple[int, int]]
) -> dict[tuple[str, ...], tuple[int, int]]:
    """The ranges of dimensions, together those that have one size and one range."""
    own = sizes_of(subject)
    alike: dict[tuple[int | None, tuple[int, int]], tuple[str, ...]] = {}
    for name, bounds in ranges.items():
        key = (own.get(name), bounds)
        alike[key] = (*alike.get(key, ()), name)
    return {names: bounds for (_, bounds), names in alike.items()}


def _has_equal_sizes(sizes: tuple[int, ...]) -> bool:
    """Whether torch would take two dimensions for one, since both have this size, and it is 2 or
    more: that would compile again.
    """
    several = [size for size in sizes if size > 1]
    return len(set(several)) < len(several)


def _graph(version: Version) -> CompiledGraph:
    dynamic = version.dynamic()
    return CompiledGraph(
        file=version.frame.file,
        line=version.frame.line,
        function=version.frame.function,
        call=version.call,
        sizes={name: size for name, size in version.sizes().items() if name not in dynamic},
        dynamic=tuple(
            DynamicDimension(name=name, lower=lower, upper=upper)
            for name, (lower, upper) in dynamic.items()
        ),
    )


@contextmanager
def series(
    subject: Subject, *, dynamic: bool | None, compiled_with: Compiled | None = None
) -> Iterator[Series]:
    """Yield the compiled model of a subject, which nothing has called, to be called in a series.

    It is called in the mode of the request, on its own tensors, with the backend of the target.
    `compiled_with` compiles something else with a backend, such as one method of the model.
    """
    subject.forget()
    with captures.tensors(subject):
        yield Series(subject, dynamic, compiled_with)


def traced(
    subject: Subject, calls: Sequence[dict[str, int]], *, dynamic: bool | None
) -> ShapeSeries:
    """Return what the calls compile, of a model that nothing has called."""
    return judged(subject, subject.in_fork(partial(_called, calls, dynamic), ShapeSeries))


def _called(calls: Sequence[dict[str, int]], dynamic: bool | None, subject: Subject) -> ShapeSeries:
    inputs = [inputs_of(subject, sizes) for sizes in calls]
    with series(subject, dynamic=dynamic) as compiled:
        for sizes, call_inputs in zip(calls, inputs, strict=True):
            compiled.call(sizes, call_inputs)
        return compiled.record()


def judged(
    subject: Subject,
    recorded: ShapeSeries,
    inputs: Callable[[Subject, dict[str, int]], ExampleInputs] = inputs_of,
) -> ShapeSeries:
    """Make calls that fail in eager mode, too: what the model itself rejects says nothing."""

    def rejects(sizes: dict[str, int], inside: Subject) -> bool:
        try:
            with inside.tensors():
                call_once(replace(inside, inputs=inputs(inside, sizes)), inside.module)
        except Exception:  # noqa: BLE001  (model code)
            return True
        return False

    calls = tuple(
        msgspec.structs.replace(call, rejected=subject.in_fork(partial(rejects, call.sizes), bool))
        if call.error
        else call
        for call in recorded.calls
    )
    return msgspec.structs.replace(recorded, calls=calls)


def shapes_of(subject: Subject) -> Shapes:
    """Return what the standard trace compiles, or why that is not known; never raises.

    It has a fork with most of the time of its phase, so that it cannot cost the verdict: neither a
    crash nor a call that does not end.
    """
    subject.enter(Phase.PROFILE)
    limit = TIME_SHARE * subject.request.deadlines.profile_seconds
    try:
        return subject.in_fork(_standard_series, Shapes, limit_seconds=limit)
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to the model)
        return Shapes(problem=one_line(error))


def _standard_series(subject: Subject) -> Shapes:
    # Half of what the request may use, so that the launcher need not end the child for it.
    memory = subject.request.memory_limit_bytes // 2
    forked.limit(resource.RLIMIT_DATA, forked.mapped_bytes() + memory)
    sizes = sizes_of(subject)
    if BATCH not in sizes:
        return Shapes(problem="the inputs have no batch")
    if subject.request.depth is Depth.FULL and subject.fake_mode is not None:
        request = msgspec.structs.replace(subject.request, depth=Depth.REDUCED)

        def build() -> torch.nn.Module:
            return build_model(request, subject.fake_mode).module.train(subject.module.training)

        maker = build() if subject.maker is not None else None
        subject = replace(subject, request=request, module=build(), maker=maker)
    traces = [[{BATCH: batch} for batch in dict.fromkeys(batch for batch, _ in STANDARD_TRACE)]]
    if SEQUENCE in sizes:  # unless something else of the inputs determines its length
        traces.insert(0, [{BATCH: batch, SEQUENCE: length} for batch, length in STANDARD_TRACE])
    for calls in traces:
        as_called = traced(subject, calls, dynamic=None)
        if not all(call.rejected for call in as_called.calls):
            dynamic = traced(subject, calls, dynamic=True)
            return Shapes(as_called=_figures(as_called), dynamic=_figures(dynamic))
    return Shapes(problem=f"the model rejects each batch: {as_called.calls[0].error}")


def _figures(recorded: ShapeSeries) -> TraceFigures:
    names = (dimension.name for graph in recorded.graphs for dimension in graph.dynamic)
    errors = (call.error for call in recorded.calls if call.error and not call.rejected)
    return TraceFigures(
        compiled=tuple(call.compiled for call in recorded.calls),
        recompilations=tuple(
            msgspec.structs.replace(one, guards=())
            for one in recorded.recompilations[:RECOMPILATIONS_KEPT]
        ),
        dynamic=tuple(dict.fromkeys(names)),
        graph_breaks=recorded.graph_breaks,
        limit=recorded.limit,
        rejected=sum(call.rejected for call in recorded.calls),
        error=next(errors, ""),
    )
