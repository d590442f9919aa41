"""Verifies a fix in plain PyTorch: this file is the script that `fix` writes, but for its end.

It imports nothing of compilewatch. The end defines `build(seed)`, which returns the model,
`inputs(shape)`, which returns the caller's own arguments, and `compilable`, the context manager
that is the fix; `main` calls them.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dis
import gc
import importlib
import inspect
import json
import linecache
import logging
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters, same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import MappingKey, tree_leaves, tree_map, tree_map_only, tree_map_with_path
from torch.utils.benchmark import Timer

if __name__ == "__main__":
    # All is examined on the CPU: where there is a GPU, autograd has threads that no fork has.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

Step = tuple[bool, str]
"""Whether a requirement is met, and what was found."""

Call = tuple[str, str]
"""The shape and the variant of the inputs of a call."""

FIRST, SECOND = SHAPES = ("first shape", "second shape")

OTHER_NUMBERS = "own, while numbers that the fix reads are others"

CALLS: tuple[Call, ...] = (
    (FIRST, "own"),
    (SECOND, "own"),
    (FIRST, "permuted"),
    (SECOND, "permuted"),
    (FIRST, "lowest"),
    (SECOND, "spread"),
    (FIRST, "highest"),
    (SECOND, "lowest"),
    (FIRST, OTHER_NUMBERS),
    (FIRST, "spread"),
    (SECOND, "highest"),
    (FIRST, "own"),
)
"""The calls of one model, in order."""

COUNTED = 4
"""In so many calls compilations are counted: the later ones may need one for a changed number."""

FEW = 4
"""So many calls are made with other weights, and with Inductor."""

SLOW = 0.25
LEAST = 6
"""So many calls, and the one with other numbers, are made of a model if a call takes more than
`SLOW` seconds of a core."""

EAGER_ONLY: tuple[Call, ...] = ((FIRST, "one sample"), (FIRST, "not contiguous"))
"""Further calls that are made without a compiler, which would compile anew for each."""

LARGE_TENSOR = 2**22
"""From so many elements on, a copy costs as much as what computed the tensor."""

SEEDS = (0, 1)
"""The seeds of the weights for which results are compared."""

CAPTURE_TOLERANCE = 1e-6
"""How far a graph that eager mode runs may differ from the model: rounding alone."""

INDUCTOR_TOLERANCE = 1e-4
"""The tolerance of `torch._dynamo.utils.same` in PyTorch's own benchmarks, for float32."""

Outcome = dict[str, Any]
"""All that a caller can notice of one call, by name: tensors, numbers and texts."""

OF_STATE = "state "
"""The names of attributes and globals begin so: they are compared where a call changed them."""

MEMORY = "memory of "
OF_EAGER = (MEMORY, "gradient flows through ", "random numbers")
"""The names of what Inductor may do in another way than eager mode begin so."""


# --- what is called -------------------------------------------------------------------------------


@dataclass
class ScriptSubject:
    """A model, its inputs, and the fix. `compilable(model, args, kwargs, options)` is the fix.

    `functions` (`module:path`) are those that the fix changes, `frozen` those of them that run when
    the model is compiled and not at each call, and `attributes` names of attributes that it
    replaces. `branches` are a title, and the model's function and the fix's, both with one branch
    forced, as context managers. With `settings`, it changes settings of the compiler alone, which
    eager mode does not read. With `shapes`, it is to compile less for other sizes. `calls` are
    those of `CALLS` that are made (`planned`). `built` are models that were never called, by seed.
    """

    new: Callable[[int], torch.nn.Module]
    inputs: Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]]
    compilable: Callable[..., contextlib.AbstractContextManager[Any]]
    train: bool = False
    drops: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    branches: Sequence[tuple[str, Callable[..., Any], Callable[..., Any]]] = ()
    settings: bool = False
    shapes: bool = False
    calls: tuple[Call, ...] = CALLS
    built: dict[int, torch.nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.eager_only: tuple[Call, ...] = () if self.settings else EAGER_ONLY

    def build(self, seed: int) -> torch.nn.Module:
        """Return a model that was never called: in each fork first what was built before it."""
        return self.built.pop(seed) if seed in self.built else self.new(seed)

    def unchanged(
        self, _: Any, args: Any, kwargs: Any, *__: Any
    ) -> contextlib.AbstractContextManager[Any]:
        """Take the place of the fix: the model as it is."""
        return contextlib.nullcontext((args, kwargs))


@dataclass
class ScriptCall:
    """A model that is called again and again, under a fix, and compiled if there is a backend.

    Each call is made within `around`; `begun` counts them. `parameters` are checksums of the
    model's parameters, if they are known.
    """

    subject: ScriptSubject
    model: torch.nn.Module
    fix: Callable[..., contextlib.AbstractContextManager[Any]]
    backend: Any = None
    whole: bool = False
    around: contextlib.AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)
    begun: int = 0
    run: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)

    def __call__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seed: int,
        *,
        brief: bool = False,
        errors: bool = False,
    ) -> Outcome:
        """Make a call, and return all that can be compared, as copies.

        With `brief`, of each gradient only the sum of its magnitudes is returned, which takes less
        memory. With `errors`, what it does besides raising one is not of interest.
        """
        own = [list(args), dict(kwargs)]  # which the call may change
        model = self.model
        self.begun += 1
        seeded(seed)  # a fix that draws random numbers is noticed
        with self.fix(model, args, kwargs, self.options) as (args, kwargs):
            if self.run is None:
                compiled = partial(torch.compile, backend=self.backend, fullgraph=self.whole)
                self.run = model if self.backend is None else compiled(model, **self.options)
            model.zero_grad(set_to_none=True)
            if errors:
                self.output(args, kwargs)
                return {}
            before, known = state(model), self.parameters or checksums(model)
            output, outcome = self.output(args, kwargs)
            outcome |= dict(leaves(output, "output")) | dict(leaves(own, "arguments"))
            outcome |= relations(output, own, model)
            outcome |= {f"buffer {name}": value for name, value in model.named_buffers()}
            self.parameters = checksums(model)
            for name, value in model.named_parameters():
                if self.parameters[name] != known.get(name):
                    precise = torch.complex128 if value.is_complex() else torch.float64
                    outcome[f"parameter {name}"] = value.detach().to(precise).sum()
                if value.grad is not None:
                    outcome[f"gradient of {name}"] = value.grad.abs().sum() if brief else value.grad
            after = state(model)
            outcome |= after
            outcome["changed"] = [name for name in after if after[name] != before.get(name)]
            return {
                name: kept(value, model, own) if torch.is_tensor(value) else value
                for name, value in outcome.items()
            }

    def output(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Outcome]:
        """Call the model, in mode train its backward; return the output and the random numbers."""
        train = self.subject.train
        with torch.set_grad_enabled(train and torch.is_grad_enabled()), self.around:
            output = self.run(*args, **kwargs)
        outcome: Outcome = {"random numbers": zlib.crc32(bytes(torch.get_rng_state().tolist()))}
        outcome["random numbers of Python"] = hash(random.getstate())
        if train and (loss := loss_of(output)) is not None and loss.requires_grad:
            loss.backward()
        return output, outcome

    def all(self, calls: Sequence[Call]) -> list[Outcome]:
        """Make these calls."""
        with restored_globals(self.subject, self.model):
            return [self.number(number, call) for number, call in enumerate(calls)]

    def take(self, other: torch.nn.Module) -> None:
        """Put another model's parameters and buffers in the place of the model's own."""
        self.parameters.clear()
        own = dict((*self.model.named_parameters(), *self.model.named_buffers()))
        for name, value in (*other.named_parameters(), *other.named_buffers()):
            # A call may have given them another shape; some share memory with themselves.
            with contextlib.suppress(KeyError, RuntimeError, ValueError), torch.no_grad():
                if own[name].shape == value.shape:
                    own[name].copy_(value)

    def number(self, number: int, call: Call) -> Outcome:
        """Make one of the calls, with a seed of its own."""
        others = altered(self.subject, self.model)
        with others if call[1] == OTHER_NUMBERS else contextlib.nullcontext():
            given = arguments(self.subject, *call)
            return self(*given, seed=number, brief=number >= COUNTED)


