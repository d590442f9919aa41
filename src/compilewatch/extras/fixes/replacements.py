"""Functions that take the place of others in a fix. Their source is printed and pasted.

Each says why it computes the same. None imports anything of compilewatch, and all that they need
is imported by the fix.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    # Each fix imports what it needs, and the parent does not.
    import numpy as np
    import torch
    import torch._dynamo


def asserted_in_graph(cond: Any, _message: Any = None) -> None:
    """Check that all elements are true by an operator of the graph, without reading a value.

    `torch._check_tensor_all` reads `cond._is_all_true().item()`, which is a graph break or an
    unknown boolean. `torch._assert_async` raises RuntimeError when the graph runs, the type that
    `torch._check_tensor_all` raises.
    """
    torch._assert_async(cond.all(), "a check of the model failed")


@functools.cache  # another one for the same function would be compiled again
def nonstrict(function: Callable[..., Any]) -> Callable[..., Any]:
    traced: Callable[..., Any] = torch._dynamo.nonstrict_trace(function)
    return traced


def trace_without_dynamo(stack: ExitStack, module: str, name: str) -> None:
    """Put the traced function wherever a module has it under its name, until `stack` ends."""
    function = getattr(importlib.import_module(module), name)
    for each in list(sys.modules.values()):
        if getattr(each, "__dict__", {}).get(name) is function:
            stack.enter_context(mock.patch.object(each, name, nonstrict(function)))


def hold_as_python_value(stack: ExitStack, model: torch.nn.Module, name: str) -> None:
    """Put the number that an attribute holds in a tensor or a scalar of NumPy in its place.

    Parameters and buffers stay, and so do tensors that take a gradient, which a number loses, and
    what has dimensions: it is broadcast otherwise.
    """
    for module in model.modules():
        value = vars(module).get(name)
        if not isinstance(value, (torch.Tensor, np.generic)) or value.ndim > 0:
            continue
        if not getattr(value, "requires_grad", False):
            stack.enter_context(mock.patch.object(module, name, value.item()))
