"""Small models whose code depends on a size: a line marked `# size` makes the graph of one size
wrong for others, or makes Dynamo compile again. `SOUND` are models that one graph serves.

Each takes `x` of any batch and any number of rows (`x.0`, `x.1`).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 8


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)


class Branch(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if x.shape[1] > 64:  # size
            y = y * 2
        return y


class Multiple(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y + 1 if x.shape[1] % 8 == 0 else y  # size


class Constant(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        steps = list(range(x.shape[1]))  # size
        return self.linear(x) * len(steps)


class ListOfSizes(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        for size in (16, 32, 64):
            if x.shape[1] <= size:  # size
                return y * size
        return y


class PowerOfTwo(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1 << (int(x.shape[1]) - 1).bit_length())  # size


class Memo(_Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scales: dict[int, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.scales:  # size
            self.scales[x.shape[1]] = 1 / x.shape[1]
        return self.linear(x) * self.scales[x.shape[1]]


class Table(_Layer):
    """A cache of values for all positions, made anew where a text is longer."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(64.0).cos(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.table):  # size
            self.table = torch.arange(float(x.shape[1])).cos()
        return self.linear(x) * self.table[: x.shape[1], None]


class DtypeBySize(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y.double() if x.shape[1] >= 128 else y  # size


class BatchOfOne(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if x.shape[0] == 1:  # size
            y = y.squeeze(0)
        return y


class Squeezed(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).squeeze(0).sum(0)  # size


class LoopOverBatch(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        for row in range(x.shape[0]):  # size
            y = y + row * x[row]
        return y


class Quarters(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        quarters = x.chunk(4, 1)  # size
        return torch.cat([self.linear(part) * n for n, part in enumerate(quarters)], 1)


class Square(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if x.shape[0] == x.shape[1]:  # size
            y = y + torch.eye(x.shape[0])[:, :, None]
        return y


class Windows(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        window = min(32, x.shape[1])
        return self.linear(x[:, -window:]) * window  # size


WRONG = (
    Branch,
    Multiple,
    Constant,
    ListOfSizes,
    PowerOfTwo,
    Memo,
    Table,
    DtypeBySize,
    BatchOfOne,
    Squeezed,
    LoopOverBatch,
    Quarters,
    Square,
    Windows,
)


class SizeAsFloat(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) / float(x.shape[1]) ** 0.5


class Logarithm(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * math.log2(x.shape[1] + 1)


class Remembered(_Layer):
    """The size of the last call, in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def forward(self, x: Tensor) -> Tensor:
        self.length = x.shape[1]
        return self.linear(x) / self.length


class Reversed(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).flip(1).transpose(0, 1).contiguous()


class Folded(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        batch, rows, features = x.shape
        return self.linear(x.reshape(batch * rows, features)).view(batch, rows, -1)


class Causal(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        heads = self.linear(x).unflatten(-1, (2, -1)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


class Normalised(_Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)


class Positions(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] / 10 ** torch.arange(FEATURES)
        return self.linear(x) + angles.sin()


class PaddedToEight(_Layer):
    """The rows that it adds, it takes away."""

    def forward(self, x: Tensor) -> Tensor:
        missing = -x.shape[1] % 8
        return self.linear(functional.pad(x, (0, 0, 0, missing)))[:, : x.shape[1]]


class Convolution(_Layer):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(FEATURES, FEATURES, 3, padding=1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.convolution(self.linear(x).transpose(1, 2)))


SOUND = (
    SizeAsFloat,
    Logarithm,
    Remembered,
    Reversed,
    Folded,
    Causal,
    Normalised,
    Positions,
    PaddedToEight,
    Convolution,
)


def inputs() -> tuple[Tensor]:
    torch.manual_seed(0)
    return (torch.randn(3, 24, FEATURES),)
