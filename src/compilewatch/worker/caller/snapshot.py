"""The state of a caller's objects and globals, kept while compilewatch calls their model here.

This is for where the process cannot be copied (`copied`). All evaluations of one check must start
from the state that the caller left, and the caller must find it again afterwards. A copy of the
model would not do: its functions and closures would still refer to the original.

What is kept: everything that can be reached from the model and its arguments through modules,
classes, containers, closures, functions with the globals that they name, and objects of classes
that are not part of Python or PyTorch; and PyTorch's and Python's own settings. What cannot be
restored is said (`NOT_RESTORED`).

Dynamo's state in a process that has compiled models of its own, and will compile more.

`torch._dynamo.reset()` starts anew, but for the complete process: every compiled model of the
caller would be compiled again at its next call, and their CUDA graphs and tables of kernels would
be gone. Here Dynamo starts anew for one model only:

- Dynamo keeps compiled code, and its decision to skip a function, with the function's code object.
  Functions that it has seen get a copy of their code, which has neither, until the end; the code of
  others is forgotten at the end.
- Tables and counters are emptied, and filled again at the end.
"""

import collections
import gc
import inspect
import logging
import os
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch import nn
from torch._dynamo import callback, code_context, convert_frame, eval_frame, pgo, utils
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy

_NOT_FOLLOWED = frozenset(
    {"torch", "numpy", "builtins", *sys.stdlib_module_names} - {"__main__", "types", "argparse"}
)
"""Packages whose objects are not searched for state, but for tensors, modules and containers. Nor
are installed packages that no part of the model is from: other threads may use them."""

_GLOBAL_HOOKS = tuple(name for name in vars(module_hooks) if name.startswith("_global_"))

NOT_RESTORED = "iterators, caches of functions, C extensions and other packages are not restored"

_Restore = Callable[[], str | None]
"""Restores something, and returns what could not be restored."""

_Access = tuple[Callable[[], Any], Callable[[Any], Any]]
"""What reads and what writes a value."""

_MISSING = object()


@contextmanager
def kept(left: dict[str, None], model: nn.Module, inputs: object) -> Iterator[None]:
    """Restore everything at the end that can be reached from a model and its inputs, and settings.

    `left` gets what could not be restored, as keys. Tensors are copied, so this needs as much
    memory as they have.
    """
    walk = _Walk({_package(type(module)) for module in model.modules()})
    for name in _GLOBAL_HOOKS:
        walk.keep(getattr(module_hooks, name))
    walk.keep((model, inputs))
    walk.restores += _settings()
    try:
        yield
    finally:
        for restore in walk.restores:
            if problem := restore():
                left[problem] = None


class _Walk:
    """Visits objects once each, and collects what restores them."""

    def __init__(self, packages: set[str]) -> None:
        self.restores: list[_Restore] = []
        self._followed = {name: name not in _NOT_FOLLOWED for name in packages}
        self._seen: dict[int, object] = {}  # the objects too, because ids are used again

    def keep(self, root: object) -> None:
        waiting = [root]
        while waiting:
            value = waiting.pop()
            if id(value) in self._seen or isinstance(value, (str, bytes, int, float, type(None))):
                continue
            self._seen[id(value)] = value
            waiting += self._one(value)

    def _one(self, value: object) -> Iterable[object]:
        """Keep one object, and return what it refers to."""
        if isinstance(value, torch.Tensor):
            self.restores.append(_tensor(value))
            return [value.grad] if value.is_leaf and value.grad is not None else []
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, dict | list | set | collections.deque):
            self.restores.append(_container(value))
        if isinstance(value, dict):
            return list(dict.values(value))
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            return list(value)
        if isinstance(value, staticmethod | classmethod):
            return [value.__func__]
        if isinstance(value, property):
            return [value.fget, value.fset]
        if isinstance(value, types.FunctionType | types.MethodType | partial):
            return self._code(value)
        if (state := _numbers(value)) is not None:
            self.restores.append(_setting(*state))
            return []
        if isinstance(value, nn.Module):
            # A lazy module becomes another at its first call.
            self.restores.append(_attribute(value, "__class__"))
        elif isinstance(value, types.ModuleType) or not self._follows(_package(type(value))):
            return []
        attributes: dict[str, Any] = dict(getattr(value, "__dict__", {}))
        if hasattr(value, "__dict__"):
            self.restores.append(_container(value.__dict__))
        if slots := _slot_names(type(value)):
            self.restores += (_attribute(value, name) for name in slots)
            attributes |= {name: getattr(value, name, None) for name in slots}
        return [type(value), *attributes.values()]

    def _class(self, cls: type) -> Iterable[object]:
        if not self._follows(_package(cls)):
            return cls.__bases__
        self.restores.append(_names(vars(cls), partial(setattr, cls), partial(delattr, cls)))
        return [*vars(cls).values(), *cls.__bases__]

    def _code(self, called: Any) -> list[object]:
        """Return what a function reaches: its closure, defaults, attributes and named globals."""
        reached: list[object] = []
        while True:
            if isinstance(called, partial):
                reached += [called.args, called.keywords]
                called = called.func
            elif isinstance(called, types.MethodType):
                reached.append(called.__self__)
                called = called.__func__
            elif hasattr(called, "__wrapped__"):
                called = inspect.unwrap(called)
            else:
                break
        if not isinstance(called, types.FunctionType):
            return reached
        for cell in called.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                reached.append(cell.cell_contents)
                self.restores.append(_attribute(cell, "cell_contents"))
        reached += [called.__defaults__, called.__kwdefaults__, called.__dict__]
        if not self._follows(_package(called)):
            return reached
        scopes = [called.__globals__]
        names = list(_names_in(called.__code__))
        for name in names:
            value = called.__globals__.get(name)
            if isinstance(value, types.ModuleType):
                package = value.__name__.partition(".")[0]
                scopes += [vars(value)] if self._follows(package) else []
        for scope in scopes:
            named = {name: scope[name] for name in names if name in scope}
            reached += named.values()
            if id(scope) not in self._seen:
                self._seen[id(scope)] = scope
                self.restores.append(_names(scope))
        return reached

    def _follows(self, package: str) -> bool:
        """Whether objects and functions of a package may have state of the model."""
        if package not in self._followed:
            file = getattr(sys.modules.get(package), "__file__", None) or ""
            installed = "site-packages" in file or "dist-packages" in file
            self._followed[package] = package not in _NOT_FOLLOWED and not installed
        return self._followed[package]


