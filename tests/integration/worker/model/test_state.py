"""A module is left as it was found."""

from typing import Any

import pytest
import torch
from torch import nn

from compilewatch.worker.model.construct import preserved

pytestmark = pytest.mark.torch


class Remembering(nn.Module):
    """Leaves every kind of trace: a new and a changed attribute, a buffer's value and identity."""

    mask: torch.Tensor
    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(4)
        self.register_buffer("mask", None)
        self.register_buffer("steps", torch.zeros(1))
        self.seen: Any = None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.seen = value
        self.new = value
        self.mask = value > 0
        self.steps = self.steps + 1
        return self.inner(value)


def test_nothing_of_a_run_is_left_also_after_an_error() -> None:
    module = Remembering()
    steps, weight = module.steps, module.inner.weight

    def failing() -> None:
        with preserved(module):
            module(torch.randn(8, 4)).sum().backward()
            assert module.inner.running_mean.any()
            assert module.mask is not None
            assert weight.grad is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert (module.seen, module.mask, weight.grad) == (None, None, None)
    assert not hasattr(module, "new")
    assert module.steps is steps
    assert module.inner.weight is weight
    assert not module.inner.running_mean.any()
