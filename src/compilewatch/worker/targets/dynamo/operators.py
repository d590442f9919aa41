"""Counts operators while a compiled model runs: inside its graphs, and eagerly outside of them.

A mode of torch's dispatcher sees every operator that runs. It is torch's own kind of mode that
compilation ignores (`ignore_compile_internals`): torch takes it off the stack while it compiles,
which does not skip frames because of it, and puts it back while the compiled code runs. Graphs
announce themselves, because the backend wraps them. So both counts are of the same call and in the
same unit, and their sum is what plain PyTorch runs, unless the model takes another path or Dynamo
removes dead code.

In train mode only the forward is counted. On fake tensors, the joint graph is not run
(`joint_graph`); its forward operators are counted in the graph instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

FORWARD_OPERATORS = "forward_operators"
"""An attribute of a compiled graph that does not run its operators: their number."""

_NOT_COUNTED = ("prim", "prims")
"""Namespaces of what asks for a property of a tensor (`prim.device`), and computes nothing."""


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

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

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
            with self:
                return module(*args, **kwargs)

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
                if known is not None:
                    self.captured = before + known

        return run


def is_operator(func: Any) -> bool:
    """Whether a dispatched function computes something: no query of a device or of a size."""
    if isinstance(func, OpOverload):
        return func.namespace not in _NOT_COUNTED and not func._opname.startswith("sym_")
    return isinstance(func, HigherOrderOperator)


def forward_operators(joint: torch.fx.GraphModule) -> int:
    """Return the number of operators of a joint graph that do not depend on gradients."""
    backward: set[torch.fx.Node] = set()
    count = 0
    for node in joint.graph.nodes:
        tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if tangent or any(each in backward for each in node.all_input_nodes):
            backward.add(node)
        elif node.op == "call_function" and is_operator(node.target):
            count += 1
    return count