def _package(value: Any) -> str:
    return str(value.__module__ or "").partition(".")[0]


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names that a function's code uses, and the code of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _slot_names(cls: type) -> list[str]:
    named = (vars(base).get("__slots__", ()) for base in cls.__mro__)
    names = (name for slots in named for name in ([slots] if isinstance(slots, str) else slots))
    return [name for name in names if name not in ("__dict__", "__weakref__")]


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
        with torch.no_grad(), torch.inference_mode(version is None):
            if plain and (tensor.shape != copy.shape or tensor.data_ptr() != data.data_ptr()):
                tensor.data = data
            same = _same_bits(tensor.detach(), copy)
            if same is None:
                same = version is not None and tensor._version == version
            if not same:
                tensor.detach().copy_(copy)

    return restore


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool | None:
    """Whether two tensors have the same bits; None for those that have no bits to compare.

    Versions do not say it: what is written through `.data`, and by some operators, has none.
    """
    if isinstance(first, FakeTensor):
        return None
    try:
        ours, theirs = (
            tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
            for tensor in (first, second)
        )
        return bool(torch.equal(ours, theirs))
    except (RuntimeError, NotImplementedError):  # a layout or a subclass without `view`
        return None


def _numbers(value: object) -> _Access | None:
    """How to read and write the state of a generator of random numbers, and of an array."""
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if isinstance(value, numpy.ndarray) and value.flags.writeable:
        return value.copy, lambda copy: value.__setitem__(..., copy)
    return None


def _attribute(owner: Any, name: str) -> _Restore:
    before = getattr(owner, name, _MISSING)

    def restore() -> None:
        if getattr(owner, name, _MISSING) is before:
            return
        if before is _MISSING:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, before)

    return restore


def _names(
    names: Any,
    write: Callable[[str, Any], None] | None = None,
    delete: Callable[[str], None] | None = None,
) -> _Restore:
    """Restore the names of a module or a class, but for those that Dynamo and imports add."""
    before = dict(names)

    def restore() -> str | None:
        now = dict(names)
        try:
            for name, value in before.items():
                if now.get(name, _MISSING) is not value:
                    (write or names.__setitem__)(name, value)
            for name in now.keys() - before.keys():
                if not name.startswith("__") and not isinstance(now[name], types.ModuleType):
                    (delete or names.__delitem__)(name)
        except (AttributeError, TypeError) as error:
            return f"a class cannot be restored: {error}"
        return None

    return restore


def _container(value: Any) -> _Restore:
    def content() -> dict[Any, Any]:
        # Subclasses may do something else where they are read, such as making an instance.
        return dict(dict.items(value) if isinstance(value, dict) else enumerate(value))

    before = content()

    def restore() -> None:
        now = content()
        if now.keys() == before.keys() and all(now[key] is before[key] for key in before):
            return
        value.clear()
        if isinstance(value, dict):
            value.update(before)
        else:
            (value.update if isinstance(value, set) else value.extend)(before.values())

    return restore


def _setting(read: Callable[[], Any], write: Callable[[Any], Any]) -> _Restore:
    before = read()

    def restore() -> None:
        with suppress(ValueError, RuntimeError):  # arrays have no single truth value
            if read() == before:
                return
        write(before)

    return restore


