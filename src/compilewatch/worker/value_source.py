"""Python source of example inputs, for a script of plain PyTorch."""

import base64
import dataclasses
import sys
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from compilewatch.errors import InputsError
from compilewatch.worker.example_inputs.files import attributes_of
from compilewatch.worker.subject import ExampleInputs

LITERAL_ELEMENTS = 4096
"""Integer and boolean tensors of up to this size are written as lists."""

LITERAL_NUMBERS = 16
"""So are floating-point tensors of up to this size: boxes, scales and limits are not noise."""

STORED_ELEMENTS = 2**21
"""Larger ones, and any that a person gave, are written as bytes up to this size: a text without the
tokens of its image is another one.
"""

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


TensorSource = Callable[[torch.Tensor], str]


def inputs_source(inputs: ExampleInputs, tensor: TensorSource | None = None) -> str:
    """`args = (…)` and `kwargs = {…}`, one argument per line; `tensor` writes each tensor.

    Raises InputsError that names an argument that cannot be written.
    """
    write = partial(_argument, tensor=tensor or tensor_source)
    lines = ["args = ("]
    lines += [f"    {write(f'args[{i}]', v)}," for i, v in enumerate(inputs.args)]
    lines += [")", "kwargs = {"]
    lines += [f"    {name!r}: {write(name, v)}," for name, v in inputs.kwargs.items()]
    return "\n".join([*lines, "}"])


def has_objects(inputs: ExampleInputs) -> bool:
    """Whether the source of the inputs calls the functions of `OBJECTS`."""
    return any(f"{name}(" in inputs_source(inputs) for name in ("class_of", "made"))


def _argument(name: str, value: Any, tensor: TensorSource) -> str:
    try:
        return value_source(value, tensor)
    except (TypeError, RecursionError) as error:
        raise InputsError(
            f"{name}: {error}; a script can contain tensors, numbers, texts, collections, data "
            "classes and objects that consist of their attributes"
        ) from None


def value_source(value: Any, tensor: TensorSource | None = None) -> str:
    """Python source of one value; raises TypeError for one that cannot be written."""
    tensor = tensor or tensor_source
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(value_source(item, tensor) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{_class(type(value))}({inner})"
    if isinstance(value, list | tuple):
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, dict) and not dataclasses.is_dataclass(value):
        return _dict_source(value, tensor)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, type):
        return _class(value)
    return _object_source(value, tensor)


def tensor_source(tensor: torch.Tensor) -> str:
    """Python source of one tensor: exact where it is small, seeded noise for many floats."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    same = tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
    few = tensor.is_floating_point() and 1 < tensor.numel() <= LITERAL_NUMBERS
    if few and not same and bool(tensor.isfinite().all()):
        return _literal(tensor)
    if (tensor.is_floating_point() or tensor.is_complex()) and not same:
        return _noise(tensor)
    if same or tensor.numel() == 1:
        return f"torch.full({shape}, {tensor.flatten()[0].item()}, dtype={dtype})"
    if tensor.numel() <= LITERAL_ELEMENTS:
        return _literal(tensor)
    if tensor.numel() <= STORED_ELEMENTS:
        return _stored(tensor)
    high = int(tensor.max()) + 1
    return f"torch.randint({int(tensor.min())}, {high}, {shape}, dtype={dtype})"


def _noise(tensor: torch.Tensor) -> str:
    """Normal noise, or values in the tensor's own range where that is another one."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    normal = f"torch.randn({shape}, dtype={dtype})"
    if tensor.is_complex() or not tensor.numel() or not tensor.isfinite().all():
        return normal
    low, high = tensor.min().item(), tensor.max().item()
    if -8 < low < -1 and 1 < high < 8:
        return normal
    return f"torch.empty({shape}, dtype={dtype}).uniform_({low}, {high})"


def given_source(tensor: torch.Tensor) -> str:
    """Python source of a tensor with exactly its values, as compressed bytes if it is large."""
    if tensor.numel() <= LITERAL_ELEMENTS and not tensor.is_complex() and tensor.isfinite().all():
        return tensor_source(tensor) if tensor.numel() < 2 else _literal(tensor)
    return tensor_source(tensor) if tensor.numel() > STORED_ELEMENTS else _stored(tensor)


def _stored(tensor: torch.Tensor) -> str:
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    text = base64.b85encode(zlib.compress(bytes(values.tolist()))).decode()
    stored = f'__import__("zlib").decompress(__import__("base64").b85decode({text!r}))'
    source = f"torch.frombuffer(bytearray({stored}), dtype={tensor.dtype})"
    return f"{source}.view({tuple(tensor.shape)})"


def _literal(tensor: torch.Tensor) -> str:
    return f"torch.tensor({tensor.tolist()}, dtype={tensor.dtype})"


def _dict_source(value: dict[Any, Any], tensor: TensorSource) -> str:
    items = "{" + ", ".join(f"{k!r}: {value_source(v, tensor)}" for k, v in value.items()) + "}"
    if isinstance(value, defaultdict):
        return f"defaultdict({getattr(value.default_factory, '__name__', None)}, {items})"
    return f"OrderedDict({items})" if isinstance(value, OrderedDict) else items


def _object_source(value: Any, tensor: TensorSource) -> str:
    """An object by its constructor where that takes its attributes, otherwise by its state."""
    kind: Any = type(value)
    attributes = _constructed_from(value)
    if attributes is not None:
        arguments = ", ".join(
            f"{name}={value_source(argument, tensor)}" for name, argument in attributes.items()
        )
        named = all(map(str.isidentifier, attributes))
        return f"{_class(kind)}({arguments if named else '**' + _dict_source(attributes, tensor)})"
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        raise TypeError(f"a {kind.__name__} cannot be written: it is more than its attributes")
    if not hasattr(value, "__dict__"):
        raise TypeError(f"a {kind.__name__} cannot be written: it has no attributes")
    return f"made({_path(kind)}, {_dict_source(vars(value), tensor)})"


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
    value: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        value = getattr(value, name, None)
    if value is not kind or kind.__module__ == "__main__":
        raise TypeError(f"the class {kind.__qualname__} of {kind.__module__} cannot be imported")
    return f"{kind.__module__!r}, {kind.__qualname__!r}"
