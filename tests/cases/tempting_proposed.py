"""Small models for which what `fix` proposes is right for some inputs, weights and calls only.

`tempting_fixes.PROPOSED` has the change that a proposer makes for each of them.
"""

import logging
import threading

import tempting_counts
import torch
from tempting_counts import SETTINGS, STATISTICS, count
from torch import Tensor, nn

WIDTH = 8
FACTOR = 3.0
CALLS = {"counted": 0}
LOCK = threading.Lock()

log = logging.getLogger(__name__)


class OtherType(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() < 1000:
            x = x * 0.5
        return x


class ChangedLater(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x if x.max() > 1000 else x * 2
        y.add_(1)
        return y * 2


class ReturnsItself(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1000:
            return x
        return x * 2


class LimitsOfIntegers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.isinf(x).any():
            x = torch.clamp(x, max=torch.finfo(x.dtype).max)
        return x + 1


class WritesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        mask = weight > 1000
        if mask.any():
            weight[mask] = 0
        return x * weight


class CatchesItsCheck(nn.Module):
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


class UsesTheValue(nn.Module):
    def forward(self, x: Tensor, causal: bool | None = None) -> tuple[Tensor, bool | None]:
        length = int(x.sum())
        causal = length > 1 and causal
        return x + 1, causal


class Experts(nn.Module):
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
    """Is trained: an expert without a row gets no gradient."""


def scaled(x: Tensor) -> Tensor:
    with LOCK:
        return x * FACTOR


class ReadsGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(x + 1) * 2


def scaled_by_settings(x: Tensor) -> Tensor:
    with LOCK:
        return x * SETTINGS.scale


class ReadsObject(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled_by_settings(x + 1) * 2


def inner(x: Tensor) -> Tensor:
    return x * tempting_counts.SCALE


def scaled_by_other(x: Tensor) -> Tensor:
    with LOCK:
        return inner(x)


class ReadsOtherModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled_by_other(x + 1) * 2


def counting(x: Tensor) -> Tensor:
    with LOCK:
        count()
    return x * 2


class CountsElsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return counting(x + 1) * 2


def counting_in_object(x: Tensor) -> Tensor:
    with LOCK:
        STATISTICS.calls += 1
    return x * 2


class CountsInObject(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return counting_in_object(x + 1) * 2


def remembering(x: Tensor, sizes: list[int] = []) -> Tensor:  # noqa: B006  (that is the model)
    with LOCK:
        sizes.append(len(x))
    return x * len(sizes)


class RemembersInDefault(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return remembering(x + 1) * 2


class SetsLater(nn.Module):
    """Writes an attribute in its seventh call, by another name than that of an assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.scale = torch.tensor(1.0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 7:
            self.write(torch.tensor(2.0))
        return x * 2 if self.scale > 1.5 else x * 3

    def write(self, value: Tensor) -> None:
        setattr(self, "scale", value)  # noqa: B010  (not an assignment)


class SetsInDict(SetsLater):
    def write(self, value: Tensor) -> None:
        self.__dict__["scale"] = value


class FillsLater(SetsLater):
    def write(self, value: Tensor) -> None:
        self.scale.copy_(value)


class LogsForOthers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        log.warning("called")
        return x * 2


class PreparesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            torch._dynamo.graph_break()
            self.ready = True
        STATISTICS.calls += 1
        return x * 2


class Powers(nn.Module):
    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return x * int(count.item()) ** 4


class DividesInPython(nn.Module):
    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return x * (1 / (int(count.item()) - 100))


class DividesByNumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 / (x.sum().item() - 100.0))


class CatchesNumber(nn.Module):
    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        try:
            return x[:, : int(count.item())].reshape(len(x), 3) * 2
        except RuntimeError:
            return x * 0


class Draws(nn.Module):
    def forward(self, p: Tensor) -> Tensor:
        return torch.bernoulli(p) * p.max().item()


class Levels(nn.Module):
    """Splits a sequence by sizes that are given as values, as Deformable DETR does."""

    def forward(self, x: Tensor, spatial_shapes: Tensor) -> Tensor:
        sizes = [height * width for height, width in spatial_shapes.tolist()]
        if sum(sizes) != x.shape[1]:
            raise ValueError("the levels are not those of the sequence")
        levels = x.split(sizes, dim=1)
        return torch.cat([level * (number + 1) for number, level in enumerate(levels)], 1)


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids) * input_ids.max().item()


class Increments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.factor
        if torch.isinf(y).any():
            y = torch.clamp(y, min=-100, max=100)
        return y * FACTOR
