"""Small models with a graph break for which a tempting fix is wrong (`tempting_fixes.py` says why).

Each class is a model that needs no arguments, and takes one batch of rows. A `forward` in its place
that removes the break is called `wrong` where it gives the same results for some inputs, weights or
calls only, and `right` where it computes the same.
"""

import math
import random
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 8
LARGE_BATCH = 4

LOCK = threading.Lock()
CALLS = {"forward": 0}
SIZES: list[int] = []


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


class LargeBatch(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if y.abs().sum() > 0 and x.shape[0] > LARGE_BATCH:
            y = y / x.shape[0]
        return y

    def wrong(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def right(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if x.shape[0] > 4:
            y = torch.where(y.abs().sum() > 0, y / x.shape[0], y)
        return y


class ChangesInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > -1000:
            x.add_(1)
        return x * 2

    def wrong(self, x: Tensor) -> Tensor:
        x = torch.where(x.sum() > -1000, x + 1, x)
        return x * 2

    def right(self, x: Tensor) -> Tensor:
        x.copy_(torch.where(x.sum() > -1000, x + 1, x))
        return x * 2


class ChecksForNan(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        if torch.isnan(y).any():
            raise ValueError("not a number")
        return y * 2

    def wrong(self, x: Tensor) -> Tensor:
        return (x + 1) * 2

    def right(self, x: Tensor) -> Tensor:
        y = x + 1
        torch._assert_async(~torch.isnan(y).any(), "not a number")
        return y * 2


class DrawsTwice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rand_like(x)
        if x.sum() > math.inf:
            scale = scale * 2
        return x * scale + torch.randn_like(x)

    def wrong(self, x: Tensor) -> Tensor:
        return torch.randn_like(x) + x * torch.rand_like(x) * torch.where(x.sum() > math.inf, 2, 1)

    def right(self, x: Tensor) -> Tensor:
        scale = torch.rand_like(x)
        scale = torch.where(x.sum() > math.inf, scale * 2, scale)
        return x * scale + torch.randn_like(x)


def drawn() -> float:
    return float(torch.rand(()).item())


class DrawsNumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * drawn()


class CountsInBuffer(nn.Module):
    """Prepares itself in its first call, and counts all calls in a buffer."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.prepared = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.prepared:
            torch._dynamo.graph_break()
            self.prepared = True
        self.steps += 1
        return x + 1


class AveragesInBuffer(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if x.isfinite().all():
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * 2

    def wrong(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and x.isfinite().all():
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * 2

    def right(self, x: Tensor) -> Tensor:
        new = self.mean * 0.9 + x.detach().mean(0) * 0.1
        self.mean.copy_(torch.where(x.isfinite().all(), new, self.mean))
        return x * 2


class SelectsRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        if len(rows) == 0:
            return torch.zeros(x.shape[1])
        return rows.mean(0)

    def wrong(self, x: Tensor) -> Tensor:
        index = (x[:, 0] > 0).nonzero()[:, 0]
        torch._check(index.shape[0] > 0)
        return x[index].mean(0)

    def right(self, x: Tensor) -> Tensor:
        chosen = x[:, :1] > 0
        return torch.where(chosen, x, 0).sum(0) / chosen.sum().clamp(min=1)


class ReadsStep(nn.Module):
    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.current = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return x * int(self.step.item())

    def wrong(self, x: Tensor) -> Tensor:
        self.step += 1
        return x * (self.current + 1)


class HoldsNumbers(nn.Module):
    """Branches on a scalar of NumPy, and counts its calls in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.large = np.bool_(WIDTH > 2)
        self.step = torch.zeros((), dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        step = self.step
        step += 1
        return x * 2 if self.large else x


def halved_if_large(x: Tensor) -> Tensor:
    if x.abs().max() > 100:
        return x / 2
    return x * 1


class CallsHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return halved_if_large(x + 1) * 2


def jittered(x: Tensor) -> Tensor:
    with LOCK:
        return x + random.random()


class CallsRandomHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return jittered(x + 1) * 2


def locked(x: Tensor, factor: int) -> Tensor:
    with LOCK:
        return x * factor


def without_factor(x: Tensor, _: int) -> Tensor:
    return x


class CallsLockedHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return locked(x + 1, 3) * 2


def remembered(x: Tensor) -> Tensor:
    with LOCK:
        SIZES.append(len(x))
    return x * 3


class CallsRememberingHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return remembered(x + 1) * 2


class Normalises(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        largest = y.abs().max()
        if largest > 0:
            y = y / largest
        return y

    def wrong(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        largest = y.abs().max().detach()
        return y / torch.where(largest > 0, largest, 1)

    def right(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        largest = y.abs().max()
        return y / torch.where(largest > 0, largest, 1)


class ReturnsView(nn.Module):
    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("start", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(1, int(self.start.item()), 4)

    def wrong(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.start + torch.arange(4))


class ReturnsFigures(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        y = x * 2
        return {"output": y, "largest": y.max().item()}

    def wrong(self, x: Tensor) -> dict[str, Any]:
        return {"output": x * 2}


class CountsPositive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([x.shape[0], int((x > 0).sum())])

    def wrong(self, x: Tensor) -> Tensor:
        return torch.stack([torch.tensor(float(x.shape[0])), (x > 0).float().sum()])


class ReturnsList(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        if x.isnan().any():
            x = torch.nan_to_num(x)
        return [row * 2 for row in torch.unbind(x, 1)]

    def wrong(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.unbind(torch.where(x.isnan().any(), torch.nan_to_num(x), x) * 2, 1)


def count_call() -> None:
    with LOCK:
        CALLS["forward"] += 1


def uncounted() -> None:
    pass


class CountsInGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        count_call()
        return y * 2


class KeepsScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale = float(x.abs().max().item())
        return x * 2

    def wrong(self, x: Tensor) -> Tensor:
        return x * 2


class DependsOnWeights(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if self.linear.weight.sum() > 0:
            y = y * 2
        return y

    def wrong(self, x: Tensor) -> Tensor:
        return self.linear(x)


class ForNegative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.min() < 0:
            x = x - x.min()
        return x.sqrt()

    def wrong(self, x: Tensor) -> Tensor:
        return x.sqrt()


class ForZero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().max().item()
        return x if largest == 0 else x / largest

    def wrong(self, x: Tensor) -> Tensor:
        return x / x.abs().max()


class ForInfinity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if torch.isinf(y).any():
            y = torch.clamp(y, min=-1000.0, max=1000.0)
        return y + 1

    def wrong(self, x: Tensor) -> Tensor:
        return x * 2 + 1

    def right(self, x: Tensor) -> Tensor:
        y = x * 2
        return torch.where(torch.isinf(y).any(), torch.clamp(y, min=-1000.0, max=1000.0), y) + 1


class ForEmptyMask(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.sum() == 0:
            return torch.zeros_like(x)
        return x * 2

    def wrong(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * 2


class ForPaddedMask(ForEmptyMask):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not mask.all():
            x = x.masked_fill(mask == 0, -1.0)
        return x * 2


class BreaksOften(Linear):
    """Has several breaks in a part that does most of the work."""

    def part(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.linear(x) * 2 + 1)
        torch._dynamo.graph_break()
        x = torch.tanh(self.linear(x) * 3 + 1)
        torch._dynamo.graph_break()
        return torch.tanh(self.linear(x) * 4 + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x + 1) * 2


class Reads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.abs().max().item()


class ReadsTwice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.abs().max().item() + x.mean().item()


def rows() -> tuple[Tensor]:
    """Return example inputs of the models that take one tensor."""
    return (torch.rand(LARGE_BATCH, WIDTH) + 0.1,)
