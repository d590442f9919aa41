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
    left = [node for node in output.args[0][:outputs] if isinstance(node, torch.fx.Node)]
    seen: set[torch.fx.Node] = set()
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += node.all_input_nodes
    return sum(node.op == "call_function" and is_operator(node.target) for node in seen)
