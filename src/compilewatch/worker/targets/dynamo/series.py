"""A series of calls of one compiled model: what each of them compiles, and what serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from compilewatch.contract.failures import one_line
from compilewatch.records import (
    CompiledGraph,
    DynamicDimension,
    ShapeCall,
    ShapeSeries,
    StackFrame,
)
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo import capture as captures
from compilewatch.worker.targets.dynamo.capture import Backend, Capture, call_once
from compilewatch.worker.targets.dynamo.versions import Version, Versions

RECOMPILE_LIMIT = "recompile_limit"
"""The code of the graph break of a frame that has reached the limit."""


class Series:
    """Calls of one compiled model, one after the other; see `series`."""

    def __init__(self, subject: Subject, *, dynamic: bool | None, backend: Backend) -> None:
        self._subject, self._dynamic = subject, dynamic
        self._versions = Versions(dynamic=dynamic)
        self._graphs: list[str] = []
        self._ran: list[int] = []
        self._calls: list[ShapeCall] = []
        self._breaks = 0
        self._limit: StackFrame | None = None

        def recorder(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            number = len(self._graphs)
            self._graphs.append(self._versions.graph(graph))
            compiled = backend(graph, inputs)

            def run(*args: Any) -> Any:
                self._ran.append(number)
                return compiled(*args)

            return run

        recorder.__name__ = getattr(backend, "__name__", "backend")  # torch's messages name it
        self._compiled = torch.compile(subject.module, backend=recorder, dynamic=dynamic)

    def call(self, sizes: dict[str, int], inputs: ExampleInputs) -> ShapeCall:
        """Call the compiled model, and return what that compiled; an exception is recorded."""
        self._versions.call = len(self._calls) + 1
        self._ran.clear()
        before, error = len(self._graphs), ""
        captured = Capture()
        counters.clear()
        with self._versions.listening(), captures.listening(captured):
            try:
                call_once(replace(self._subject, inputs=inputs), self._compiled)
            except Exception as failure:  # noqa: BLE001  (the edge to the compiler and to the model)
                error = one_line(failure)
        for graph_break in captured.breaks():
            self._breaks += graph_break.occurrences
            if graph_break.code == RECOMPILE_LIMIT and self._limit is None:
                self._limit = StackFrame(
                    file=graph_break.file, line=graph_break.line, function=graph_break.function
                )
        call = ShapeCall(
            sizes=sizes,
            compiled=len(self._graphs) - before,
            served_by=tuple(dict.fromkeys(self._ran)),
            error=error,
        )
        self._calls.append(call)
        return call

    def record(self) -> ShapeSeries:
        """Return what all calls met."""
        compiled = self._versions.compiled
        return ShapeSeries(
            dynamic=self._dynamic,
            calls=tuple(self._calls),
            graphs=tuple(_graph(compiled[compile_id]) for compile_id in self._graphs),
            recompilations=self._versions.recompilations(),
            graph_breaks=self._breaks,
            limit=self._limit,
        )


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
def series(subject: Subject, *, dynamic: bool | None) -> Iterator[Series]:
    """Yield the compiled model of a subject, which nothing has called, to be called in a series.

    It is called in the mode of the request, on its own tensors, with the backend of the target.
    """
    subject.forget()
    with captures.tensors(subject):
        yield Series(subject, dynamic=dynamic, backend=captures.capturing_backend(subject))
