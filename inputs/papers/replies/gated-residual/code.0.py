"""Residual blocks with gates that read their input."""

import torch
import torch.nn.functional as F
from torch import nn


class GatedBlock(nn.Module):
    """y = x + sigmoid(x W^T + b) * f(x)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.branch = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x):
        weight = torch.sigmoid(self.gate(x))
        return x + weight * self.branch(x)


class Classifier(nn.Module):
    def __init__(self, width: int = 64, hidden: int = 128, depth: int = 3, classes: int = 10):
        super().__init__()
        self.stem = nn.Linear(3 * 32 * 32, width)
        self.blocks = nn.ModuleList(GatedBlock(width, hidden) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.stem(images.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model():
    return Classifier()


def inputs():
    return (torch.randn(4, 3, 32, 32),)


def loss(output, inputs):
    labels = torch.zeros(output.shape[0], dtype=torch.long, device=output.device)
    return F.cross_entropy(output, labels)
