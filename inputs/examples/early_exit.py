"""A classifier that stops early if it is confident, a common pattern with one graph break.

Dynamo cannot capture the branch on a tensor's value in one graph (GB0170); compare `torch.cond`.
"""

from __future__ import annotations

import torch
from torch import nn


class EarlyExit(nn.Module):
    """Two stages over features (batch, 32); the second runs only if the first is not confident."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 10)
        self.second = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        scores = self.first(features)
        if scores.softmax(-1).max() > 0.9:
            return scores
        return scores + self.second(features)


def model() -> nn.Module:
    return EarlyExit()


def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.linspace(-1, 1, 64).reshape(2, 32),)