def arguments(subject: ScriptSubject, shape: str, variant: str) -> tuple[Any, Any]:
    """Return the caller's own arguments, or others within the range of their values.

    Integers of a few elements that are no ids, masks or labels are sizes and positions, which stay
    as they are: the other arguments depend on them.
    """
    seeded(0)
    own = subject.inputs(shape)
    change = VARIANTS[variant]
    if change is None:
        return own
    first = next((leaf for leaf in tree_leaves(own) if torch.is_tensor(leaf) and leaf.dim()), None)
    samples = 0 if first is None else len(first)

    def varied(path: tuple[Any, ...], value: Any) -> Any:
        if not torch.is_tensor(value) or value.is_complex() or not value.numel():
            return value
        return value if is_size(path, value) else change(value, samples)

    return tree_map_with_path(varied, own)  # type: ignore[no-any-return]


def given_tensors(subject: ScriptSubject, shape: str) -> list[torch.Tensor]:
    return list(filter(torch.is_tensor, tree_leaves(arguments(subject, shape, "own"))))


def is_size(path: tuple[Any, ...], value: torch.Tensor) -> bool:
    """Whether an argument holds sizes or positions, by its name, type and number of elements."""
    if value.is_floating_point() or value.dtype is torch.bool or value.numel() > 64:
        return False
    names = [key.key for key in path if isinstance(key, MappingKey)]
    if not names:
        return bool(value.dim() < 2)
    return bool(not re.search(r"ids$|mask|labels|token_type", str(names[0])))


def permuted(value: torch.Tensor, samples: int) -> torch.Tensor:
    """Permute floating-point values, and roll the samples of integers."""
    if value.is_floating_point():
        return value.flatten()[torch.randperm(value.numel())].view(value.shape)
    return value.roll(1, 0) if value.dim() and len(value) == samples else value


def spread(value: torch.Tensor, samples: int) -> torch.Tensor:
    """Draw values between the smallest and the largest one."""
    if value.dtype is torch.bool or not value.isfinite().all():
        return permuted(value, samples)
    low, high = value.min().item(), value.max().item()
    if value.is_floating_point():
        drawn = torch.rand(value.shape, dtype=torch.float64) * (high - low) + low
        return drawn.clamp(low, high).to(value.dtype)
    return torch.randint(int(low), int(high) + 1, value.shape, dtype=value.dtype)


SAMPLES = (1, 2, 3, 5, 8)
"""Of so many samples are the calls in which compilations for other sizes are counted."""


def samples_of(value: torch.Tensor, samples: int, number: int) -> torch.Tensor:
    """Take so many samples, from the first one again where there are too few."""
    whole = bool(value.dim()) and len(value) == samples
    return value[torch.arange(number) % samples] if whole else value


VARIANTS: dict[str, Callable[[torch.Tensor, int], torch.Tensor] | None] = {
    "own": None,
    OTHER_NUMBERS: None,
    "permuted": permuted,
    "spread": spread,
    "lowest": lambda value, _: torch.full_like(value, value.min().item()),
    "highest": lambda value, _: torch.full_like(value, value.max().item()),
    "one sample": lambda value, n: value[:1].clone() if value.dim() and len(value) == n else value,
    **{f"{n} samples": partial(samples_of, number=n) for n in SAMPLES},
    "not contiguous": lambda value, _: (
        value.repeat_interleave(2, -1)[..., ::2] if value.dim() else value
    ),
}


def planned(subject: ScriptSubject) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """Return the calls to be made, and those of them that are made in eager mode only.

    They are fewer if the model is slow, and none is with other numbers if the fix changes nothing
    that reads some. Own inputs take the place of those that eager mode does not accept. Raises what
    an own call raises.
    """
    plain = ScriptCall(subject, subject.build(0), subject.unchanged)
    usable: set[Call] = set()
    seconds: list[float] = []
    for call in dict.fromkeys([*CALLS, *subject.eager_only]):
        began = time.process_time()
        try:
            with torch.no_grad():
                plain.number(COUNTED, call)
        except Exception:  # model code
            if call[1] == "own":
                raise
        else:
            usable.add(call)
        seconds.append(time.process_time() - began)
    slow = min(seconds[: len(SHAPES)]) > SLOW
    changed = {*subject.functions, *subject.attributes} - {*subject.frozen}
    calls = (
        call if call in usable else (call[0], "own")
        for number, call in enumerate(CALLS)
        if (changed if call[1] == OTHER_NUMBERS else number < LEAST or not slow)
    )
    return tuple(calls), tuple(call for call in subject.eager_only if call in usable)


# --- what a call leaves ---------------------------------------------------------------------------


def seeded(seed: int) -> None:
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed)
    torch.manual_seed(seed)


def kept(value: torch.Tensor, model: torch.nn.Module, own: Any) -> torch.Tensor:
    """Return a copy that no later call changes; a large tensor that nobody else has is no copy."""
    if value.numel() >= LARGE_TENSOR:
        attributes = leaves([vars(module) for module in model.modules()], "", objects=False)
        others = (*model.parameters(), *model.buffers(), *tensors(own), *(v for _, v in attributes))
        if memory(value) not in {memory(other) for other in others if torch.is_tensor(other)}:
            return value.detach()
    return value.detach().clone()


def checksums(model: torch.nn.Module) -> dict[str, int]:
    """Return a checksum of each parameter; copies would take as much memory as the model."""
    return {name: checksum(value.detach()) for name, value in model.named_parameters()}


def checksum(values: torch.Tensor) -> int:
    try:
        count = values.numel() * values.element_size()
        return zlib.crc32((ctypes.c_char * count).from_address(values.contiguous().data_ptr()))
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        # Sparse tensors, and those of some subclasses, have no bytes to be read.
        return hash(repr(values.double().sum()))


def loss_of(output: Any) -> Any:
    """Return the loss of a model, or one that every element of its outputs takes part in.

    The weights differ between elements: the mean of a normalised output has no gradient.
    """
    loss: Any = getattr(output, "loss", None)
    if torch.is_tensor(loss) and loss.requires_grad:
        return loss.mean()  # of each sample in some models
    outputs = [value for value in tensors(output) if value.requires_grad]
    parts = [(value.abs() if value.is_complex() else value).flatten() for value in outputs]
    if not parts:
        return None
    return sum(
        (part.float() * torch.arange(1.0, len(part) + 1).sin()).sum() / len(part)
        for part in parts
        if len(part)
    )


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves(value, "") if isinstance(leaf, torch.Tensor)]


def leaves(
    value: Any, path: str, *, objects: bool = True, seen: set[int] | None = None, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield each tensor, number and text of a value with its path, and the type of what holds them.

    With `objects`, attributes of objects are followed, too. What is in `seen` is left out.
    """
    plain = isinstance(value, complex | bool | int | float | str | torch.dtype | None)
    if plain or isinstance(value, torch.Tensor):
        yield path, value
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        yield path, f"{value.dtype} {value.shape} {hash(value.tobytes())}"
    elif depth < 8:
        items: Any = ()
        if isinstance(value, Mapping):
            items = list(value.items())
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        elif objects and has_attributes(value):
            items = list(vars(value).items())
        else:
            return
        if seen is not None:
            if id(value) in seen:
                return
            seen.add(id(value))
        yield path, f"<{type(value).__name__}>"
        for key, item in items:
            yield from leaves(item, f"{path}.{key}", objects=objects, seen=seen, depth=depth + 1)


def has_attributes(value: Any) -> bool:
    """Whether an object's attributes belong to it; those of a logger or a Python module lead
    to the whole program.
    """
    return (
        hasattr(value, "__dict__")
        and not callable(value)
        and not isinstance(value, logging.Logger | ModuleType)
    )


def relations(output: Any, own: Any, model: torch.nn.Module) -> Outcome:
    """Return which outputs share memory with what, and through which gradients flow."""
    owners: dict[int, str] = {}
    tensors_there = [*leaves(own, "arguments"), *model.named_parameters(), *model.named_buffers()]
    for name, value in tensors_there:
        if isinstance(value, torch.Tensor):
            owners.setdefault(memory(value), name)
    outcome: Outcome = {}
    for name, value in leaves(output, "output"):
        if isinstance(value, torch.Tensor):
            outcome[f"gradient flows through {name}"] = value.requires_grad
            if place := memory(value):
                owner = owners.setdefault(place, name)
                outcome[f"{MEMORY}{name}"] = "its own" if owner == name else f"that of {owner}"
    return outcome


def memory(value: torch.Tensor) -> int:
    """Return where a tensor's storage is; 0 if it has none."""
    with contextlib.suppress(Exception):  # subclasses and sparse tensors
        return int(value.untyped_storage().data_ptr()) if value.numel() else 0
    return 0


# --- attributes and globals -----------------------------------------------------------------------

OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
"""What PyTorch itself keeps in each module: parameters, buffers, submodules and hooks."""

PLAIN = (bool, int, float, str, type(None), list, dict, set)
"""Types of the globals that are compared. Subclasses may make what they return, as tables do."""

FOREIGN = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "builtins", "__main__"}
"""Packages whose globals belong to no model."""


