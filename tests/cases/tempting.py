"""Small models with a graph break for which a tempting fix is wrong (`tempting_fixes.py` says why).

A `forward` in the place of a model's own that removes the break is called `wrong` where it gives
the same results for some inputs, weights or calls only, and `right` where it computes the same.
"""

import math
import random
import threading
from typing import Any, ClassVar

import numpy as np
import tempting_counts
import torch
from tempting_counts import STATISTICS
from torch import Tensor, nn

WIDTH = 8
LARGE_BATCH = 4
FACTOR = 3.0

LOCK = threading.Lock()
SIZES: list[int] = []


def rows(size: int = LARGE_BATCH) -> tuple[Tensor, ...]:
    return (torch.rand(size, WIDTH) + 0.1,)


def masked(size: int) -> tuple[Tensor, ...]:
    return *rows(size), torch.ones(size, WIDTH, dtype=torch.int64)


def integers(size: int) -> tuple[Tensor, ...]:
    return (torch.randint(1, 9, (size, WIDTH)),)


def with_count(size: int) -> tuple[Tensor, ...]:
    return *rows(size), torch.tensor(3)


def with_levels(size: int) -> dict[str, Tensor]:
    sizes = [[2, 2], [2, 1]] if size == LARGE_BATCH else [[2, 3], [1, 1]]
    length = sum(height * width for height, width in sizes)
    return {"x": torch.rand(2, length, WIDTH), "spatial_shapes": torch.tensor(sizes)}


class Model(nn.Module):
    """A model that needs no arguments; `inputs` returns those of a call with so many samples."""

    trained = False
    inputs: ClassVar[Any] = staticmethod(rows)


class Buffered(Model):
    """Has a buffer that begins as `first`."""

    first: Tensor
    buffer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", self.first.clone())


class Linear(Model):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def wrong(self, x: Tensor) -> Any:
        return self.linear(x)


