"""What a call of a model leaves, and how two calls differ: the first part of each script.

It is part of each script that `fix` writes, and imports nothing of compilewatch.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._dynamo.utils import same

CAPTURE_TOLERANCE = 1e-6
"""How far a graph that eager mode runs may differ from the model: rounding alone."""

INDUCTOR_TOLERANCE = 1e-4
"""The tolerance of `torch._dynamo.utils.same` in PyTorch's own benchmarks, for float32."""

Model = Callable[..., Any]

Outcome = dict[str, Any]
"""All that a caller can notice of one call, by name: tensors, numbers and texts."""

OF_STATE = "state "
"""The names of attributes and globals begin so: they are compared where a call changed them."""

MEMORY = "memory of "
OF_EAGER = (MEMORY, "gradient flows through ", "random numbers")
"""The names of what Inductor may do in another way than eager mode begin so."""


def seeded(seed: int) -> None:
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed)
    torch.manual_seed(seed)


def called(
    model: torch.nn.Module,
    run: Callable[[], Any],
    given: Any,
    *,
    seed: int,
    train: bool,
) -> Outcome:
    """Call a model by `run`, and return all that can be compared, as copies.

    `given` holds the caller's own arguments, which the call may change. Each call has a `seed` of
    its own: random numbers that were drawn once and kept would be right for the same seed only.
    """
    seeded(seed)
    model.zero_grad(set_to_none=True)
    before, held = state(model), checksums(model)
    with torch.set_grad_enabled(train):
        output = run()
    found: Outcome = {"random numbers": hash(torch.get_rng_state().numpy().tobytes())}
    found["random numbers of Python"] = hash(random.getstate())
    if train and (loss := loss_of(output)) is not None:
        loss.backward()
    found |= dict(leaves(output, "output")) | dict(leaves(given, "arguments"))
    found |= relations(output, given, model)
    found |= {f"buffer {name}": value for name, value in model.named_buffers()}
    now = checksums(model)
    for name, value in model.named_parameters():
        if now[name] != held.get(name):
            precise = torch.complex128 if value.is_complex() else torch.float64
            found[f"parameter {name}"] = value.detach().to(precise).sum()
        if value.grad is not None:
            found[f"gradient of {name}"] = value.grad
    after = state(model)
    found |= after
    found["changed"] = [name for name in after if after[name] != before.get(name)]
    return {
        name: value.detach().clone() if torch.is_tensor(value) else value
        for name, value in found.items()
    }


def checksums(model: torch.nn.Module) -> dict[str, int]:
    """Return a checksum of each parameter; copies would take as much memory as the model."""
    return {name: checksum(value.detach()) for name, value in model.named_parameters()}


def checksum(values: torch.Tensor) -> int:
    try:
        return zlib.crc32(values.contiguous().flatten().view(torch.uint8).numpy())
    except (NotImplementedError, RuntimeError, TypeError):
        # Sparse tensors, and those of some subclasses, have no bytes to be read.
        return hash(repr(values.double().sum()))


def loss_of(output: Any) -> Any:
    """Return the loss of a model, or one that every element of its outputs takes part in.

    The weights differ between elements: the mean of a normalised output has no gradient.
    """
    loss: Any = getattr(output, "loss", None)
    if torch.is_tensor(loss) and loss.requires_grad:
        return loss
    outputs = [value for value in tensors(output) if value.requires_grad]
    parts = [(value.abs() if value.is_complex() else value).flatten() for value in outputs]
    if not parts:
        return None
    return sum(
        (each.float() * torch.arange(1.0, len(each) + 1).sin()).sum() / len(each)
        for each in parts
        if len(each)
    )


def tensors(value: Any) -> list[torch.Tensor]:
    return [each for _, each in leaves(value, "") if isinstance(each, torch.Tensor)]


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
        for key, each in items:
            yield from leaves(each, f"{path}.{key}", objects=objects, seen=seen, depth=depth + 1)


def has_attributes(value: Any) -> bool:
    """Whether an object's attributes belong to it; those of a logger or a Python module lead
    to the whole program.
    """
    return (
        hasattr(value, "__dict__")
        and not callable(value)
        and not isinstance(value, logging.Logger | ModuleType)
    )