def is_own(name: str | None) -> bool:
    """Whether a module by its name may belong to a model."""
    return bool(name) and name is not None and name.partition(".")[0] not in FOREIGN


def own_globals(model: torch.nn.Module) -> Iterator[tuple[Any, Any, str, str]]:
    """Yield what the model's files and classes keep outside of it: owner, value, title and name.

    The files are those of its classes, and those of functions that they import. Plain numbers,
    texts and containers are followed, and objects of classes in these files.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    kinds = {kind for kind in kinds if is_own(kind.__module__)}
    owners: dict[str, Any] = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds}
    files = {kind.__module__ for kind in kinds}
    for file in tuple(files):
        for name, value in list(vars(sys.modules.get(file, torch.nn.Module)).items()):
            # Dynamo keeps what it compiled in the globals of a file.
            if isinstance(value, FunctionType | ModuleType) and not name.startswith("__"):
                home = value.__module__ if isinstance(value, FunctionType) else value.__name__
                files.update([home] if is_own(home) else [])
    owners |= {file: sys.modules[file] for file in files if file in sys.modules}
    for title, owner in sorted(owners.items()):
        for name, value in list(vars(owner).items()):
            own = type(value).__module__ in files and has_attributes(value)
            own = own and not isinstance(value, list | Mapping | set)  # tables of a library
            if (own or type(value) in PLAIN) and not name.startswith("__"):
                yield owner, value, f"{title}.{name}", name


def state(model: torch.nn.Module) -> Outcome:
    """Return the numbers and texts in attributes of the modules, and in globals of their files."""
    seen: set[int] = set()
    values: Outcome = {}
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name not in OF_MODULES:
                values |= dict(leaves(value, f"{OF_STATE}{path}.{name}", seen=seen))
    for _, value, title, _ in own_globals(model):
        plain = repr(sorted(map(repr, value))) if isinstance(value, set) else value
        objects = type(value) not in PLAIN
        values |= dict(leaves(plain, f"{OF_STATE}{title}", objects=objects, seen=seen))
    return {
        name: float(value.detach().double().abs().sum())
        if isinstance(value, torch.Tensor)
        else value
        for name, value in values.items()
    }


@contextlib.contextmanager
def restored_globals(subject: ScriptSubject, model: torch.nn.Module) -> Iterator[None]:
    """Put back what is changed of the globals, so that two models begin with the same ones.

    So is what the functions of the fix keep in their default values.
    """
    defaults = [
        (function, function.__defaults__) for function in changed_functions(subject.functions)
    ]
    before = [(owner, value, content(value), name) for owner, value, _, name in own_globals(model)]
    before += [
        (None, element, content(element), "") for _, values in defaults for element in values or ()
    ]
    try:
        yield
    finally:
        for owner, value, saved, name in before:
            if isinstance(value, list):
                value[:] = saved
            elif isinstance(value, dict | set):
                value.clear()
                value.update(saved)
            elif type(value) not in PLAIN and hasattr(value, "__dict__"):
                vars(value).clear()
                vars(value).update(saved)
            if owner is not None and vars(owner).get(name) is not value:
                setattr(owner, name, value)


def content(value: Any) -> Any:
    """Return a copy of a container, or of the attributes of an object."""
    plain = type(value) in PLAIN or not hasattr(value, "__dict__")
    with contextlib.suppress(Exception):  # what cannot be copied
        return copy.deepcopy(value if plain else vars(value))
    return copy.copy(value if plain else vars(value))


def changed_functions(names: Sequence[str]) -> list[FunctionType]:
    """Return functions by `module:path`, without their decorators."""
    functions = []
    for name in names:
        module, _, path = name.partition(":")
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = inspect.getattr_static(value, part)
        value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        functions.append(inspect.unwrap(value))
    return [entry for entry in functions if isinstance(entry, FunctionType)]


def reads(
    functions: Sequence[FunctionType],
) -> tuple[dict[str, tuple[dict[str, Any], str]], set[str]]:
    """Return what functions, and those that they call, read besides their arguments.

    That are globals, each with the namespace that holds it and its name there, by their titles, and
    names of attributes.
    """
    global_reads: dict[str, tuple[dict[str, Any], str]] = {}
    attributes: set[str] = set()
    waiting = list(functions)
    for function in waiting:  # the list grows, as that of the codes
        codes = [function.__code__]
        for code in codes:
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            owner: Any = None
            for step in dis.get_instructions(code):
                name, space = str(step.argval), {}
                if step.opname == "LOAD_GLOBAL":
                    space = function.__globals__
                elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    attributes.add(name)
                    space = vars(owner) if isinstance(owner, ModuleType) else {}
                owner = space.get(name)
                if name in space:
                    global_reads[f"{space['__name__']}.{name}"] = (space, name)
                if isinstance(owner, FunctionType) and is_own(owner.__module__):
                    waiting += [] if owner in waiting else [owner]
    return global_reads, attributes


def frozen_reads(subject: ScriptSubject) -> list[str]:
    """Say what functions read that run when the model is compiled: that must stay as it is."""
    conditions = []
    for name, function in zip(subject.frozen, changed_functions(subject.frozen), strict=False):
        titles = list(function.__code__.co_freevars)
        for title, (space, key) in reads([function])[0].items():
            value, package = space[key], title.partition(".")[0]
            constant = package in FOREIGN and isinstance(value, int | float | str)
            lock = type(value).__module__ in ("_thread", "threading", "logging")
            if not (callable(value) or isinstance(value, ModuleType) or constant or lock):
                titles += [title] if package != "torch" else []
        if titles:
            what = ", ".join(dict.fromkeys(titles))
            conditions.append(
                f"{what} stays as it is when the model is compiled: {name} reads it then only."
            )
    return conditions


@contextlib.contextmanager
def altered(subject: ScriptSubject, model: torch.nn.Module) -> Iterator[None]:
    """Change numbers that functions of the fix read from globals and attributes for a while.

    Integers in attributes are sizes of parameters, which stay, unless the fix replaces them.
    """
    names = [function for function in subject.functions if function not in subject.frozen]
    spaces, attributes = reads(changed_functions(names))
    places = [place for title, place in spaces.items() if is_own(title)]
    for space in (vars(module) for module in model.modules()):
        places += [(space, name) for name in subject.attributes if name in space]
        places += [(space, name) for name in attributes if type(space.get(name)) in (bool, float)]
    before = [(space, name, space[name]) for space, name in places if name != "training"]
    for space, name, value in before:
        space[name] = other_number(value)
    try:
        yield
    finally:
        for space, name, value in before:
            space[name] = value


def other_number(value: Any) -> Any:
    """Return another number of the same type; what is no single number stays."""
    kind, single = str(getattr(value, "dtype", type(value))), getattr(value, "ndim", 0) == 0
    if single and "bool" in kind:
        return value.logical_not() if torch.is_tensor(value) else type(value)(not value)
    if single and "int" in kind:
        return value + 1
    return value * 2 + 1 if single and "float" in kind else value


# --- two calls ------------------------------------------------------------------------------------


def difference(
    expected: Outcome,
    got: Outcome,
    tolerance: float,
    exact: Outcome | None = None,
    dropped: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
) -> str:
    """Return the first difference between two calls; empty if there is none.

    `exact` is the same call in float64, for PyTorch's rule that compiled code may differ from it
    a little more than eager mode does. Arguments and outputs whose name is in `dropped` are not
    compared, and nothing whose name begins as one in `ignored`. With Inductor's tolerance,
    integers are not: an index of the largest of equal values depends on the last bit
    (`unequal_integers` counts them).
    """
    changed = {*expected["changed"], *got["changed"]}
    inductor = tolerance == INDUCTOR_TOLERANCE
    steepest = max(
        (size_of(value) for name, value in expected.items() if name.startswith("gradient of ")),
        default=0.0,
    )
    for name in dict.fromkeys([*expected, *got]):
        if name == "changed" or not {*name.split(".")}.isdisjoint(dropped):
            continue
        if name.startswith(OF_STATE) and name not in changed:
            continue
        if name.startswith(OF_EAGER if inductor else ignored):
            continue
        if name not in got:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is new"
        scale = steepest if name.startswith("gradient of ") else None
        reference = (exact or {}).get(name)
        if detail := unequal(expected[name], got[name], reference, tolerance, scale):
            return f"{name} {detail}"
    return ""


def unequal(ours: Any, theirs: Any, exact: Any, tolerance: float, scale: float | None) -> str:
    """Return how two values differ; empty if they do not.

    Values that are all small are compared as if `scale`, or else the largest of them, were 1.
    """
    if isinstance(ours, float) and isinstance(theirs, float):
        ours, theirs, scale = torch.tensor(ours).double(), torch.tensor(theirs).double(), 1.0
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return "" if repr(ours) == repr(theirs) else f"is {theirs!r}, not {ours!r}"[:200]
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {theirs.dtype} {tuple(theirs.shape)}, not {ours.dtype} {tuple(ours.shape)}"
    with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors, subclasses
        if ours.equal(theirs):  # as most are, and this takes no copies of them
            return ""
    if not (ours.is_floating_point() or ours.is_complex()):
        if tolerance == INDUCTOR_TOLERANCE:
            return ""
        return f"differs in {int((ours != theirs).sum())} of {ours.numel()} elements"
    scale = size_of(ours) if scale is None else scale
    factor = 1 / scale if 0 < scale < 1 else 1.0
    if close(ours, theirs, factor, tolerance) or same(
        ours * factor,
        theirs * factor,
        exact * factor if usable(exact, ours) else None,
        tol=tolerance,
        equal_nan=True,
        log_error=lambda *_: None,
    ):
        return ""
    precise = torch.complex128 if ours.is_complex() else torch.float64
    apart = (theirs.to(precise) - ours.to(precise)).abs().nan_to_num(torch.inf)
    return f"differs by {apart.max().item():.3g}"


def close(ours: torch.Tensor, theirs: torch.Tensor, factor: float, tolerance: float) -> bool:
    """Whether tensors are close, as `same` says first, in parts that need no large copies."""
    if ours.layout is not torch.strided or theirs.layout is not torch.strided:
        return False
    parts = zip(ours.flatten().split(2**18), theirs.flatten().split(2**18), strict=True)
    return all(
        torch.allclose(a * factor, b * factor, tolerance, tolerance, equal_nan=True)
        for a, b in parts
    )


def size_of(value: Any) -> float:
    """Return the largest magnitude in a tensor; 0 if that is not a number."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return 0.0
    low, high = value.aminmax()
    size = max(-float(low), float(high))
    return size if size < float("inf") else 0.0


