"""Small models with a graph break, for each of which a tempting fix is wrong (`tempting_fixes.py`).

Each class is a model that needs no arguments, and takes one batch of rows. A fix that is wrong for
it removes the break, and gives the same results for some inputs, weights or calls.
"""

from __future__ import annotations

import logging
import math
import random
import threading

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 8
LARGE_BATCH = 4

LOCK = threading.Lock()
CALLS = {"forward": 0}

log = logging.getLogger(__name__)


class LargeBatch(nn.Module):
    """Scales the rows of a batch that is larger than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if y.abs().sum() > 0 and x.shape[0] > LARGE_BATCH:
            y = y / x.shape[0]
        return y


class ChangesInput(nn.Module):
    """Changes the caller's tensor in place."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > -1000:
            x.add_(1)
        return x * 2


class ChecksForNan(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        if torch.isnan(y).any():
            raise ValueError("not a number")
        return y * 2


class DrawsTwice(nn.Module):
    """Draws random numbers twice, for values that depend on the order."""

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rand_like(x)
        if x.sum() > math.inf:
            scale = scale * 2
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
    """Keeps a running mean in a buffer, unless the batch is not finite."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if x.isfinite().all():
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * 2


class SelectsRows(nn.Module):
    """Returns the mean of rows that data selects, which may be none."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        if len(rows) == 0:
            return torch.zeros(x.shape[1])
        return rows.mean(0)


class ReadsStep(nn.Module):
    """Multiplies by a number that grows with each call."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.current = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return x * int(self.step.item())


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
    """Calls a function with a branch that depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        return halved_if_large(x + 1) * 2


def jittered(x: Tensor) -> Tensor:
    with LOCK:
        return x + random.random()


class CallsRandomHelper(nn.Module):
    """Calls a function that draws a random number of Python."""

    def forward(self, x: Tensor) -> Tensor:
        return jittered(x + 1) * 2


def locked(x: Tensor, factor: int) -> Tensor:
    with LOCK:
        return x * factor


class CallsLockedHelper(nn.Module):
    """Calls a function that takes a lock, and does nothing else that Dynamo cannot read."""

    def forward(self, x: Tensor) -> Tensor:
        return locked(x + 1, 3) * 2


SIZES: list[int] = []


def remembered(x: Tensor) -> Tensor:
    with LOCK:
        SIZES.append(len(x))
    return x * 3


class CallsRememberingHelper(nn.Module):
    """Calls a function that keeps the size of each call for others."""

    def forward(self, x: Tensor) -> Tensor:
        return remembered(x + 1) * 2


class Normalises(nn.Module):
    """Divides by the largest value, through which gradients flow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        largest = y.abs().max()
        if largest > 0:
            y = y / largest
        return y


class ReturnsView(nn.Module):
    """Returns a part of the caller's tensor, into which the caller may write."""

    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("start", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(1, int(self.start.item()), 4)


class ReturnsFigures(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor | float]:
        y = x * 2
        return {"output": y, "largest": y.max().item()}


class CountsPositive(nn.Module):
    """Returns integers."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([x.shape[0], int((x > 0).sum())])


class ReturnsList(nn.Module):
    """Returns a list, to which the caller may append."""

    def forward(self, x: Tensor) -> list[Tensor]:
        if x.isnan().any():
            x = torch.nan_to_num(x)
        return [row * 2 for row in torch.unbind(x, 1)]


def count_call() -> None:
    with LOCK:
        CALLS["forward"] += 1


class CountsInGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        count_call()
        return y * 2


class KeepsScale(nn.Module):
    """Keeps the scale of its last call in an attribute, where its caller reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale = float(x.abs().max().item())
        return x * 2


class DependsOnWeights(nn.Module):
    """Takes a branch that depends on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if self.linear.weight.sum() > 0:
            y = y * 2
        return y


class ForNegative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.min() < 0:
            x = x - x.min()
        return x.sqrt()


class ForZero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().max().item()
        return x if largest == 0 else x / largest


class ForInfinity(nn.Module):
    """Limits what is not finite, as models in half precision do."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if torch.isinf(y).any():
            y = torch.clamp(y, min=-1000.0, max=1000.0)
        return y + 1


class ForEmptyMask(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.sum() == 0:
            return torch.zeros_like(x)
        return x * 2


class ForPaddedMask(nn.Module):
    """Uses its mask only if it hides something."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not mask.all():
            x = x.masked_fill(mask == 0, -1.0)
        return x * 2


class BreaksOften(nn.Module):
    """Has several breaks in a part that does most of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def part(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.linear(x) * 2 + 1)
        torch._dynamo.graph_break()
        x = torch.tanh(self.linear(x) * 3 + 1)
        torch._dynamo.graph_break()
        return torch.tanh(self.linear(x) * 4 + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x + 1) * 2


class Reads(nn.Module):
    """Has one break that a setting removes."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.abs().max().item()


class ReadsTwice(nn.Module):
    """Has two breaks that a setting removes."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.abs().max().item() + x.mean().item()


def rows() -> tuple[Tensor]:
    """Return example inputs of the models that take one tensor."""
    return (torch.rand(LARGE_BATCH, WIDTH) + 0.1,)
