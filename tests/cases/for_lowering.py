"""Models for the forecast of Neuron; a mark on a line is the operator without a lowering there."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def inputs() -> tuple[Tensor, ...]:
    return (torch.arange(12.0).view(3, 4),)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Plain(_Model):
    """Nothing that torch-mlir lacks; its backward scatters into a slice without an end."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.layer(x))
        return torch.cat((-y[..., 2:], y[..., :2]), dim=-1)


class Breaks(_Model):
    """Two graphs."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y.relu()


class Lacks(_Model):
    """Two operators without a lowering, one of them twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y = y + torch.cummax(y, 0).values  # cummax
        y = y + torch.cummax(y, 0).values
        return y + torch.searchsorted(x.flatten(), y)  # searchsorted


class Handled(_Model):
    """Attention over found rows: TorchNeuron has a decomposition of `nonzero_static`."""

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nonzero_static(x[:, 0] > 2, size=2)
        return self.layer(x)[rows[:, 0] % 3]


class Puts(_Model):
    """TorchNeuron raises an error for boolean indices and several values."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * 1
        y[x > 5] = x.flatten()[6:]  # index_put
        return y


class Drops(_Model):
    """Random numbers are made outside."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x), 0.5, self.training)


class Normed(_Model):
    """Statistics of a batch, which torch-mlir lacks and TorchNeuron has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


class ReadsWeights(_Model):
    """Reads a value that fake tensors do not have."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.sum() > 0:
            y = y + 1
        return y * 2


class PadsByBuffer(ReadsWeights):
    """The amounts of a padding are tensors, whose values Dynamo knows (as in Encodec)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("amount", torch.tensor(1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(super().forward(x), (self.amount, self.amount))