def usable(exact: Any, ours: torch.Tensor) -> bool:
    """Whether a value of float64 says how exact a value is.

    If it is far away, the call in float64 was another one: it drew other random numbers, or took
    another branch.
    """
    if not isinstance(exact, torch.Tensor) or exact.shape != ours.shape:
        return False
    if exact.dtype != torch.float64 or not bool(exact.isfinite().all()):
        return False
    apart = (exact - ours.double()).abs().max() if ours.numel() else 0.0
    return bool(apart <= 1e-2 * size_of(exact))


def unequal_integers(
    expected: Outcome, got: Outcome, dropped: tuple[str, ...] = ()
) -> dict[str, int]:
    """Return how many elements of each tensor of integers or booleans differ."""
    return {
        name: int((value != got[name]).sum())
        for name, value in expected.items()
        if isinstance(value, torch.Tensor)
        and not (value.is_floating_point() or value.is_complex())
        and {*name.split(".")}.isdisjoint(dropped)
        and not torch.equal(value, got[name])
    }


# --- processes ------------------------------------------------------------------------------------

# Each requirement is examined in a fork, so that its model has never been called.

DIED: dict[str, Any] = {"raised": "the process ended"}

KILLED: dict[str, Any] = {"raised": "the process was killed, as happens where memory is short"}

FORKING = multiprocessing.get_context("fork")


class Fork:
    """A function that returns in a fork what JSON can hold; it begins when it is its turn."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.process: Any = None
        self.outcome: Any = None
        self.ended = False

    def begin(self) -> None:
        self.pipe, write = FORKING.Pipe(duplex=False)
        self.process = FORKING.Process(target=self.run, args=(write,))
        self.process.start()
        write.close()

    def run(self, pipe: Connection) -> None:
        if sys.platform == "linux":  # the kernel kills it when its parent ends (prctl.h)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        torch.set_num_threads(1)  # before threads of autograd race for the pool of a fork
        pipe.send_bytes(json.dumps(attempted(self.function)).encode())
        os._exit(0)

    def end(self) -> None:
        try:
            self.outcome = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):  # it ended before, or while it wrote
            self.process.join()
            self.outcome = KILLED if self.process.exitcode == -signal.SIGKILL else DIED
        self.process.join()
        self.pipe.close()
        self.ended = True


class Forks:
    """Runs functions in forks, so many at a time, in the order in which they were given."""

    def __init__(self, at_a_time: int) -> None:
        self.at_a_time = at_a_time
        self.forks: list[Fork] = []

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        for fork in self.running():
            fork.process.kill()
            fork.end()

    def start(self, function: Callable[[], Any]) -> Fork:
        self.forks.append(Fork(function))
        self.fill()
        return self.forks[-1]

    def result(self, fork: Fork) -> Any:
        """Wait for a fork, and return what its function did.

        That is `DIED` or `KILLED` if the process ended before.
        """
        while not fork.ended:
            running: dict[Any, Fork] = {other.pipe: other for other in self.running()}
            for pipe in wait(running):
                running[pipe].end()
            self.fill()
        return fork.outcome

    def running(self) -> list[Fork]:
        return [fork for fork in self.forks if fork.process and not fork.ended]

    def fill(self) -> None:
        for fork in self.forks:
            if not fork.process and len(self.running()) < self.at_a_time:
                fork.begin()


def untouched(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a fork; `DIED` or `KILLED` if that ends before."""
    with Forks(1) as forks:
        return forks.result(forks.start(function))