def relations(output: Any, given: Any, model: torch.nn.Module) -> Outcome:
    """Return which outputs share memory with what, and through which gradients flow."""
    owners: dict[int, str] = {}
    held = [*leaves(given, "arguments"), *model.named_parameters(), *model.named_buffers()]
    for name, value in held:
        if isinstance(value, torch.Tensor):
            owners.setdefault(memory(value), name)
    found: Outcome = {}
    for name, value in leaves(output, "output"):
        if isinstance(value, torch.Tensor):
            found[f"gradient flows through {name}"] = value.requires_grad
            if place := memory(value):
                owner = owners.setdefault(place, name)
                found[f"{MEMORY}{name}"] = "its own" if owner == name else f"that of {owner}"
    return found


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


def own_globals(model: torch.nn.Module) -> Iterator[tuple[dict[str, Any], Any, str, str]]:
    """Yield what the model's own files and classes keep outside of it: owner, namespace and names.

    Only plain numbers, texts and containers are followed; objects may hold the whole program.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    kinds = {kind for kind in kinds if kind.__module__.split(".")[0] not in ("torch", "builtins")}
    owners: dict[str, Any] = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds}
    owners |= {kind.__module__: sys.modules.get(kind.__module__) for kind in kinds}
    for title, owner in sorted(owners.items()):
        for name, value in list(vars(owner).items()) if owner is not None else ():
            if type(value) in PLAIN and not name.startswith("__"):
                yield owner, value, f"{title}.{name}", name


def state(model: torch.nn.Module) -> Outcome:
    """Return the numbers and texts in attributes of the modules, and in globals of their files."""
    seen: set[int] = set()
    found: Outcome = {}
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name not in OF_MODULES:
                found |= dict(leaves(value, f"{OF_STATE}{path}.{name}", seen=seen))
    for _, value, title, _ in own_globals(model):
        plain = repr(sorted(map(repr, value))) if isinstance(value, set) else value
        found |= dict(leaves(plain, f"{OF_STATE}{title}", objects=False, seen=seen))
    return {
        name: float(value.detach().double().abs().sum())
        if isinstance(value, torch.Tensor)
        else value
        for name, value in found.items()
    }


@contextlib.contextmanager
def restored_globals(model: torch.nn.Module) -> Iterator[None]:
    """Put back what is changed of the globals, so that two models begin with the same ones."""
    before = [
        (owner, value, copy.copy(value), name) for owner, value, _, name in own_globals(model)
    ]
    yield
    for owner, value, saved, name in before:
        if isinstance(value, list):
            value[:] = saved
        elif isinstance(value, dict | set):
            value.clear()
            value.update(saved)
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


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
        scale = steepest if name.startswith("gradient of ") else size_of(expected[name])
        reference = (exact or {}).get(name)
        if found := unequal(expected[name], got[name], reference, tolerance, scale):
            return f"{name} {found}"
    return ""


def unequal(ours: Any, theirs: Any, exact: Any, tolerance: float, scale: float) -> str:
    """Return how two values differ; empty if they do not.

    Values that are all small are compared as if the largest of them were 1.
    """
    if isinstance(ours, float) and isinstance(theirs, float):
        ours, theirs = torch.tensor(ours).double(), torch.tensor(theirs).double()
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return "" if repr(ours) == repr(theirs) else f"is {theirs!r}, not {ours!r}"[:200]
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {theirs.dtype} {tuple(theirs.shape)}, not {ours.dtype} {tuple(ours.shape)}"
    if not (ours.is_floating_point() or ours.is_complex()):
        if tolerance == INDUCTOR_TOLERANCE or torch.equal(ours, theirs):
            return ""
        return f"differs in {int((ours != theirs).sum())} of {ours.numel()} elements"
    factor = 1 / scale if 0 < scale < 1 else 1.0
    if not usable(exact, ours):
        exact = None
    if same(
        ours * factor,
        theirs * factor,
        None if exact is None else exact * factor,
        tol=tolerance,
        equal_nan=True,
        log_error=lambda *_: None,
    ):
        return ""
    precise = torch.complex128 if ours.is_complex() else torch.float64
    apart = (theirs.to(precise) - ours.to(precise)).abs().nan_to_num(torch.inf)
    return f"differs by {apart.max().item():.3g}"


def size_of(value: Any) -> float:
    """Return the largest magnitude in a tensor; 0 if that is not a number."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return 0.0
    size = float(value.abs().max())
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
