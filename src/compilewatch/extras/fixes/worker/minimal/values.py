"""Python source of values that need no definition of their own: tensors, numbers, collections."""

from __future__ import annotations

import enum
import math
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

LITERAL_ELEMENTS = 16
"""Integer tensors of up to this size are always written out."""

MOST_ELEMENTS = 1024

_PLAIN_PACKAGES = frozenset({"torch", "numpy"})
"""Packages besides the standard library that a reproducer may import."""


def tensor_source(tensor: torch.Tensor, *, exact: bool) -> str:
    """Python source of a tensor: exact for small integers, noise for floating-point numbers."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    named = "" if dtype in (torch.float32, torch.int64) else f", dtype={dtype}"
    size = repr(shape) if len(shape) != 1 else str(shape[0])
    if tensor.is_floating_point() or tensor.is_complex():
        if tensor.numel() > 1 and bool((tensor == 0).all()):
            return f"torch.zeros({size}{named})"
        return f"torch.randn({size}{named})" if named == "" or dtype.itemsize > 1 else _ones(tensor)
    if tensor.numel() <= LITERAL_ELEMENTS or (exact and tensor.numel() <= MOST_ELEMENTS):
        named = named.removesuffix(", dtype=torch.bool")
        return f"torch.tensor({tensor.tolist()}{named})"
    if tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        kind = {0: "zeros", 1: "ones"}.get(int(tensor.flatten()[0].item()))
        if kind:
            return f"torch.{kind}({size}, dtype={dtype})"
    return f"torch.ones({size}, dtype={dtype})"


def _ones(tensor: torch.Tensor) -> str:
    return f"torch.ones({tuple(tensor.shape)}, dtype={tensor.dtype})"


def plain_source(value: Any) -> str | None:
    """Python source of a value of Python itself or of torch; None for another one."""
    if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes, complex):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, enum.Enum):
        plain = isinstance(value, str | int) and path_of(type(value)) is None
        return repr(value.value) if plain else None
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, slice):
        return repr(value) if all(type(v) in (int, type(None)) for v in _bounds(value)) else None
    return None


def _bounds(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def known_object(value: Any) -> tuple[str, str] | None:
    """The module to import and an expression, for objects of the standard library."""
    import contextvars
    import logging
    import re
    import weakref

    kinds: dict[type, tuple[str, str]] = {
        type(threading.Lock()): ("threading", "threading.Lock()"),
        type(threading.RLock()): ("threading", "threading.RLock()"),
        threading.local: ("threading", "threading.local()"),
        weakref.WeakKeyDictionary: ("weakref", "weakref.WeakKeyDictionary()"),
    }
    if type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, logging.Logger):
        return "logging", f"logging.getLogger({value.name!r})"
    if isinstance(value, re.Pattern):
        return "re", f"re.compile({value.pattern!r}, {value.flags})"
    if isinstance(value, contextvars.ContextVar):
        return "contextvars", f"contextvars.ContextVar({value.name!r}, default=None)"
    return None


def is_plain_module(name: str) -> bool:
    """Whether a reproducer may import a module."""
    root = name.partition(".")[0]
    return root in _PLAIN_PACKAGES or root in sys.stdlib_module_names


def path_of(value: Any) -> tuple[str, str] | None:
    """The module and the name under which torch or the standard library has an object."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str) or "<" in name:
        return None
    candidates = ["torch", "torch.nn"]
    candidates += [module] if isinstance(module, str) else []
    candidates += ["torch.nn.functional", "torch._C._nn", "torch.linalg", "builtins"]
    for candidate in candidates:
        if not is_plain_module(candidate):
            continue
        value_there: Any = sys.modules.get(candidate)
        for part in name.split("."):
            value_there = getattr(value_there, part, None)
        if value_there is value:
            return candidate, name
    return None


COLLECTIONS = (list, tuple, set, frozenset, dict, OrderedDict, defaultdict, deque, torch.Size)
"""Types of collections whose elements are written one by one."""


def present(value: Any, names: set[str]) -> set[str]:
    """Those names that may be attributes of an object; a module is asked for what it has."""
    if not isinstance(value, torch.nn.Module):
        return {name for name in names if not name.endswith("()")}
    own = vars(value)  # an uninitialized module has no tables
    tables = (own, *(own.get(table, {}) for table in ("_modules", "_parameters", "_buffers")))
    return names.intersection(_names_of(type(value)).union(*tables))


_NAMES: dict[type, frozenset[str]] = {}


def _names_of(kind: type) -> frozenset[str]:
    """The attributes of a class; `dir` takes long for a class of models."""
    if kind not in _NAMES:
        _NAMES[kind] = frozenset(dir(kind))
    return _NAMES[kind]


def path_of_owner(kind: type, name: str) -> bool:
    """Whether torch itself defines an attribute of a class."""
    owner = next((c for c in kind.__mro__ if name in vars(c)), None)
    return owner is not None and path_of(owner) is not None