def words_of(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


# --- what Dynamo captures -------------------------------------------------------------------------


class Breaks(logging.Handler):
    """Counts graph breaks in PyTorch's structured trace; its counters leave out branches."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        artifact = getattr(record, "metadata", {}).get("artifact", {})
        self.count += artifact.get("name") == "dynamo_graph_break_reason"


def captured(subject: ScriptSubject, *, calls: int) -> dict[str, int]:
    """Return what Dynamo captures of the model as it is, and what it compiles in so many calls."""
    plain = ScriptCall(subject, subject.build(0), subject.unchanged)
    return counted(plain, subject.calls[:calls])[0]


def counted(calling: ScriptCall, calls: Sequence[Call]) -> tuple[dict[str, int], list[Outcome]]:
    """Compile a model, and return what is captured and compiled in calls of it, and what they did.

    `operators` are those that graphs run: one graph may serve several layers. `late` are calls of a
    shape that was seen before in which Dynamo compiled something again; these and compilations are
    counted in the first `COUNTED` calls.
    """
    counters.clear()
    operators = 0

    def backend(module: Any, _: Any) -> Any:
        graphs = [each.graph for each in module.modules() if hasattr(each, "graph")]
        operators_here = sum(
            node.op.startswith("call_") for graph in graphs for node in graph.nodes
        )

        def run(*values: Any) -> Any:
            nonlocal operators
            operators += operators_here
            return module.forward(*values)

        return run

    breaks = Breaks(logging.DEBUG)
    logging.getLogger("torch.__trace").addHandler(breaks)
    calling.backend, calling.run = backend, None
    stats, frames = counters["stats"], counters["frames"]
    figures, outcomes = {"late": 0}, []
    with restored_globals(calling.subject, calling.model):
        for number, call in enumerate(calls):
            before = stats["unique_graphs"]
            outcomes.append(calling.number(number, call))
            if number == 0:
                # Dynamo gives up a frame without a graph break where it meets an unknown size.
                figures["breaks"] = breaks.count + frames["total"] - frames["ok"]
                figures |= {"graphs": stats["unique_graphs"], "operators": operators}
            if number < COUNTED:
                figures["late"] += number >= len(SHAPES) and stats["unique_graphs"] > before
                figures["compilations"] = stats["unique_graphs"]
    return figures, outcomes


def left_behind(subject: ScriptSubject) -> Step:
    """Whether the fix ends with its context: settings and functions of PyTorch are as before."""

    def settings() -> dict[str, Any]:
        owners = (torch, torch.nn.functional, torch.Tensor, torch.nn.Module)
        values = {
            f"{owner.__name__}.{name}": id(value)
            for owner in owners
            for name, value in vars(owner).items()
            if callable(value)
        }
        config = torch._dynamo.config.get_config_copy()
        values |= {f"torch._dynamo.config.{name}": value for name, value in config.items()}
        return values | {
            "grad mode": torch.is_grad_enabled(),
            "dtype": torch.get_default_dtype(),
        }

    model = subject.build(0)
    given, before = arguments(subject, FIRST, "own"), settings()
    with subject.compilable(model, *given, {}):
        pass
    after = settings()
    changed = [name for name, value in before.items() if after.get(name) != value]
    return not changed, f"{changed[0]} stays changed" if changed else ""


# --- results --------------------------------------------------------------------------------------

UNUSUAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda x: torch.full_like(x, float("nan")),
    "infinity": lambda x: torch.full_like(x, float("inf")),
    "zeros": torch.zeros_like,
    "negative numbers": lambda x: -x.abs() - 1,
    "large numbers": lambda x: x * 1000 + 1000,
    "integers that are all zero": torch.zeros_like,
    "integers whose last are zero": lambda x: without_last(x),
}
"""Values for which a model may take another branch or raise an error.

They are those of the inputs; if no input has floating-point numbers, of the parameters.
"""

NO_FORK = "autograd's threading in combination with fork"
"""PyTorch's words where a backward cannot be called in a fork: it says nothing of the model."""

WITHOUT = "without the fix, too"
"""What a verification says of a failure that is not the fix's: no other fix would do better."""

INTEGERS = ("integers that are all zero", "integers whose last are zero")
"""The kinds that replace integers and booleans, such as those of a mask."""


def without_last(values: torch.Tensor) -> torch.Tensor:
    """Return integers with zeros at the end of each row, as a mask of padded texts has them."""
    if not values.dim():
        return values
    last = torch.arange(values.shape[-1]) == values.shape[-1] - 1
    return values.masked_fill(last, 0)


def attempted(function: Callable[[], Any]) -> Any:
    """Return what a function returns, or what it raises as `untouched` returns that of a fork."""
    try:
        return function()
    except BaseException as error:  # noqa: BLE001  (the compiler's, or of model code)
        return {"raised": words_of(error)}


def captured_with_results(subject: ScriptSubject, *, at_a_time: int = 1) -> dict[str, Any]:
    """Return what Dynamo captures with the fix, and whether the model does what it does without it.

    That are pairs of steps, of the weights of each seed: `graph`, of the model compiled once, with
    `fullgraph=True` or, if that raises what `refused` says, without; and `eager`. `unusual` is what
    the graph does for unusual values. What follows the first calls is done in forks, so many
    `at_a_time`.
    """
    calls, few = subject.calls, subject.calls[:FEW]
    with_further = (*few, *subject.eager_only)

    def step(seed: int, calls: Sequence[Call], expected: list[Outcome], fixed: ScriptCall) -> Any:
        backend = "eager" if fixed.backend else None
        return attempted(
            lambda: compared(subject, seed, backend, calls, expected, fixed.all(calls))
        )

    compiled = ScriptCall(subject, subject.build(0), subject.compilable, whole=True)
    captures, refused = attempted(partial(counted, compiled, calls)), ""
    if isinstance(captures, dict):
        # Later calls may have numbers that need another graph.
        refused = captures["raised"] if compiled.begun <= FEW else ""
        torch._dynamo.reset()
        compiled = ScriptCall(subject, subject.build(0), subject.compilable)
        captures = counted(compiled, calls)
    figures, got = captures
    if not figures["graphs"]:
        refused = "nothing is captured"
    plain = ScriptCall(subject, subject.build(0), subject.unchanged)
    expected = plain.all(calls)
    of_graph = [compared(subject, 0, "eager", calls, expected, got)]

    def with_other_weights() -> dict[str, Any]:
        other = subject.build(1)
        for calling in (plain, compiled):
            calling.take(other)
        of_other = plain.all(with_further)
        steps = {"graph": step(1, few, of_other, compiled)}
        if subject.settings:
            unchanged = (True, "settings of the compiler do not change eager mode")
            return steps | {"eager": [unchanged] * len(SEEDS)}
        fixed = ScriptCall(subject, subject.build(0), subject.compilable)
        of_eager = [step(0, calls, expected, fixed)]
        fixed.take(other)
        return steps | {"eager": [*of_eager, step(1, with_further, of_other, fixed)]}

    # Both models have been called alike by now, and stay as they are in this process.
    with Forks(at_a_time) as forks:
        of_weights = forks.start(with_other_weights)
        unusual = for_unusual(plain, compiled, forks) if of_graph[0][0] else []
        others = forks.result(of_weights)
    if "raised" in others:
        others = {"graph": others, "eager": [others] * len(SEEDS)}
    graph = [*of_graph, others["graph"]]
    return {
        **figures,
        "refused": refused,
        "eager": others["eager"],
        "graph": graph,
        "unusual": unusual,
    }


def equal_branches(subject: ScriptSubject) -> Step:
    """Whether both branches between which a rewrite chooses do the same, whichever the values take.

    Each is forced in the model's function and in the rewritten one: types, shapes, shared memory,
    changes in place, gradients and errors must be the same.
    """
    for title, plain, fixed in subject.branches:
        outcomes = []
        for fix in (plain, fixed):
            calling = ScriptCall(subject, subject.build(0), partial(with_branch, fix))
            with restored_globals(subject, calling.model):
                outcomes.append(attempted(partial(calling.number, 0, subject.calls[0])))
        expected, got = outcomes
        if "raised" in expected or "raised" in got:
            raised = [outcome.get("raised", "nothing").partition(":")[0] for outcome in outcomes]
            detail = "" if raised[0] == raised[1] else f"raised {raised[1]}, not {raised[0]}"
        else:
            detail = difference(expected, got, CAPTURE_TOLERANCE, dropped=subject.drops)
        if detail:
            return False, f"{title}: {detail}"
    return True, f"{len(subject.branches)} branches"


@contextlib.contextmanager
def with_branch(
    forced: Callable[[], Any], _: Any, args: Any, kwargs: Any, *__: Any
) -> Iterator[Any]:
    """Force a branch, in the place of the fix."""
    with forced():
        yield args, kwargs


def equal_with_inductor(
    subject: ScriptSubject,
    errors: Callable[[], dict[str, tuple[str, bool]]],
    *,
    threads: int = 1,
    backend: str = "inductor",
) -> dict[str, Any]:
    """Whether Inductor computes what eager mode does, and raises an error where that raises one.

    `errors` says for which unusual values eager mode raises one, and whether it is a check. Each
    kernel is a file that the C++ compiler takes a second for: `threads` at a time.
    """
    os.environ["TORCH_WARM_POOL"] = "0"  # no processes that compile for a GPU
    from torch._inductor import config

    numbers = Numbers()
    calls = subject.calls[:FEW]
    with config.patch(compile_threads=threads, fallback_random=True):
        plain = ScriptCall(subject, subject.build(0), subject.unchanged)
        expected = plain.all(calls)
        compiler = numbers.within(backend)
        fixed = ScriptCall(subject, subject.build(0), subject.compilable, compiler)
        counters.clear()
        try:
            got = fixed.all(calls)
            if not counters["stats"]["unique_graphs"]:
                raise RuntimeError("nothing is captured")
            step = compared(subject, 0, backend, calls, expected, got)
        except Exception as error:  # noqa: BLE001  (of the compiler and of what it has compiled)
            torch._dynamo.reset()
            usual = ScriptCall(subject, subject.build(0), subject.unchanged, backend)
            without = attempted(partial(usual.all, calls[: fixed.begun]))
            also = f" ({WITHOUT})" if without == {"raised": words_of(error)} else ""
            return {"step": (False, f"{words_of(error)}{also}")}
    lost: list[str] = []
    conditions: list[str] = []
    tried: list[str] = []
    with config.patch(compile_threads=1, fallback_random=True):  # a fork has no such threads
        if step[0]:
            plain.fix = subject.compilable
            of_numbers = for_numbers(plain, fixed, numbers)
            step = of_numbers.pop("step", step)
            conditions, tried = of_numbers["holds_if"], of_numbers["tried"]
        for kind, (raised, check) in errors().items() if step[0] else ():
            if untouched(partial(error_for, fixed, kind)) is None:
                if check:
                    step = (False, f"no error for {kind}, for which eager mode raises one")
                lost.append(without_error(kind, raised))
    return {"step": step, "holds_if": [*lost, *conditions], "tried": tried}


def compared(
    subject: ScriptSubject,
    seed: int,
    backend: str | None,
    calls: Sequence[Call],
    expected: list[Outcome],
    got: list[Outcome],
) -> Step:
    """Whether the calls of a model with the fix did what eager mode does without it."""
    tolerance = INDUCTOR_TOLERANCE if backend == "inductor" else CAPTURE_TOLERANCE

    def as_it_is() -> list[Outcome]:
        """Make the calls of the compiled model without the fix."""
        torch._dynamo.reset()
        return ScriptCall(subject, subject.build(seed), subject.unchanged, backend).all(calls)

    for number, call in enumerate(calls):
        ours, theirs = expected[number], got[number]
        detail = difference(ours, theirs, tolerance, dropped=subject.drops)
        if detail:
            exact = in_float64(subject, seed, number, call)
            detail = difference(ours, theirs, tolerance, exact, subject.drops)
        if detail:
            with contextlib.suppress(Exception):
                plain = as_it_is() if backend else []
                if any(map(partial(difference, tolerance=tolerance), expected, plain)):
                    detail += f" (the compiled model differs from eager mode {WITHOUT})"
            return False, f"{', '.join(call)}: {detail}"
    passed = f"{len(calls)} calls"
    pairs = list(zip(expected, got, strict=False))
    if backend != "inductor" or not any(unequal_integers(*p, subject.drops) for p in pairs):
        return True, passed
    # The index of the largest of equal values depends on the last bit: where some integers differ,
    # as many must differ in the model as it is.
    for (ours, theirs), outcome in zip(pairs, as_it_is(), strict=True):
        usual = unequal_integers(ours, outcome, subject.drops)
        for name, count in unequal_integers(ours, theirs, subject.drops).items():
            if count > usual.get(name, 0):
                return False, f"{name} differs in {count} elements"
    return True, f"{passed}; integers differ without the fix, too"


def in_float64(subject: ScriptSubject, seed: int, number: int, call: Call) -> Outcome | None:
    """Return a call of the model in float64, None if it cannot be called so."""

    def doubled(value: torch.Tensor) -> torch.Tensor:
        return value.double() if value.is_floating_point() else value

    with contextlib.suppress(Exception):
        args, kwargs = tree_map_only(torch.Tensor, doubled, arguments(subject, *call))
        precise = ScriptCall(subject, subject.build(seed).double(), subject.unchanged)
        with restored_globals(subject, precise.model):
            return precise(args, kwargs, seed=number, brief=number >= COUNTED)
    return None


def unusual_kinds(subject: ScriptSubject) -> list[str]:
    """Return the kinds of values that can be put into the inputs, or into the parameters."""
    integers = []

    def note(path: tuple[Any, ...], value: Any) -> None:
        if torch.is_tensor(value) and not value.is_floating_point() and not is_size(path, value):
            integers.append(path)

    tree_map_with_path(note, arguments(subject, FIRST, "own"))
    return [kind for kind in UNUSUAL if integers or kind not in INTEGERS]


def unusual(subject: ScriptSubject, kind: str, calling: Sequence[ScriptCall]) -> tuple[Any, Any]:
    """Return unusual arguments, or usual ones for which the models get unusual parameters."""
    own = arguments(subject, FIRST, "own")
    change, floating = UNUSUAL[kind], kind not in INTEGERS
    if floating and not any(t.is_floating_point() for t in given_tensors(subject, FIRST)):
        for model_call in calling:
            model_call.parameters.clear()
            with torch.no_grad():
                for value in model_call.model.parameters():
                    value.copy_(change(value))
        return own

    def changed(path: tuple[Any, ...], value: Any) -> Any:
        if not torch.is_tensor(value) or value.is_floating_point() != floating:
            return value
        return value if is_size(path, value) else change(value)

    return tree_map_with_path(changed, own)  # type: ignore[no-any-return]


def for_unusual(
    plain: ScriptCall, fixed: ScriptCall, forks: Forks
) -> list[tuple[str, bool, str, str, tuple[str, bool] | None]]:
    """Whether a graph does what the model does for unusual values, errors included.

    Both were called with usual inputs, and each kind is tried in a fork. Returns of each kind its
    name, a step, a condition that results from it or "", and the error that the model raises, and
    whether that is a check.
    """
    subject = plain.subject

    def outcome(kind: str) -> tuple[bool, str, str, tuple[str, bool] | None]:
        values = unusual(subject, kind, (plain, fixed))
        try:
            with restored_globals(subject, plain.model):
                expected = plain(*values, seed=1)
        except Exception as error:  # noqa: BLE001  (the model's own check, or of what it calls)
            raised, hidden = (words_of(error), is_check(error)), error_for(fixed, kind)
            if NO_FORK in raised[0]:
                return False, raised[0], "", None
            if hidden is None and raised[1]:
                detail = f"eager mode raises an error that the fix hides ({raised[0]})"
                return False, detail, "", raised
            if hidden is None:
                detail = f"eager mode raises an error ({raised[0]})"
                return True, detail, without_error(kind, raised[0]), raised
            ours, theirs = (words.partition(":")[0] for words, _ in (raised, hidden))
            other = f"Nobody catches the {ours} of the model: the fix raises {theirs}."
            detail = f"an error as in eager mode ({raised[0]})"
            return True, detail, "" if ours == theirs else other, raised
        got = fixed(*unusual(subject, kind, ()), seed=1)
        # Where a branch became a selection, a copy is returned instead of the input itself.
        detail = difference(
            expected, got, CAPTURE_TOLERANCE, dropped=subject.drops, ignored=(MEMORY,)
        )
        return not detail, detail, "", None

    kinds = []
    tried_kinds = {kind: forks.start(partial(outcome, kind)) for kind in unusual_kinds(subject)}
    for kind, fork in tried_kinds.items():
        result = forks.result(fork)
        if result == DIED and untouched(partial(error_for, plain, kind)) == DIED:
            result = (True, "eager mode ends the process", "", None)
        if "raised" in result:
            result = (False, result["raised"], "", None)
        kinds.append((kind, *result))
    return kinds


def error_for(calling: ScriptCall, kind: str) -> tuple[str, bool] | None:
    """Return the error that a model, compiled or not, raises for unusual values, and if it is a
    check; None if it raises none.
    """
    values = unusual(calling.subject, kind, (calling,))
    try:
        calling(*values, seed=1, errors=True)
    except Exception as error:  # noqa: BLE001  (whatever it raises)
        return words_of(error), is_check(error)
    return None


def is_check(error: Exception) -> bool:
    """Whether an error is one that a model raises itself: `raise` or `assert` in its own file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace is not None else ""
    if trace is None or file.startswith(TORCH):
        return False
    return linecache.getline(file, trace.tb_lineno).strip().startswith(("raise", "assert"))


def without_error(kind: str, raised: str) -> str:
    return (
        f"No input is like {kind}: eager mode raises {raised.partition(':')[0]}, the fix does not."
    )


# --- numbers --------------------------------------------------------------------------------------

TORCH = str(Path(torch.__file__).parent)

LARGE = (10**6, 2**31 + 11)
"""Large numbers, one of which does not fit in 32 bits."""

MOST_CONSTANTS = 6
NUMBER_SECONDS = 10
NUMBER_MEMORY = 2**32
"""So many bytes more than it has a process may take for a number."""


class Numbers(TorchDispatchMode):  # type: ignore[misc]
    """Counts the integers that are read from tensors (`.item()`), and puts `value` in their place.

    It notes the places in the model's code where numbers are read, by their type. Of floating-point
    numbers a compiler makes tensors, which nothing reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.value: int | None = None
        self.count, self.reading = 0, False
        self.places: dict[type, dict[str, CodeType]] = {int: {}, float: {}}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            return self.read(result, args[0].dtype)
        return result

    def read(self, number: Any, dtype: torch.dtype) -> Any:
        if type(number) not in self.places:
            return number
        frame = sys._getframe()
        while frame.f_back and frame.f_code.co_filename.startswith((TORCH, __file__)):
            frame = frame.f_back
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if not self.reading:  # in eager mode, before compiled code is called
            self.places[type(number)][place] = frame.f_code
        if isinstance(number, float):
            return number
        self.count += 1
        return number if self.value is None else min(self.value, torch.iinfo(dtype).max)

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Be in force in eager mode, where `tolist` reads the memory of a tensor."""
        before = torch.Tensor.tolist

        def listed(tensor: torch.Tensor) -> Any:
            return tree_map(lambda number: self.read(number, tensor.dtype), before(tensor))

        torch.Tensor.tolist = listed
        try:
            with self:
                yield
        finally:
            torch.Tensor.tolist = before

    def within(self, backend: str) -> Callable[..., Any]:
        """Return a backend whose compiled code runs in this mode."""

        def compiler(module: Any, inputs: Any) -> Any:
            compiled = torch._dynamo.lookup_backend(backend)(module, inputs)

            def run(*values: Any) -> Any:
                with self if self.reading else contextlib.nullcontext():
                    return compiled(*values)

            return run

        return compiler

    def places_of(self, kind: type) -> str:
        return ", ".join(list(self.places[kind])[:4])

    def values(self) -> list[int]:
        """The integers to be tried: small and large ones, and constants of the code."""
        constants = [c for code in self.places[int].values() for c in code.co_consts]
        own = [c for c in constants if type(c) is int and abs(c) > 1]
        return list(dict.fromkeys([0, 1, -1, *LARGE, *own[:MOST_CONSTANTS]]))


def for_numbers(eager: ScriptCall, fixed: ScriptCall, numbers: Numbers) -> dict[str, Any]:
    """Whether compiled code does with unusual numbers what the same code does in eager mode.

    They take the place of all integers that the model reads from tensors and that compiled code
    reads, too. Returns conditions, what was tried, and a step where no number gives the same.
    """
    counts, conditions = [], []
    eager.around = numbers.eager()
    for calling in (eager, fixed):
        numbers.count, numbers.reading = 0, calling is fixed
        attempted(partial(calling.number, 0, (FIRST, "own")))
        counts.append(numbers.count)
    if places := numbers.places_of(float):
        conditions = [f"Python raises no error for numbers read at {places}, as for 1 / 0."]
    if not counts[0] or counts[0] != counts[1]:
        if places := numbers.places_of(int) if counts[0] else "":
            conditions.append(f"Integers read at {places} are like those that were tried.")
        return {"holds_if": conditions, "tried": []}
    places, values, other = numbers.places_of(int), numbers.values(), {}
    for value in values:
        result = untouched(partial(with_number, eager, fixed, numbers, value))
        if detail := "the process ends" if isinstance(result, dict) else result:
            other[value] = detail
    tried = f"for integers read at {places}: {', '.join(map(str, values))}"
    if other:
        first, listed = next(iter(other)), ", ".join(map(str, other))
        conditions.append(f"No integer read at {places} is {listed} ({first}: {other[first]}).")
    report: dict[str, Any] = {"holds_if": conditions, "tried": [tried]}
    if len(other) == len(values):
        report["step"] = (False, f"other integers at {places}: {other[values[0]]}")
    return report


def with_number(eager: ScriptCall, fixed: ScriptCall, numbers: Numbers, value: int) -> str:
    """Return how compiled code differs from eager mode for an integer; empty if it does not."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + NUMBER_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    signal.alarm(NUMBER_SECONDS)
    numbers.value = value
    eager.around = numbers.eager()
    outcomes = [attempted(partial(calling.number, 0, (FIRST, "own"))) for calling in (eager, fixed)]
    raised = [outcome.get("raised", "no error").partition(":")[0] for outcome in outcomes]
    if raised == ["no error"] * 2:
        expected, got = outcomes
        return difference(expected, got, INDUCTOR_TOLERANCE, dropped=eager.subject.drops)
    if "no error" not in raised:
        return ""
    return f"eager mode raises {raised[0]}, compiled code {raised[1]}"


# --- cost -----------------------------------------------------------------------------------------

ROUNDS = 5
ROUND_SECONDS = 0.2


def costs(subject: ScriptSubject) -> dict[str, float | None]:
    """Return the seconds of a call in eager mode, compiled without the fix, and compiled with it.

    The compiler is Inductor, the inputs are those of the first shape, and in mode train a backward
    belongs to a call. Each figure is the median of five measurements of
    `torch.utils.benchmark`, interleaved, with one thread. None where the compiler raises an error.
    """
    with contextlib.ExitStack() as stack:
        calls = {
            "eager": called_again(subject, subject.unchanged, stack, None),
            "without": called_again(subject, subject.unchanged, stack, "inductor"),
            "with": called_again(subject, subject.compilable, stack, "inductor"),
        }
        seconds: dict[str, list[float]] = {name: [] for name, call in calls.items() if call}
        for _ in range(ROUNDS):
            for name, times in seconds.items():
                timer = Timer("call()", globals={"call": calls[name]})
                times.append(timer.blocked_autorange(min_run_time=ROUND_SECONDS).median)
    return {name: median(seconds[name]) if name in seconds else None for name in calls}


def called_again(
    subject: ScriptSubject,
    fix: Callable[..., Any],
    stack: contextlib.ExitStack,
    backend: str | None,
) -> Callable[[], None] | None:
    """Return a model as a call that can be repeated, compiled by two calls; None if that fails.

    The fix stays in force until the stack ends, as in a program that makes many calls within it.
    """
    model = subject.build(0)
    args, kwargs = arguments(subject, FIRST, "own")
    options: dict[str, Any] = {}
    torch._dynamo.reset()
    args, kwargs = stack.enter_context(fix(model, args, kwargs, options))
    run = model if backend is None else torch.compile(model, backend=backend, **options)

    def call() -> None:
        with torch.set_grad_enabled(subject.train):
            output = run(*args, **kwargs)
        if subject.train and (loss := loss_of(output)) is not None:
            loss.backward()

    for _ in range(2):
        if attempted(call) is not None:
            return None  # the compiler's error; the model as it is may not compile
    return call


# --- verification ---------------------------------------------------------------------------------

KEPT = 0.9
"""How many of the operators that were in graphs must stay there; a fix may need a few fewer."""

MEMORY_OF_TWO = 12
"""As many times the size of a model two requirements take: two models each, in two forks of one of
them others, and their results.
"""


def verify(
    subject: ScriptSubject, report: Callable[[str, Step], None], forks: Forks
) -> dict[str, Any]:
    """Examine all requirements; `report` gets each as it is known. Returns the figures."""

    def step(name: str, outcome: Any) -> bool:
        passed, detail = outcome if not isinstance(outcome, dict) else (False, outcome["raised"])
        report(name, (passed, detail))
        return bool(passed)

    figures: dict[str, Any] = {"single_graph": False, "tried": [], "holds_if": []}
    of_planned = forks.start(partial(planned, subject))
    of_before = forks.start(partial(captured, subject, calls=1))
    of_settings = forks.start(partial(left_behind, subject))
    of_branches = forks.start(partial(equal_branches, subject))
    calls = forks.result(of_planned)
    if isinstance(calls, dict):
        # A model that fails without the fix, too, was given inputs that do not suit it.
        report("the inputs of both shapes suit the model", (False, calls["raised"]))
        figures |= {name: [-1, -1] for name in ("breaks", "graphs", "operators")}
        return figures | {"compilations": [None, -1]}
    subject.calls, subject.eager_only = (tuple(map(tuple, part)) for part in calls)
    together = forks.at_a_time
    of_after = forks.start(partial(captured_with_results, subject, at_a_time=together))
    errors, write = FORKING.Pipe(duplex=False)  # which are known later than the fork begins
    with_inductor = partial(
        equal_with_inductor, subject, lambda: json.loads(errors.recv_bytes()), threads=together
    )
    # It takes longest, and is in vain if something else fails.
    of_inductor = forks.start(with_inductor) if together > 1 else None
    after, before = forks.result(of_after), forks.result(of_before)
    for name in ("breaks", "graphs", "operators"):
        figures[name] = [before.get(name, -1), after.get(name, -1)]
    figures["compilations"] = [None, after.get("compilations", -1)]
    if "raised" in after:
        report("Dynamo captures it", (False, after["raised"]))
        return figures
    refused = after["refused"]
    whole = figures["single_graph"] = not refused
    if whole:
        # Example inputs of a person may have one shape only.
        first, second = ([t.shape for t in given_tensors(subject, shape)] for shape in SHAPES)
        other = "both shapes" if first != second else "one shape: the example inputs have no other"
        report("fullgraph=True accepts it", (True, other))
    elif not after["breaks"]:
        report("fullgraph=True accepts it", (False, refused))
        return figures
    else:
        most = before.get("breaks", sys.maxsize) + subject.shapes
        fewer = after["breaks"] < most
        change = f"{before.get('breaks')} to {after['breaks']}"
        report("it has fewer graph breaks", (fewer, change if fewer else f"{change}; {refused}"))
        if not fewer:
            return figures
    # A single graph holds all of the model, in as many operators as it takes; excluding what
    # breaks from graphs is no fix.
    least = 1 if whole else max(KEPT * before.get("operators", 0), 1)
    operators = f"{before.get('operators')} operators without, {after['operators']} with the fix"
    report("the graphs contain the model", (after["operators"] >= least, operators))
    report("compilations do not grow", not_grown(subject, after, figures, forks))
    if subject.shapes:
        of_sizes = forks.result(forks.start(partial(for_sizes, subject)))
        figures["compilations"] = of_sizes.get("compilations", figures["compilations"])
        for name in ("fewer compilations for other sizes", "results for other sizes"):
            step(name, of_sizes.get(name, of_sizes))
    if not step("nothing stays changed", forks.result(of_settings)):
        return figures
    for seed, of_seed in enumerate(after["eager"]):
        if not step(f"eager results, seed {seed}", of_seed):
            return figures
    if subject.branches and not step("both branches", forks.result(of_branches)):
        return figures
    for seed, of_seed in enumerate(after["graph"]):
        if not step(f"results of the graph, seed {seed}", of_seed):
            return figures
    for kind, passed, detail, condition, _ in after["unusual"]:
        report(f"results for {kind}", (passed, detail))
        figures["holds_if"] += [condition] if condition else []
    if all(passed for _, passed, *_ in after["unusual"]):
        raising = {kind: raised for kind, *_, raised in after["unusual"] if raised}
        write.send_bytes(json.dumps(raising).encode())
        of_compiler = forks.result(of_inductor or forks.start(with_inductor))
        step("results of Inductor", of_compiler.get("step", of_compiler))
        for name in ("holds_if", "tried"):
            figures[name] += of_compiler.get(name, [])
    figures["tried"] = [*tried(subject), *figures["tried"]]
    figures["holds_if"] = list(dict.fromkeys([*limits(subject), *figures["holds_if"]]))
    return figures


def tried(subject: ScriptSubject) -> list[str]:
    """Say what the calls are."""
    variants = ", ".join(dict.fromkeys(variant for _, variant in subject.calls))
    eager = ", ".join(variant for _, variant in subject.eager_only)
    return [
        f"{len(subject.calls)} calls of one model, two shapes in alternation; inputs: {variants}",
        *([f"in eager mode: {eager}"] if eager else []),
        f"weights of {len(SEEDS)} seeds",
        f"inputs that are {', '.join(unusual_kinds(subject))}",
        *(f"forced: {title}" for title, *_ in subject.branches),
    ]


def limits(subject: ScriptSubject) -> list[str]:
    """Say what no call of the script tries."""
    kinds = dict.fromkeys(
        f"{str(tensor.dtype).removeprefix('torch.')} of {tensor.dim()} dimensions"
        for tensor in given_tensors(subject, FIRST)
    )
    types = f"The inputs have the types that were tried: {', '.join(kinds)}."
    conditions = [types] if kinds else []
    if not subject.train:
        conditions.append("No gradient is taken: mode eval was verified.")
    return [*conditions, *frozen_reads(subject)]


def not_grown(
    subject: ScriptSubject, after: dict[str, int], figures: dict[str, Any], forks: Forks
) -> Step:
    """Whether each shape is compiled once, or the model compiles no more than without the fix.

    Only if it is not once, the compilations without the fix are counted, and put into `figures`.
    """
    with_fix = f"{after['compilations']} with the fix"
    if after["compilations"] <= len(SHAPES) and not after["late"]:
        return True, with_fix
    before = forks.result(forks.start(partial(captured, subject, calls=COUNTED)))
    most = figures["compilations"][0] = before.get("compilations", 0)
    counts = f"{most} without, {with_fix}"
    if after["late"] > before.get("late", 0):
        return False, f"{counts}; {after['late']} in calls of a shape that was compiled before"
    return after["compilations"] <= max(most, len(SHAPES)), counts


def for_sizes(subject: ScriptSubject) -> dict[str, Any]:
    """Compile a model once without the fix and once with it, and call it with other sizes."""
    calls = [(shape, f"{number} samples") for number in SAMPLES for shape in SHAPES]
    expected = ScriptCall(subject, subject.build(0), subject.unchanged).all(calls)
    counts = []
    for fix in (subject.unchanged, subject.compilable):
        torch._dynamo.reset()
        outcomes = counted(ScriptCall(subject, subject.build(0), fix), calls)[1]
        counts.append(counters["stats"]["unique_graphs"])
    detail = f"{counts[0]} without, {counts[1]} with the fix, {len(calls)} calls"
    return {
        "compilations": counts,
        "fewer compilations for other sizes": (counts[1] < counts[0], detail),
        "results for other sizes": compared(subject, 0, "eager", calls, expected, outcomes),
    }


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of `mallopt(3)`."""


def warm_up(subject: ScriptSubject) -> int:
    """Build the model, and compile something else, so that no fork has to do that again.

    Returns the bytes of its parameters and buffers.
    """

    def product(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    torch.set_num_threads(1)  # a fork has only the thread that forks
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # of glibc
        # Keep memory that is freed: half of the time of calls went into getting it from the kernel.
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
            mallopt(option, value)
    model = subject.built[0] = subject.build(0)
    tensors = (*model.parameters(), *model.buffers())
    size: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    del model, tensors
    # Only if autograd's first call is before that of a compiler can forks of forks call it, too.
    torch.ones(1, requires_grad=True).sum().backward()
    compiled = torch.compile(product, backend="eager")
    for length in (2, 3):
        compiled(torch.ones(length))
    torch._dynamo.reset()
    gc.freeze()  # so that a collection in a fork copies no memory of this process
    return size


def at_a_time(size: int) -> int:
    """How many requirements of a model of so many bytes may be examined at a time."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    alone = "--one-at-a-time" in sys.argv or MEMORY_OF_TWO * size > memory
    return 1 if alone else min(2, os.cpu_count() or 1)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(subject: ScriptSubject) -> int:
    """Print each requirement, and with --json the figures. Returns the exit status.

    0: verified as a single graph; 1: as fewer graph breaks; 3: not verified. With --cost, it
    only prints the seconds of a call as JSON, and the exit status is 0. Requirements are
    examined two at a time where the memory suffices, with --one-at-a-time one after the other.
    """
    if "--cost" in sys.argv:
        say(json.dumps(costs(subject)))
        return 0
    as_json = "--json" in sys.argv
    steps: list[dict[str, Any]] = []

    def report(name: str, step: Step) -> None:
        steps.append({"name": name, "passed": step[0], "detail": step[1]})
        if not as_json:
            say(f"{'ok  ' if step[0] else 'FAIL'} {name}: {step[1]}")

    size = warm_up(subject)
    with Forks(at_a_time(size)) as forks:
        figures = verify(subject, report, forks)
    holds = all(step["passed"] for step in steps)
    if as_json:
        say(json.dumps({"steps": steps, **figures}))
    else:
        for name in ("breaks", "graphs", "operators"):
            say(f"{name}: {figures[name][0]} without the fix, {figures[name][1]} with it")
        say("verified" if holds else "not verified")
    return (0 if figures["single_graph"] else 1) if holds else 3
