"""Small models for searches of fixes: two share a graph break that a setting removes."""

import logging

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)


def announced(x: Tensor) -> Tensor:
    log.info("seen")
    return x * 2


class Announcing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return announced(self.linear(x))


class Breaking(nn.Module):
    """Nothing removes this graph break; a part of it is one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        torch._dynamo.graph_break()
        return x * 2


def small() -> nn.Module:
    return Announcing(4)


def large() -> nn.Module:
    return Announcing(64)


def breaking() -> nn.Module:
    return Breaking()


def inputs() -> tuple[Tensor]:
    return (torch.ones(2, 4),)
