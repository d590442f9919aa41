"""Models whose verdict depends on the device, or that only a device can run."""

import torch
from torch import Tensor, nn


def inputs() -> tuple[Tensor, ...]:
    return (torch.arange(12.0).view(3, 4),)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.aside = torch.ones(4)  # `module.to` leaves it on the CPU


class ByDevice(_Model):
    """Breaks on the CPU only."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" or not getattr(torch, x.device.type).is_available():
            torch._dynamo.graph_break()
        return self.layer(x)


class AcrossDevices(_Model):
    """Fails in eager mode on every device but the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.aside


class Moves(_Model):
    """Moves what was left on the CPU to the device of its input, in the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.aside.to(x.device)


class ReadsInput(_Model):
    """Breaks at a value of its input, which eager code needs to continue."""

    def forward(self, x: Tensor) -> Tensor:
        count = int((x > 5).sum().item())
        return self.layer(x)[:, : max(1, count - 4)]


class ReadsWeights(_Model):
    """Breaks at a value that fake tensors do not have, so that only a probe answers."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.sum() > 0:
            y = y + 1
        return y * 2


class NeedsDevice(_Model):
    """Needs a value that fake tensors do not have, and then a device that is not the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.isfinite().all() and y.device.type == "cpu":
            raise NotImplementedError("this attention does not support CPU")
        return y


class Scalars(_Model):
    """Collects elements of a device tensor, which torch reads below its dispatcher."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.layer(x) + torch.tensor([x[0, 0], x[0, 1]], device=x.device).sum()


class StoresScalars(_Model):
    """Indexes with lists of elements, which torch reads below its dispatcher while tracing."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        at = (y.sum(1) > 0).long()
        y[[at[0], at[1]], [at[1], at[2]]] = 0
        return y


class PadsByTwo(_Model):
    """Adds two values of the device to a size, which `fullgraph=True` of torch 2.15 rejects."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        count = (y.sum() != 0).long()
        return nn.functional.pad(y, (count, count * 2))


class BranchesOnWeights(_Model):
    """Branches on a value of its weights, and has no constant."""

    def __init__(self) -> None:
        super().__init__()
        del self.aside

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + 1 if y.sum() > 0 else y


class Constant(_Model):
    """Makes an empty constant on the device, as caches of Transformers do."""

    def forward(self, x: Tensor) -> Tensor:
        empty = torch.tensor([], dtype=x.dtype, device=x.device)
        return torch.cat([empty, self.layer(x).flatten()])
