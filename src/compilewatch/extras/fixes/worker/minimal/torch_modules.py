"""Writes a module of torch as a call of its constructor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from compilewatch.extras.fixes.worker.minimal.values import path_of

_OF_MODE = (nn.Dropout, nn.modules.batchnorm._BatchNorm)
_MISSING = object()


def torch_module_source(
    value: nn.Module, children: Sequence[str], expression: Callable[[Any, str], str]
) -> str:
    """Return the source of a module: its constructor with the attributes of the same names.

    `children` are the sources of the modules that it holds, and `expression` returns that of a
    value under a name.
    """
    module, kind = path_of(type(value)) or ("", "")
    known = getattr(nn, kind, None) is type(value)
    short = f"torch.nn.{kind}" if known else f"{module}.{kind}"
    if isinstance(value, nn.ModuleList):
        source = f"{short}([{', '.join(children)}])"
    elif isinstance(value, nn.Sequential):
        source = f"{short}({', '.join(children)})"
    elif isinstance(value, nn.ModuleDict):
        pairs = zip(value.keys(), children, strict=True)
        source = f"{short}({{{', '.join(f'{k!r}: {v}' for k, v in pairs)}}})"
    else:
        source = f"{short}({', '.join(_arguments(value, expression))})"
    return f"{source}.eval()" if not value.training and _depends_on_mode(value) else source


def _arguments(value: nn.Module, expression: Callable[[Any, str], str]) -> list[str]:
    arguments = []
    kinds = (kind for kind in type(value).__mro__ if "__init__" in vars(kind))
    signatures = (inspect.signature(vars(kind)["__init__"]).parameters for kind in kinds)
    named: Mapping[str, inspect.Parameter] = next(
        (s for s in signatures if "args" not in s), {}
    )  # LSTM passes them on
    for parameter in named.values():
        given = getattr(value, parameter.name, _MISSING)
        if given is _MISSING or parameter.name in ("self", "device", "dtype", "mode"):
            continue
        if isinstance(given, torch.Tensor) or (given is None and parameter.name == "bias"):
            given = given is not None
        if given is not parameter.default and given != parameter.default:
            arguments.append(f"{parameter.name}={expression(given, parameter.name)}")
    return arguments


def _depends_on_mode(module: nn.Module) -> bool:
    return any(isinstance(m, _OF_MODE) for m in module.modules())
