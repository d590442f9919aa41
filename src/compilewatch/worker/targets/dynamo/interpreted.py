"""The backend `eager` for fake tensors: runs a graph node by node.

`eager` generates Python code for each graph and compiles it, to run it once. Python's compiler
takes 10 KiB for each operator of a graph, 60 MiB for DeepSeek-V3 at full depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Interpreter


def interpreted_backend(graph: GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
    """A backend for `torch.compile` that runs what `eager` runs, without generating code."""
    interpreter = Interpreter(graph)
    interpreter.extra_traceback = False  # messages are those of the operators, as with `eager`

    def run(*args: Any) -> Any:
        return interpreter.run(*args, enable_io_processing=False)

    return run


interpreted_backend.__name__ = "eager"  # the name in torch's own messages
