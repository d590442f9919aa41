"""State in another Python module than that of the models of leaving.py."""

import collections
from typing import ClassVar

import torch
from torch import Tensor

COUNT = 0
NAMES: set[str] = set()
LAST: collections.deque[int] = collections.deque(maxlen=3)
SCALE = torch.ones(1)


class Registry:
    """Class-level state that only functions change."""

    known: ClassVar[dict[str, int]] = {}
    calls = 0


class Meter:
    """An object with state."""

    def __init__(self) -> None:
        self.total = 0

    def add(self) -> None:
        self.total += 1


METER = Meter()


def changed(x: Tensor) -> Tensor:
    """Change everything but the tensor."""
    global COUNT
    COUNT += 1
    NAMES.add(str(tuple(x.shape)))
    LAST.append(x.dim())
    Registry.known[str(x.dtype)] = Registry.known.get(str(x.dtype), 0) + 1
    Registry.calls += 1
    METER.add()
    return x * 2
