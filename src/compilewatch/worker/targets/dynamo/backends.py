"""The backends of Dynamo that a capture uses.

`eager` generates Python code for each graph and compiles it, to run it once. Python's compiler
takes 10 KiB for each operator of a graph, 60 MiB for DeepSeek-V3 at full depth. On fake tensors, a
graph is therefore run node by node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo
from torch.fx import GraphModule, Interpreter

from compilewatch.records import Mode
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.capture import Backend
from compilewatch.worker.targets.dynamo.joint_graph import unexecuted_backend


def interpreted_backend(graph: GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
    """A backend for `torch.compile` that runs what `eager` runs, without generating code."""
    interpreter = Interpreter(graph)
    interpreter.extra_traceback = False  # messages are those of the operators, as with `eager`

    def run(*args: Any) -> Any:
        return interpreter.run(*args, enable_io_processing=False)

    return run


interpreted_backend.__name__ = "eager"  # the name in torch's own messages


def capturing_backend(subject: Subject) -> Backend:
    """The backend that the request names; by default `eager`, in train mode AOTAutograd."""
    target = subject.request.target
    if target.backend is not None:
        return _named(target.backend)
    if target.mode is Mode.EVAL:
        return eager_backend(subject)
    # The default partitioner: how forward and backward are partitioned changes no verdict, and
    # the one that saves memory takes an eighth of a capture.
    fake = subject.fake_mode is not None
    return unexecuted_backend if fake else _named("aot_eager_default_partitioner")


def eager_backend(subject: Subject) -> Backend:
    """What runs as with `backend="eager"`."""
    return interpreted_backend if subject.fake_mode is not None else _named("eager")


def _named(backend: str) -> Backend:
    named: Backend = torch._dynamo.lookup_backend(backend)
    return named
