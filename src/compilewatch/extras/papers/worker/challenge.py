"""Random values that two sandboxes can make alike: the one with generated code, and the reference.

The seed is drawn for each run, so that no code can hold prepared results. Imports torch and the
standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

SCALE = 0.5
MOST_ELEMENTS = 2**20
"""Of one tensor: 4 MiB."""


def values(seed: str, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Normal values with a standard deviation of 0.5, which follow from seed, name and shape.

    Raises ValueError for a shape without elements, with which every comparison would hold, and for
    one with too many.
    """
    sizes = tuple(int(size) for size in shape)
    elements = 1
    for size in sizes:
        elements *= size
        if size < 1 or elements > MOST_ELEMENTS:
            raise ValueError(f"{name} has the shape {list(sizes)}, which cannot be compared")
    drawn = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7]
    generator = torch.Generator().manual_seed(int.from_bytes(drawn, "big"))
    return torch.randn(sizes, generator=generator) * SCALE
