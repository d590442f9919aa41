"""Inputs of a model of a library, which knows what its models take."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from compilewatch.records import LibraryBuild
from compilewatch.worker.example_inputs.dynamic import dynamic_shapes
from compilewatch.worker.model.libraries import BATCH, library
from compilewatch.worker.subject import ExampleInputs

KNOWN_BY_THEIR_MODULE = {
    "diffusers": "diffusers",
    "sentence_transformers": "sentence-transformers",
    "timm": "timm",
}
"""Package -> library, of those that know from a module alone what it takes."""


def inputs_of_its_library(module: nn.Module) -> ExampleInputs | None:
    """Return what the library of a module's class gives it, whoever built the module; or None."""
    name = KNOWN_BY_THEIR_MODULE.get(type(module).__module__.partition(".")[0])
    if name is None:
        return None
    try:
        return library_inputs(module, LibraryBuild(library=name, name=type(module).__name__))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a class that the library's rules do not cover


def library_inputs(module: nn.Module, build: LibraryBuild) -> ExampleInputs | None:
    """Return the arguments that a library gives its model, in the type of its weights; or None."""
    torch.manual_seed(0)
    call = library(build.library).inputs(module, build)
    if call is None or not (call.args or call.kwargs):
        return None
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    dtype = next(floating, torch.float32)

    def typed(value: Any) -> Any:
        whole = not isinstance(value, torch.Tensor) or value.dtype is not torch.float32
        return value if whole else value.to(dtype)

    kwargs = {name: tree_map(typed, value) for name, value in call.kwargs.items()}
    return ExampleInputs(
        strategy=build.library,
        args=tuple(tree_map(typed, value) for value in call.args),
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes(kwargs, BATCH),
    )
