"""Functions that take the place of others in a fix. Their source is printed and pasted.

Each says why it computes the same. None imports anything of compilewatch, and all that they need
is imported by the fix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch  # each fix imports it, and the parent does not


def asserted_in_graph(cond: Any, _message: Any = None) -> None:
    """Check that all elements are true by an operator of the graph, without reading a value.

    `torch._check_tensor_all` reads `cond._is_all_true().item()`, which is a graph break or an
    unknown boolean. `torch._assert_async` raises RuntimeError when the graph runs, the type that
    `torch._check_tensor_all` raises.
    """
    torch._assert_async(cond.all(), "a check of the model failed")
