"""Restoring a module: a run leaves changes in it that the next run would see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_TENSOR_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """On exit, restore the module's attributes, buffers, their values, and gradients.

    Models count tokens, cache masks and keep running statistics; a tracer that runs a model leaves
    its own tensors there. The objects stay the same, so that code compiled for them stays valid.
    Changes inside an attribute (an element of a list) are not undone.
    """
    attributes = [(submodule, _attributes(submodule)) for submodule in module.modules()]
    tables = [
        (table, dict(table))
        for submodule in module.modules()
        for table in (submodule._parameters, submodule._buffers)
    ]
    buffers = [buffer for buffer in module.buffers() if not is_lazy(buffer)]
    values = [(buffer, buffer.detach().clone()) for buffer in buffers]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for submodule, kept in attributes:
            for name in _attributes(submodule).keys() - kept.keys():
                del submodule.__dict__[name]
            submodule.__dict__.update(kept)
        for table, entries in tables:
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _TENSOR_TABLES}
