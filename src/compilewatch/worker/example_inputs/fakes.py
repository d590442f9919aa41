"""Conversion of real values to fake ones, and calls of models that may be either."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.worker.example_inputs.specs import attributes_of, with_attributes
from compilewatch.worker.model.fake_mode import InputAwareFakeMode


def fake_values(values: Any, mode: FakeTensorMode) -> Any:
    """Return nested values with each tensor made fake under a mode, which may keep values."""
    if isinstance(mode, InputAwareFakeMode):
        return converted(values, mode.known, mode.device)
    return converted(values, mode.from_tensor, torch.device("cpu"))


def converted(
    values: Any, convert: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> Any:
    """Return nested values with each tensor converted, which puts it on `device`.

    An object that holds the state of earlier calls is copied, with its tensors converted and with
    what it says of its own device.
    """

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return convert(value)
        attributes = attributes_of(value)
        if attributes is not None:
            return with_attributes(value, nested(attributes))
        return state(value) if holds_state(value) else value

    def state(value: Any) -> Any:
        copied = copy.copy(value)
        for name, attribute in vars(value).items():
            is_own_device = name.endswith("device") and str(attribute) == "cpu"
            vars(copied)[name] = (
                type(attribute)(str(device)) if is_own_device else nested(attribute)
            )
        return copied

    def nested(value: Any) -> Any:
        return torch.utils._pytree.tree_map(one, value)

    return nested(values)


def holds_state(value: Any) -> bool:
    """Whether a value is an object of Transformers with attributes, such as a cache or a session.

    Outputs of models are no such objects: they are containers of tensors.
    """
    kind = type(value)
    known = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    is_own = kind.__module__.partition(".")[0] == "transformers"
    return is_own and known is kind and hasattr(value, "__dict__")


def call(function: Callable[..., Any], values: dict[str, Any], mode: FakeTensorMode | None) -> Any:
    """Call a method of a model without gradients, with fake tensors if the model is fake."""
    if mode is not None:
        values = fake_values(values, mode)
    with torch.no_grad(), mode or nullcontext():
        return function(**values)
