"""Conversion of real values to fake ones, and calls of models that may be either."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.worker.model.fake_mode import InputAwareFakeMode


def fake_values(values: Any, mode: FakeTensorMode) -> Any:
    """Return nested values with each tensor made fake under a mode, which may keep values."""
    made = mode.known if isinstance(mode, InputAwareFakeMode) else mode.from_tensor
    return torch.utils._pytree.tree_map_only(torch.Tensor, made, values)


def call(function: Callable[..., Any], values: dict[str, Any], mode: FakeTensorMode | None) -> Any:
    """Call a method of a model without gradients, with fake tensors if the model is fake."""
    if mode is not None:
        values = fake_values(values, mode)
    with torch.no_grad(), mode or nullcontext():
        return function(**values)
