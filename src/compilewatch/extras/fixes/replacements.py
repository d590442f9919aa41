"""Functions that take the place of others in a fix. Their source is printed and pasted.

Each says why it computes the same. None imports anything of compilewatch, and all that they need
is imported by the fix.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import MethodType
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    # Each fix imports what it needs, and the parent does not.
    import torch
    import torch._dynamo
    from torch.utils._pytree import tree_leaves

FORWARDS: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""By the forward that each of them calls."""


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
    numpy = sys.modules.get("numpy")
    kinds = (torch.Tensor,) if numpy is None else (torch.Tensor, numpy.generic)
    for module in model.modules():
        value = vars(module).get(name)
        if not isinstance(value, kinds) or value.ndim > 0 or getattr(value, "requires_grad", False):
            continue
        vars(module)[name] = number = value.item()
        stack.callback(put_back, vars(module), name, value, number)


def put_back(attributes: dict[str, Any], name: str, value: Any, number: Any) -> None:
    """Put the tensor or scalar in its place again; what was written meanwhile stays, as one."""
    written = attributes.get(name)
    if type(written) is not type(number):
        return  # deleted, or of another kind
    if written == number:
        attributes[name] = value
    elif isinstance(value, torch.Tensor):
        attributes[name] = value.new_tensor(written)
    else:
        attributes[name] = type(value)(written)


def tensor_again(
    model: torch.nn.Module, name: str, dtype: torch.dtype, device: torch.device
) -> Callable[..., Any]:
    """Return a forward that makes a tensor of an argument which is given as numbers.

    It is the same function at each call, as another one would be compiled again. It holds neither
    the model nor its forward.
    """
    forward: Any = model.forward
    function = getattr(forward, "__func__", forward)
    known = FORWARDS.setdefault(function, {})
    if (name, dtype, device) not in known:
        original: Callable[[], Any] = weakref.ref(function)

        def with_tensor(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get(name), list):
                kwargs[name] = torch.tensor(kwargs[name], dtype=dtype, device=device)
            return original()(*args, **kwargs)

        vars(with_tensor)["__signature__"] = inspect.signature(function)
        known[name, dtype, device] = with_tensor
    chosen = known[name, dtype, device]
    return chosen if function is forward else MethodType(chosen, model)


def copied(*values: Any) -> Any:
    """Return copies of arguments; neither tensors nor caches in objects are shared with them."""
    tensors = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
    return copy.deepcopy(values, {id(each): each.detach().clone() for each in tensors})
