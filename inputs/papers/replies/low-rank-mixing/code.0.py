"""Token mixing through a bottleneck of low rank."""

import torch
import torch.nn.functional as F
from torch import nn


class LowRankMixing(nn.Module):
    """y = x + U (V^T x) / sqrt(r), over the tokens."""

    def __init__(self, tokens: int, rank: int):
        super().__init__()
        self.rank = rank
        self.left = nn.Parameter(torch.randn(tokens, rank) * tokens**-0.5)
        self.right = nn.Parameter(torch.randn(tokens, rank) * tokens**-0.5)

    def forward(self, x):
        reduced = torch.matmul(self.right.transpose(0, 1), x)
        return x + torch.matmul(self.left, reduced) / self.rank**0.5


class Layer(nn.Module):
    def __init__(self, tokens: int, width: int, rank: int):
        super().__init__()
        self.mixing = LowRankMixing(tokens, rank)
        self.norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = self.mixing(x)
        return x + self.perceptron(self.norm(x))


class Encoder(nn.Module):
    def __init__(self, vocabulary: int = 100, tokens: int = 32, width: int = 48, rank: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Layer(tokens, width, rank) for _ in range(2)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids)))


def model():
    return Encoder()


def inputs():
    return (torch.randint(0, 100, (2, 32)),)


def loss(output, inputs):
    (ids,) = inputs
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
