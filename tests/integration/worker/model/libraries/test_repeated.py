"""Which blocks a shallow model keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compilewatch.worker.model.libraries.repeated import drop_repeated

pytestmark = pytest.mark.torch


class Block(nn.Module):
    """A residual block; `shift` is a setting that changes what it does, `rate` only how much."""

    def __init__(self, width: int = 4, *, shift: int = 0, rate: float = 0.0, stride: int = 1):
        super().__init__()
        self.shift = shift
        self.rate = rate
        self.conv = nn.Conv2d(width, width, 3, stride=stride, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def shifts(module: nn.Module) -> list[int]:
    return [block.shift for block in module.children()]


def test_two_blocks_of_a_kind_stay_whatever_their_rates() -> None:
    stage = nn.Sequential(*(Block(rate=rate / 10) for rate in range(5)))
    drop_repeated(stage)
    assert list(stage._modules) == ["0", "1"]
    assert stage(torch.rand(1, 4, 8, 8)).shape == (1, 4, 8, 8)


def test_blocks_with_other_settings_are_another_kind() -> None:
    stage = nn.Sequential(*(Block(shift=i % 2) for i in range(8)))
    assert shifts(drop_repeated(stage)) == [0, 1, 0, 1]


def test_what_changes_a_shape_stays() -> None:
    down = nn.Sequential(*(Block(stride=2) for _ in range(4)))
    layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.ReLU(), nn.MaxPool2d(2))))
    widths = nn.Sequential(*(Block(width) for width in (4, 8, 16)))
    assert [len(drop_repeated(each)) for each in (down, layers, widths)] == [4, 8, 3]


def test_only_sequences_are_touched() -> None:
    blocks = nn.ModuleList(Block() for _ in range(5))
    nested = nn.ModuleDict({"stage": nn.Sequential(*(Block() for _ in range(5)))})
    assert len(drop_repeated(blocks)) == 5
    assert len(drop_repeated(nested)["stage"]) == 2
