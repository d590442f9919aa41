"""Small models that TorchNeuron answers differently; `square_inputs` of `for_xla` are theirs."""

import torch
from for_xla import Batched, Drops, Reads, square_inputs
from torch import Tensor, nn

__all__ = ["Batched", "Draws", "Drops", "Histogram", "Keeps", "Reads", "square_inputs"]


class Draws(nn.Module):
    """Runs an operator without a kernel, outside of its graphs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.noise(x * 2) * 0 + x

    @torch.compiler.disable
    def noise(self, x: Tensor) -> Tensor:
        return x.clone().normal_()


class Histogram(nn.Module):
    """An operator that torch-mlir has no lowering for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.histc(x, bins=4) + 1


class Keeps(nn.Module):
    """Has a tensor that no module moves to a device."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table