class LargeBatch(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if y.abs().sum() > 0 and x.shape[0] > LARGE_BATCH:
            y = y / x.shape[0]
        return y


class ChangesInput(Model):
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


class ChecksForNan(Model):
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


class DrawsTwice(Model):
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


class CountsInBuffer(Buffered):
    """Prepares itself in its first call, and counts all calls."""

    first, prepared = torch.zeros(()), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.prepared:
            torch._dynamo.graph_break()
            self.prepared = True
        self.buffer += 1
        return x + 1


class AveragesInBuffer(Buffered):
    first = torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if x.isfinite().all():
            self.buffer.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * 2

    def wrong(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and x.isfinite().all():
            self.buffer.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * 2

    def right(self, x: Tensor) -> Tensor:
        new = self.buffer * 0.9 + x.detach().mean(0) * 0.1
        self.buffer.copy_(torch.where(x.isfinite().all(), new, self.buffer))
        return x * 2


class SelectsRows(Model):
    def forward(self, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        if len(rows) == 0:
            return torch.zeros(x.shape[1])
        return rows.mean(0)

    def wrong(self, x: Tensor) -> Tensor:
        index = (x[:, 0] > 0).nonzero()[:, 0]
        torch._check(index.shape[0] > 0)
        return x[index].mean(0)


class ReadsStep(Buffered):
    first, current = torch.tensor(0), 0

    def forward(self, x: Tensor) -> Tensor:
        self.buffer += 1
        return x * int(self.buffer.item())

    def wrong(self, x: Tensor) -> Tensor:
        self.buffer += 1
        return x * (self.current + 1)


class HoldsNumbers(Model):
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


class CallsHelper(Model):
    def forward(self, x: Tensor) -> Tensor:
        return halved_if_large(x + 1) * 2


def jittered(x: Tensor) -> Tensor:
    with LOCK:
        return x + random.random()


class CallsRandomHelper(Model):
    def forward(self, x: Tensor) -> Tensor:
        return jittered(x + 1) * 2


def locked(x: Tensor, factor: int) -> Tensor:
    with LOCK:
        return x * factor


class CallsLockedHelper(Model):
    def forward(self, x: Tensor) -> Tensor:
        return locked(x + 1, 3) * 2


def remembered(x: Tensor) -> Tensor:
    with LOCK:
        SIZES.append(len(x))
    return x * 3


class CallsRememberingHelper(Model):
    def forward(self, x: Tensor) -> Tensor:
        return remembered(x + 1) * 2


class Normalises(Linear):
    trained = True

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


class ReturnsView(Buffered):
    first = torch.tensor(2)

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(1, int(self.buffer.item()), 4)

    def wrong(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.buffer + torch.arange(4))


class ReturnsFigures(Model):
    def forward(self, x: Tensor) -> dict[str, Any]:
        y = x * 2
        return {"output": y, "largest": y.max().item()}


class ReturnsList(Model):
    def forward(self, x: Tensor) -> list[Tensor]:
        if x.isnan().any():
            x = torch.nan_to_num(x)
        return [row * 2 for row in torch.unbind(x, 1)]

    def wrong(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.unbind(torch.where(x.isnan().any(), torch.nan_to_num(x), x) * 2, 1)


class KeepsScale(Model):
    scale = 0.0

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


class ForNegative(Model):
    def forward(self, x: Tensor) -> Tensor:
        if x.min() < 0:
            x = x - x.min()
        return x.sqrt()

    def wrong(self, x: Tensor) -> Tensor:
        return x.sqrt()


class ForInfinity(Model):
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


class ForPaddedMask(Model):
    inputs = staticmethod(masked)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not mask.all():
            x = x.masked_fill(mask == 0, -1.0)
        return x * 2

    def wrong(self, x: Tensor, mask: Tensor) -> Tensor:
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


class Reads(Model):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.abs().max().item()


# --- what `fix` proposes is right for some inputs, weights and calls only ---


class OtherType(Model):
    inputs = staticmethod(integers)

    def forward(self, x: Tensor) -> Tensor:
        if x.max() < 1000:
            x = x * 0.5
        return x


class ChangedLater(Model):
    def forward(self, x: Tensor) -> Tensor:
        y = x if x.max() > 1000 else x * 2
        y.add_(1)
        return y * 2


class ReturnsItself(Model):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1000:
            return x
        return x * 2


class WritesParameter(Model):
    trained = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        mask = weight > 1000
        if mask.any():
            weight[mask] = 0
        return x * weight


class CatchesItsCheck(Model):
    """Has another result for what it checks itself."""

    def checked(self, x: Tensor) -> Tensor:
        if x.max().item() > 1000:
            raise ValueError("too large")
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.checked(x)
        except ValueError:
            return x * 0


class Experts(Model):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        output = torch.zeros_like(x)
        chosen = (x[:, 0] * 4).long().clamp(0, 3)
        mask = nn.functional.one_hot(chosen, 4).T[:, None]
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for row in hit:
            _, token = torch.where(mask[row[0]])
            states = self.experts[row[0]](x[token])
            output.index_add_(0, token, states)
        return output


class TrainedExperts(Experts):
    trained = True


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR * tempting_counts.SCALE


def locked_and_scaled(x: Tensor) -> Tensor:
    with LOCK:
        return scaled(x)


class ReadsGlobals(Model):
    def forward(self, x: Tensor) -> Tensor:
        return locked_and_scaled(x + 1) * 2


def counting_in_object(x: Tensor) -> Tensor:
    with LOCK:
        STATISTICS.calls += 1
    return x * 2


class CountsInObject(Model):
    def forward(self, x: Tensor) -> Tensor:
        return counting_in_object(x + 1) * 2


def remembering(x: Tensor, sizes: list[int] = []) -> Tensor:  # noqa: B006  (that is the model)
    with LOCK:
        sizes.append(len(x))
    return x * len(sizes)


class RemembersInDefault(Model):
    def forward(self, x: Tensor) -> Tensor:
        return remembering(x + 1) * 2


class SetsLater(Model):
    """Writes an attribute in its seventh call, by another name than that of an assignment."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(1.0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 7:
            self.write(torch.tensor(2.0))
        return x * 2 if self.scale > 1.5 else x * 3

    def write(self, value: Tensor) -> None:
        setattr(self, "scale", value)  # noqa: B010  (not an assignment)


class FillsLater(SetsLater):
    def write(self, value: Tensor) -> None:
        self.scale.copy_(value)


class PreparesItself(Model):
    ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            torch._dynamo.graph_break()
            self.ready = True
        STATISTICS.calls += 1
        return x * 2


class Powers(Model):
    inputs = staticmethod(with_count)

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return x * int(count.item()) ** 4


class DividesInPython(Model):
    inputs = staticmethod(with_count)

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return x * (1 / (int(count.item()) - 100))


class DividesByNumber(Model):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 / (x.sum().item() - 100.0))


class Draws(Model):
    inputs = staticmethod(lambda size: (torch.rand(size, WIDTH),))

    def forward(self, p: Tensor) -> Tensor:
        return torch.bernoulli(p) * p.max().item()


class Levels(Model):
    """Splits a sequence by sizes that are given as values, as Deformable DETR does."""

    inputs = staticmethod(with_levels)

    def forward(self, x: Tensor, spatial_shapes: Tensor) -> Tensor:
        sizes = [height * width for height, width in spatial_shapes.tolist()]
        if sum(sizes) != x.shape[1]:
            raise ValueError("the levels are not those of the sequence")
        levels = x.split(sizes, dim=1)
        return torch.cat([level * (number + 1) for number, level in enumerate(levels)], 1)


class Embeds(Model):
    inputs = staticmethod(lambda size: {"input_ids": torch.randint(0, 16, (size, WIDTH))})

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids) * input_ids.max().item()


class Increments(Model):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.factor
        if torch.isinf(y).any():
            y = torch.clamp(y, min=-100, max=100)
        return y * FACTOR
