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
    """Calls of one compiled model, one after the other; see `series`.

    `compile_ids` are those of the graphs, of which `versions` knows more.
    """

    def __init__(self, subject: Subject, *, dynamic: bool | None, backend: Backend) -> None:
        self._subject, self._dynamic = subject, dynamic
        self.versions = Versions(dynamic=dynamic)
        self.compile_ids: list[str] = []
        self._ran: list[int] = []
        self.calls: list[ShapeCall] = []
        self._breaks = 0
        self.limit: StackFrame | None = None

        def recorder(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            number = len(self.compile_ids)
            self.compile_ids.append(self.versions.graph(graph))
            compiled = backend(graph, inputs)

            def run(*args: Any) -> Any:
                self._ran.append(number)
                return compiled(*args)

            return run

        recorder.__name__ = getattr(backend, "__name__", "backend")  # torch's messages name it
        self._compiled = torch.compile(subject.module, backend=recorder, dynamic=dynamic)

    def call(self, sizes: dict[str, int], inputs: ExampleInputs) -> ShapeCall:
        """Call the compiled model, and return what that compiled; an exception is recorded."""
        self.versions.call = len(self.calls) + 1
        self._ran.clear()
        before, error = len(self.compile_ids), ""
        captured = Capture()
        counters.clear()
        with self.versions.listening(), captures.listening(captured):
            try:
                call_once(replace(self._subject, inputs=inputs), self._compiled)
            except Exception as failure:  # noqa: BLE001  (the edge to the compiler and to the model)
                error = one_line(failure)
        for graph_break in captured.breaks():
            self._breaks += graph_break.occurrences
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

    def record(self) -> ShapeSeries:
        """Return what all calls met."""
        compiled = self.versions.compiled
        return ShapeSeries(
            dynamic=self._dynamic,
            calls=tuple(self.calls),
            graphs=tuple(_graph(compiled[compile_id]) for compile_id in self.compile_ids),
            recompilations=self.versions.recompilations(),
            graph_breaks=self._breaks,
            limit=self.limit,
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
