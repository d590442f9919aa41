"""Inputs of other sizes, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Follows = Mapping[int | str, Mapping[int, tuple[int, Mapping[str, int]]]]
"""How the sizes of tensors follow from those that are served: for each argument, by its position or
name, and each of its dimensions, a constant and a factor for each size."""

Sizes = dict[str, int]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def sized(value: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """Repeat samples, or the last entry of another dimension; or cut what is too much."""
    before = value.shape[dimension]
    picks = torch.arange(size, device=value.device)
    picks = picks % max(before, 1) if dimension == 0 else picks.clamp(max=before - 1)
    return value.detach().index_select(dimension, picks).requires_grad_(value.requires_grad)


def resized(arguments: Arguments, follows: Follows, sizes: Mapping[str, int]) -> Arguments:
    """Return arguments whose tensors have the sizes that follow from those that are served."""
    args, kwargs = list(arguments[0]), dict(arguments[1])
    for key, dimensions in follows.items():
        holder: Any = args if isinstance(key, int) else kwargs
        for dimension, rule in dimensions.items():
            size = size_by(rule, sizes)
            if holder[key].shape[dimension] != size:
                holder[key] = sized(holder[key], dimension, size)
    return tuple(args), kwargs


def size_by(rule: tuple[int, Mapping[str, int]], sizes: Mapping[str, int]) -> int:
    constant, factors = rule
    return constant + sum(factor * sizes[name] for name, factor in factors.items())
