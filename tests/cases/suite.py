"""Twenty small models of an author's repository, some with graph breaks that are known."""

import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)


def gate(x: Tensor) -> Tensor:
    total = x.sum()
    if total > 0:
        x = x * 2
    return x


class Mlp(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers(x)
        return hidden + x


class Gated(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        hidden = super().forward(x)
        return gate(hidden)


class Logs(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        log.warning("called")
        y = super().forward(x)
        log.warning("returned")
        return y


class Items(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max().item()
        return super().forward(x) * scale


class Prints(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        print("hidden", y.shape)
        return y


class Normed(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x))


class Stacked(nn.Module):
    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Normed(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class StackedGate(Stacked):
    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 1:
                x = gate(x)
        return x


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width = x.shape
        q, k, v = self.qkv(x).view(batch, 3, self.heads, -1).unbind(1)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        return (scores.softmax(-1) @ v).reshape(batch, width)


class Masked(Attention):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        kept = y[y > 0]
        return kept.sum() + y


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x[:, None]))).mean(1)


class Recurrent(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        for _ in range(3):
            state = self.cell(x, state)
        return state


class Dropped(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(super().forward(x), 0.1, self.training)


class Embedded(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.abs().long().clamp(max=7)).sum(1)


class Counted(Mlp):
    def __init__(self, width: int = 16) -> None:
        super().__init__(width)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(x)


class Cached(Mlp):
    def __init__(self, width: int = 16) -> None:
        super().__init__(width)
        self.cache: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "positions" not in self.cache:
            self.cache["positions"] = torch.arange(x.shape[-1])
        return super().forward(x) + self.cache["positions"]


class Copied(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        options = copy.copy({"scale": 2})
        return super().forward(x) * options["scale"]


class Experts(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.router = nn.Linear(width, 2)
        self.experts = nn.ModuleList(Mlp(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return sum(weights[:, [n]] * expert(x) for n, expert in enumerate(self.experts))


class Routed(Experts):
    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(-1)
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == index)[:, 0]
            y[rows] = expert(x[rows])
        return y


class Squeezed(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * torch.sigmoid(y.mean(-1, keepdim=True))


MODELS: tuple[type[nn.Module], ...] = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and kind.__module__ == __name__
)
