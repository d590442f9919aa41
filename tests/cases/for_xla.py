"""Small models that XLA answers differently; each has a factory and, as `…_inputs`, its inputs."""

import os
import signal

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """Tied weights, a buffer, a constant of its own, a scalar and an input it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.inner = nn.Linear(5, 3)
        self.outer = nn.Linear(3, 5, bias=False)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, ids: Tensor, unused: Tensor) -> dict[str, Tensor]:
        hidden = self.inner(self.embed(ids)) * self.scale * 0.125
        hidden = hidden + torch.tensor([1.0, 2.0, 3.0], device=ids.device)
        return {"logits": self.head(self.outer(hidden)), "hidden": hidden}


class Reads(nn.Module):
    """Reads a value once, to choose a branch."""

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        if doubled.sum().item() > 0:
            return doubled + 1
        return doubled


class Chooses(nn.Module):
    """Reads a value where it is not traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        doubled = self.linear(x) * 2
        if torch.compiler.is_compiling() or bool((doubled > 0).any()):
            doubled = doubled + torch.arange(4, device=x.device)
        return {"doubled": doubled, "sum": doubled.sum()}


class Normed(nn.Sequential):
    """An operator without a lowering that decomposes into such as have one."""

    def __init__(self) -> None:
        super().__init__(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))


class Falls(nn.Module):
    """The same operator without a lowering at two lines, one of them twice."""

    def forward(self, x: Tensor) -> Tensor:
        first = x.nonzero().sum()
        for _ in range(2):
            first = first + (x > first).nonzero().sum()
        return first


class Fetches(nn.Module):
    """Cuts the graph without any operator that falls back."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).cpu().to(x.device) + 1


class Differs(nn.Module):
    """Computes something else on XLA."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (1.0 if x.device.type == "xla" else 0.0)


class Drops(nn.Module):
    """Draws random numbers in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.norm(self.linear(x)), 0.5, self.training)


class FallsTraining(nn.Linear):
    """An operator without a lowering, whose gradient needs others without one."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.det(super().forward(x))


class Sorts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(dim=-1).values + x.topk(2).values.sum()


class Refused(nn.Module):
    """Mixes devices, which only a device other than the CPU shows."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, torch.ones(4, 4)) + self.plain


class Dies(nn.Module):
    """Ends its process on the XLA device, as a failed check of XLA does."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "xla":
            os.kill(os.getpid(), signal.SIGABRT)
        return x


class Batched(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


def plain_inputs() -> tuple[Tensor, Tensor]:
    return torch.tensor([[1, 2, 3, 4]]), torch.ones(2)


def square_inputs() -> tuple[Tensor]:
    return (torch.linspace(-1, 2, 16).reshape(4, 4),)
