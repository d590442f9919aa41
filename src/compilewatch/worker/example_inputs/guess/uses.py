"""What is known of an argument while its forward is read, and small questions about code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import nn

Path = tuple[str, ...]
"""An argument and what leads to a part of it: `("batch", "[image]")`, `("data", ".x")`."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set, which takes fewer lines than a list of strings."""
    return frozenset(text.split())


@dataclass(kw_only=True)
class Uses:
    """What the forward does with one argument, or with one part of it, in order.

    `layers` are the layers that take it, each with the position of the argument and what was done
    to it before (`transposed`, `flattened`, `unsqueezed`). `dims` are names for its dimensions, as
    `B, C, H, W = x.shape` or a pattern of einops gives them.
    """

    layers: list[tuple[Any, int, frozenset[str]]] = field(default_factory=list)
    dims: list[tuple[str, ...]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    optional_parts: set[str] = field(default_factory=set)
    checked: bool = False
    used: bool = False
    is_dict: bool = False


@dataclass(frozen=True)
class Held:
    """A variable that holds a part of an argument, with what was done to it."""

    path: Path
    changes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KnownObject:
    """A variable or expression that holds an object of the module, such as a submodule."""

    value: Any


def indexed_rank(index: ast.expr) -> int:
    """The rank of what `x[:, :, None]` extends, 0 for an index that tells nothing."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    constants = [part.value for part in parts if isinstance(part, ast.Constant)]
    if None not in constants or Ellipsis in constants:
        return 0
    return len(parts) - constants.count(None)


def pattern_dims(side: str, sizes: dict[str, Any]) -> tuple[str, ...]:
    """The dimensions of a pattern of einops: `b c (h 2)` -> `b`, `c`, `2*h`."""
    dims: list[str] = []
    rest = side.replace("(", " ( ").replace(")", " ) ").split()
    group: list[str] | None = None
    for word in rest:
        if word == "(":
            group = []
        elif word == ")":
            dims.append("*".join(group or ["1"]))
            group = None
        else:
            size = sizes.get(word)
            text = str(size) if isinstance(size, int) else word
            if group is None:
                dims.append(text)
            else:
                group.append(text)
    return tuple(dims)


def iterating(name: str, args: list[Any]) -> Any:
    if name in ("list", "tuple", "reversed", "checkpoint"):
        return args[0] if args else None
    values = [
        part_of(argument)
        if isinstance(argument, Held)
        else first_of(argument.value)
        if isinstance(argument, KnownObject)
        else None
        for argument in args
    ]
    element = (None, *values) if name == "enumerate" else tuple(values)
    return KnownObject([element])


def part_of(variable: Held) -> Held:
    return Held((*variable.path, "<*>"))


def first_of(container: Any) -> Any:
    """The first element of a container, as a value that a variable holds."""
    if isinstance(container, nn.ModuleDict | dict):
        return None
    try:
        first = next(iter(container))
    except Exception:  # noqa: BLE001  (whatever an object of the module raises)
        return None
    if isinstance(first, nn.ModuleList | nn.Sequential | list):
        return tuple(KnownObject(member) for member in first)
    return first if isinstance(first, tuple) and any(map(is_value, first)) else KnownObject(first)


def is_value(value: Any) -> bool:
    return value is None or isinstance(value, Held | KnownObject)


def keeps_shape(module: nn.Module) -> bool:
    name = type(module).__name__
    if isinstance(module, nn.Sequential):
        return len(module) == 0
    of_torch = type(module).__module__.startswith(
        ("torch.nn.modules.activation", "torch.nn.modules.dropout")
    )
    return (of_torch and not isinstance(module, nn.MultiheadAttention)) or name in (
        "Identity",
        "DropPath",
        "QuickGELU",
    )


def only_normalises(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("torch", "einops")


def dotted(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def bound_arguments(function: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Which parameters of a function get what; empty if the call does not fit."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {}
    kinds = {n: p.kind for n, p in signature.parameters.items()}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: value for name, value in bound.items() if kinds[name] not in variable}


@lru_cache(maxsize=512)
def definition(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return next((n for n in tree.body if isinstance(n, ast.FunctionDef)), None)


def paths_below(uses: dict[Path, Uses], path: Path) -> Iterator[tuple[Path, Uses]]:
    """The parts of an argument that the forward reads, in order."""
    own = uses.get(path)
    for part in own.parts if own is not None else ():
        below = (*path, part)
        yield below, uses.get(below, Uses())
