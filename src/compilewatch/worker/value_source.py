"""Python source of example inputs, for a script of plain PyTorch."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, defaultdict
from typing import Any

import torch

from compilewatch.errors import InputsError
from compilewatch.worker.example_inputs.specs import attributes_of
from compilewatch.worker.subject import ExampleInputs

LITERAL_ELEMENTS = 4096
"""Integer and boolean tensors of up to this size are written out, because their values matter."""

LITERAL_NUMBERS = 16
"""So are floating-point tensors of up to this size: boxes, scales and limits are not noise."""

OBJECTS = '''
def class_of(module, name):
    """A class by the module that defines it, and its name there."""
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def made(module, name, state):
    """An object with these attributes, whose constructor would take something else."""
    value = object.__new__(class_of(module, name))
    vars(value).update(state)
    return value
'''
"""Functions that the source of an object with attributes calls."""


def inputs_source(inputs: ExampleInputs) -> str:
    """`args = (…)` and `kwargs = {…}`, one argument per line.

    Raises InputsError that names an argument that cannot be written.
    """
    lines = ["args = ("]
    lines += [f"    {_argument(f'args[{i}]', v)}," for i, v in enumerate(inputs.args)]
    lines += [")", "kwargs = {"]
    lines += [f"    {name!r}: {_argument(name, v)}," for name, v in inputs.kwargs.items()]
    return "\n".join([*lines, "}"])


def has_objects(inputs: ExampleInputs) -> bool:
    """Whether the source of the inputs calls the functions of `OBJECTS`."""
    return any(f"{name}(" in inputs_source(inputs) for name in ("class_of", "made"))


def _argument(name: str, value: Any) -> str:
    try:
        return value_source(value)
    except (TypeError, RecursionError) as error:
        raise InputsError(
            f"{name}: {error}; a script can contain tensors, numbers, texts, collections, data "
            "classes and objects that consist of their attributes"
        ) from None


def value_source(value: Any) -> str:
    """Python source of one value; raises TypeError for one that cannot be written."""
    if isinstance(value, torch.Tensor):
        return tensor_source(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{_class(type(value))}({', '.join(map(value_source, value))})"
    if isinstance(value, list | tuple):
        inner = ", ".join(value_source(item) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, dict) and not dataclasses.is_dataclass(value):
        return _dict_source(value)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, type):
        return _class(value)
    return _object_source(value)


def tensor_source(tensor: torch.Tensor) -> str:
    """Python source of one tensor: exact where it is small, seeded noise for many floats."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    same = tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
    few = tensor.is_floating_point() and 1 < tensor.numel() <= LITERAL_NUMBERS
    if few and not same and bool(tensor.isfinite().all()):
        return f"torch.tensor({tensor.tolist()}, dtype={dtype})"
    if (tensor.is_floating_point() or tensor.is_complex()) and not same:
        return f"torch.randn({shape}, dtype={dtype})"
    if same or tensor.numel() == 1:
        return f"torch.full({shape}, {tensor.flatten()[0].item()}, dtype={dtype})"
    if tensor.numel() <= LITERAL_ELEMENTS:
        return f"torch.tensor({tensor.tolist()}, dtype={dtype})"
    high = int(tensor.max()) + 1
    return f"torch.randint({int(tensor.min())}, {high}, {shape}, dtype={dtype})"


def _dict_source(value: dict[Any, Any]) -> str:
    items = "{" + ", ".join(f"{k!r}: {value_source(v)}" for k, v in value.items()) + "}"
    if isinstance(value, defaultdict):
        return f"defaultdict({getattr(value.default_factory, '__name__', None)}, {items})"
    return f"OrderedDict({items})" if isinstance(value, OrderedDict) else items


def _object_source(value: Any) -> str:
    """An object by its constructor where that takes its attributes, otherwise by its state."""
    kind: Any = type(value)
    given = _constructed_from(value)
    if given is not None:
        arguments = ", ".join(f"{name}={value_source(each)}" for name, each in given.items())
        named = all(map(str.isidentifier, given))
        return f"{_class(kind)}({arguments if named else '**' + _dict_source(given)})"
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        raise TypeError(f"a {kind.__name__} cannot be written: it is more than its attributes")
    if not hasattr(value, "__dict__"):
        raise TypeError(f"a {kind.__name__} cannot be written: it has no attributes")
    return f"made({_path(kind)}, {_dict_source(vars(value))})"


def _constructed_from(value: Any) -> dict[str, Any] | None:
    """The keyword arguments from which the class of an object makes it; None if it takes others."""
    if not dataclasses.is_dataclass(value):
        return attributes_of(value)
    fields = dataclasses.fields(value)
    if not all(field.init for field in fields):
        return None
    return {field.name: getattr(value, field.name) for field in fields}


def _class(kind: type) -> str:
    return f"class_of({_path(kind)})"


def _path(kind: type) -> str:
    """The module and the name of a class. Raises TypeError if it is not found under them."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not kind or kind.__module__ == "__main__":
        raise TypeError(f"the class {kind.__qualname__} of {kind.__module__} cannot be imported")
    return f"{kind.__module__!r}, {kind.__qualname__!r}"
