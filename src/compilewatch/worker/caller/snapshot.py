"""The state of a caller's objects and globals, kept while compilewatch calls their model.

A call of a model can change its tensors and attributes, the arguments, generators of random numbers
and globals. All evaluations of one check must start from the state that the caller left, and the
caller must find it again afterwards. A copy of the model would not do: its functions and closures
would still refer to the original.

What is kept: everything that can be reached from the model and its arguments through modules,
containers, closures and objects of classes that are not part of Python or PyTorch; the globals of
the Python modules in which the model's code lies; and PyTorch's and Python's own settings. What
cannot be kept: values in caches of functions (`functools.cache`), in C extensions, and in modules
that the model's code only calls.
"""

from __future__ import annotations

import collections
import functools
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy

_NOT_FOLLOWED = frozenset({"torch", "numpy", "builtins", *sys.stdlib_module_names} - {"__main__"})
"""Packages whose objects are not searched for state, but for tensors, modules and containers."""

_GLOBAL_HOOKS = tuple(name for name in vars(module_hooks) if name.startswith("_global_"))

_Restore = Callable[[], None]


@contextmanager
def kept(*roots: object) -> Iterator[None]:
    """Restore everything at the end that can be reached from `roots`, and the process's settings.

    Tensors are copied, so this needs as much memory as they have.
    """
    walk = _Walk()
    for name in _GLOBAL_HOOKS:
        walk.keep(getattr(module_hooks, name))
    walk.keep(roots)
    settings = _settings()
    try:
        yield
    finally:
        for restore in (*walk.restores, *settings):
            restore()


class _Walk:
    """Visits objects once each, and collects what restores them."""

    def __init__(self) -> None:
        self.restores: list[_Restore] = []
        self._seen: dict[int, object] = {}  # the objects too, because ids are used again
        self._globals: set[int] = set()

    def keep(self, root: object) -> None:
        waiting = [root]
        while waiting:
            value = waiting.pop()
            if id(value) in self._seen or isinstance(value, (str, bytes, int, float, type(None))):
                continue
            self._seen[id(value)] = value
            waiting += self._one(value)

    def _one(self, value: object) -> list[object]:
        """Keep one object, and return what it refers to."""
        if isinstance(value, torch.Tensor):
            self.restores.append(_tensor(value))
            return [value.grad] if value.is_leaf and value.grad is not None else []
        if isinstance(value, nn.Module):
            self.restores += [_class(value), _attributes(value)]
            return [
                *vars(value).values(),
                *self._code(inspect.getattr_static(type(value), "forward", None)),
            ]
        if isinstance(value, dict | list | set | collections.deque):
            self.restores.append(_container(value))
        if isinstance(value, dict):
            return list(value.values())
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            return list(value)
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            return self._code(value)
        if isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__"):
            return []
        if type(value).__module__.partition(".")[0] in _NOT_FOLLOWED:
            return []
        self.restores.append(_attributes(value))
        return list(vars(value).values())

    def _code(self, called: Any) -> list[object]:
        """Return what a function reaches: its closure, defaults, and the modules among its globals.

        The names of its Python module are kept, but their values are not searched for more.
        """
        found: list[object] = []
        while True:
            if isinstance(called, functools.partial):
                found += [called.args, called.keywords]
                called = called.func
            elif isinstance(called, types.MethodType):
                found.append(called.__self__)
                called = called.__func__
            elif hasattr(called, "__wrapped__"):
                called = inspect.unwrap(called)
            else:
                break
        if not isinstance(called, types.FunctionType):
            return found
        for cell in called.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                found.append(cell.cell_contents)
                self.restores.append(_cell(cell, cell.cell_contents))
        found += [called.__defaults__, called.__kwdefaults__]
        if (called.__module__ or "").partition(".")[0] in _NOT_FOLLOWED:
            return found
        scope = called.__globals__
        if id(scope) not in self._globals:
            self._globals.add(id(scope))
            self.restores.append(_names(scope))
        named = (scope.get(name) for name in called.__code__.co_names)
        return [*found, *(value for value in named if isinstance(value, nn.Module | list | dict))]


def _tensor(tensor: torch.Tensor) -> _Restore:
    cls, needs = tensor.__class__, tensor.requires_grad
    grad = tensor.grad if tensor.is_leaf else None
    if is_lazy(tensor):

        def uninitialise() -> None:
            if tensor.__class__ is not cls:
                tensor.data = torch.empty(0, device=tensor.device, dtype=tensor.dtype)
                tensor.__class__ = cls

        return uninitialise
    plain = cls in (torch.Tensor, nn.Parameter, nn.Buffer)  # others need not have an address
    version = None if tensor.is_inference() else tensor._version
    with torch.no_grad():
        copy, data = tensor.detach().clone(), tensor.data

    def restore() -> None:
        if tensor.is_leaf and tensor.grad is not grad:
            tensor.grad = grad
        if tensor.is_leaf and tensor.requires_grad != needs:
            tensor.requires_grad_(needs)
        moved = plain and (tensor.shape != copy.shape or tensor.data_ptr() != data.data_ptr())
        if version is not None and tensor._version == version and not moved:
            return
        with torch.no_grad(), torch.inference_mode(version is None):
            if moved:
                tensor.data = data
            tensor.detach().copy_(copy)

    return restore


def _class(value: nn.Module) -> _Restore:
    cls = type(value)

    def restore() -> None:
        if type(value) is not cls:
            value.__class__ = cls  # a lazy module becomes another at its first call

    return restore


def _attributes(value: object) -> _Restore:
    before = dict(vars(value))

    def restore() -> None:
        now = vars(value)
        if not _same(now, before):
            now.clear()
            now.update(before)

    return restore


def _container(value: Any) -> _Restore:
    mapping = isinstance(value, dict)
    before: Any = dict(value) if mapping else list(value)

    def restore() -> None:
        if mapping and not _same(value, before):
            value.clear()
            value.update(before)
        elif not mapping and not _alike(list(value), before):
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(before)

    return restore


def _cell(cell: types.CellType, before: object) -> _Restore:
    def restore() -> None:
        cell.cell_contents = before

    return restore


def _names(scope: dict[str, Any]) -> _Restore:
    """Restore the globals of a Python module, but for those that Dynamo adds and itself removes."""
    before = dict(scope)

    def restore() -> None:
        for name, value in before.items():
            if scope.get(name, before) is not value:
                scope[name] = value
        for name in scope.keys() - before.keys():
            if not name.startswith("__"):
                del scope[name]

    return restore


def _same(now: Any, before: dict[Any, Any]) -> bool:
    return now.keys() == before.keys() and all(now[key] is before[key] for key in before)


def _alike(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _settings() -> list[_Restore]:
    """What restores the generators of random numbers, and settings of PyTorch and Python."""
    cpu, own = torch.get_rng_state(), random.getstate()
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    trace, profile = sys.gettrace(), sys.getprofile()
    restores: list[_Restore] = [
        lambda: torch.set_rng_state(cpu),
        lambda: random.setstate(own),
        lambda: torch.set_default_dtype(dtype),
        lambda: torch._C._set_grad_enabled(gradients),
        lambda: sys.settrace(trace) if sys.gettrace() is not trace else None,
        lambda: sys.setprofile(profile) if sys.getprofile() is not profile else None,
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        restores.append(lambda: torch.cuda.set_rng_state_all(devices))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numbers = numpy.random.get_state()
        restores.append(lambda: numpy.random.set_state(numbers))
    return restores