def _settings() -> Iterator[_Restore]:
    """What restores generators of random numbers, and settings of PyTorch and Python."""
    pairs: list[_Access] = [
        (torch.get_rng_state, torch.set_rng_state),
        (random.getstate, random.setstate),
        (torch.get_default_dtype, torch.set_default_dtype),
        (_default_device, torch.set_default_device),
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (torch._dynamo.config.get_config_copy, torch._dynamo.config.load_config),
        (torch._inductor.config.get_config_copy, torch._inductor.config.load_config),
        (sys.gettrace, sys.settrace),
        (sys.getprofile, sys.setprofile),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (os.getcwd, os.chdir),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        pairs.append((torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
    if (numpy := sys.modules.get("numpy")) is not None:
        pairs.append((numpy.random.get_state, numpy.random.set_state))
        pairs.append((numpy.get_printoptions, lambda options: numpy.set_printoptions(**options)))
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            pairs.append((partial(getattr, logger, "level"), logger.setLevel))
            yield from (_attribute(logger, name) for name in ("disabled", "propagate"))
    yield from (_setting(*pair) for pair in pairs)
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        yield _attribute(torch.backends.cudnn, name)
    yield _names(vars(torch._tensor_str.PRINT_OPTS))
    yield _names(os.environ)
    yield _container(sys.path)


def _default_device() -> torch.device | None:
    mode = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    device: torch.device | None = mode.device if mode is not None else None
    return device


_TABLES: tuple[tuple[Any, str], ...] = (
    (utils, "counters"),
    (utils, "guard_failures"),
    (utils, "graph_break_reasons"),
    (utils, "compilation_time_metrics"),
    (utils, "cumulative_time_spent_ns"),
    (utils, "warn_once_cache"),
    (utils, "_compilation_metrics"),
    (convert_frame, "FRAME_COMPILE_COUNTER"),
    (eval_frame, "cached_backends"),
    (callback.callback_handler, "start_callbacks"),
    (callback.callback_handler, "end_callbacks"),
)
"""Containers that are emptied in place, since other modules of torch hold the same objects.

Callbacks are emptied too: the caller's are about compilations of their own.
"""

_WEAK_TABLES: tuple[tuple[Any, str], ...] = (
    (ContinueExecutionCache, "cache"),
    (ContinueExecutionCache, "generated_code_metadata"),
    (code_context.code_context, "code_context"),
)

_VALUES: tuple[tuple[Any, str], ...] = (
    (convert_frame, "FRAME_COUNTER"),
    (convert_frame, "input_codes"),
    (convert_frame, "output_codes"),
    (utils, "curr_frame"),
    (pgo, "_CODE_STATE"),
    (pgo, "_INIT_CODE_STATE"),
    (pgo, "_LOGGED_DYNAMIC_ALLOWLIST"),
)
"""Attributes of torch's modules that hold state, not code."""


@contextmanager
def apart() -> Iterator[Callable[[], None]]:
    """Let Dynamo start anew, and restore its state at the end.

    Yields a function that forgets what has been compiled since. Tables that this version of torch
    does not have are left out.
    """
    tables = [(getattr(o, name), _content(getattr(o, name))) for o, name in _there(_TABLES)]
    weak = [(o, name, getattr(o, name)) for o, name in _there(_WEAK_TABLES)]
    values = [(o, name, getattr(o, name)) for o, name in _there(_VALUES)]
    seen = _codes(convert_frame.input_codes)

    def forget() -> None:
        for tracker in (convert_frame.input_codes, convert_frame.output_codes):
            for code in _codes(tracker):
                eval_frame.reset_code(code)
            tracker.clear()
        for table, _ in tables:
            table.clear()
        for owner, name, kept in weak:
            setattr(owner, name, type(kept)())
        pgo.reset_code_state()
        convert_frame.FRAME_COUNTER = 0

    with _fresh_code(seen):
        for owner, name, value in values:
            if isinstance(value, convert_frame.Tracker):
                setattr(owner, name, convert_frame.Tracker())
        forget()
        try:
            with torch.compiler.set_stance("default"):
                yield forget
        finally:
            forget()
            for owner, name, value in (*weak, *values):
                setattr(owner, name, value)
            for table, content in tables:
                (table.update if isinstance(table, dict | set) else table.extend)(content)


def _there(table: tuple[tuple[Any, str], ...]) -> Iterator[tuple[Any, str]]:
    return ((owner, name) for owner, name in table if hasattr(owner, name))


def _content(table: Any) -> Any:
    """The content of a container, with copies of the containers in it."""
    if isinstance(table, dict):
        nested = isinstance(next(iter(table.values()), None), dict | list)
        return {key: type(v)(v) if nested else v for key, v in table.items()}
    return list(table)


def _codes(tracker: Any) -> list[types.CodeType]:
    return [code for ref in tracker.seen if (code := ref()) is not None]


@contextmanager
def _fresh_code(seen: list[types.CodeType]) -> Iterator[None]:
    """Give all functions with one of these codes an equal code that Dynamo has not seen.

    Code of functions that exist no more, or only inside the code of another one, is left.
    """
    if not seen:
        yield
        return
    copies = {id(code): (code, code.replace()) for code in seen}
    changed: list[tuple[types.FunctionType, types.CodeType]] = []
    for function_seen in gc.get_referrers(*seen):
        if isinstance(function_seen, types.FunctionType) and id(function_seen.__code__) in copies:
            code, copy = copies[id(function_seen.__code__)]
            changed.append((function_seen, code))
            function_seen.__code__ = copy
    try:
        yield
    finally:
        for function, code in changed:
            function.__code__ = code
