"""Functions of fixes, whose source is printed and pasted (`pasted`).

Each says why it computes the same. None uses anything of compilewatch, and all that they need is
imported by the fix.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    # Each fix imports what it needs, and the parent does not.
    import torch
    import torch._dynamo
    from torch.utils._pytree import tree_leaves

FORWARDS: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""By the forward that each of them calls."""

IN_FORCE: dict[Any, tuple[tuple[str, str], ...]] = {}  # by function


def pasted(*functions: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the import statements that functions of this module need, and their sources.

    Each fix imports torch, which is left out.
    """
    sources = tuple(map(inspect.getsource, functions))
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    read = {node.id for node in nodes if isinstance(node, ast.Name)} - {"torch"}
    imports: list[str] = []
    for statement in ast.walk(ast.parse(inspect.getsource(sys.modules[__name__]))):
        match statement:
            case ast.Import(names=aliases):
                imports += [f"import {a.name}" for a in aliases if a.name in read]
            case ast.ImportFrom(module=module, names=aliases):
                imports += [f"from {module} import {a.name}" for a in aliases if a.name in read]
    return tuple(imports), sources


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
    tensors = [tensor for tensor in tree_leaves(values) if isinstance(tensor, torch.Tensor)]
    return copy.deepcopy(values, {id(tensor): tensor.detach().clone() for tensor in tensors})


@contextlib.contextmanager
def edited(module: str, path: str, *edits: tuple[str, str]) -> Iterator[None]:
    """Edit a function while the context is open, in addition to edits that are in force."""
    owner: Any = importlib.import_module(module)
    for name in path.split("."):
        owner = inspect.getattr_static(owner, name)
    owner = getattr(owner, "__func__", None) or getattr(owner, "fget", None) or owner
    function = inspect.unwrap(owner)  # without its decorators
    before, others = function.__code__, IN_FORCE.get(function, ())
    IN_FORCE[function] = (*others, *edits)
    try:
        function.__code__ = edited_code(function, IN_FORCE[function])
        yield
    finally:
        function.__code__, IN_FORCE[function] = before, others


@functools.cache  # one code object for the same edits, or PyTorch would compile at each entry
def edited_code(function: FunctionType, edits: tuple[tuple[str, str], ...]) -> CodeType:
    """Compile a function in its file, with its edits. Lines keep their numbers for tracebacks."""
    file, first = function.__code__.co_filename, function.__code__.co_firstlineno
    lines = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    end = first - 1 + len(inspect.getblock(lines[first - 1 :]))
    body, numbers = lines[first - 1 : end], list(range(first, end + 1))
    for old, new in ((o.splitlines(keepends=True), n.splitlines(keepends=True)) for o, n in edits):
        places = [i for i in range(len(body)) if body[i : i + len(old)] == old]
        if len(places) != 1:
            raise RuntimeError(f"{file} differs: {len(places)} times in a function: {''.join(old)}")
        here = slice(places[0], places[0] + len(old))
        kept = numbers[here]
        body[here], numbers[here] = new, [kept[min(i, len(kept) - 1)] for i in range(len(new))]
    tree = ast.parse("".join([*lines[: first - 1], *body, *lines[end:]]))
    numbers = [*range(1, first), *numbers, *range(end + 1, len(lines) + 1)]
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias):
            node.lineno = numbers[node.lineno - 1]
            node.end_lineno = numbers[(node.end_lineno or 1) - 1]
            node.end_col_offset = max(node.col_offset, node.end_col_offset or 0)
    waiting = [compile(tree, file, "exec", dont_inherit=True)]
    for code in waiting:
        if (code.co_name, code.co_firstlineno) == (function.__name__, first):
            return code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    raise RuntimeError(f"{file} differs: it has no {function.__qualname__} at line {first}")
