"""Makes a built module shallow: of blocks in sequence that are alike, one of each kind stays.

Libraries that build models by name have no field for the depth. But a stage is an `nn.Sequential`
of blocks, and blocks that have the same classes, settings and shapes of weights do the same.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn

MIN_BLOCKS = 2
"""A stage keeps its first two blocks of a kind, as the depth of a configuration does."""

_SIMPLE = (bool, int, str, type(None))


def drop_repeated(module: nn.Module) -> nn.Module:
    """Keep, in every `nn.Sequential` of the module, the first blocks of each kind, in place."""
    for submodule in list(module.modules()):
        if type(submodule) is nn.Sequential:
            _drop(submodule)
    return module


def _drop(sequence: nn.Sequential) -> None:
    seen: dict[Hashable, int] = {}
    kept: dict[str, nn.Module] = {}
    for name, block in sequence.named_children():
        kind = _kind(block) if _can_be_left_out(block) else None
        if kind is not None:
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > MIN_BLOCKS:
                continue
        kept[name] = block
    # Under their new positions, since code may index a sequence.
    digits = all(name.isdigit() for name in kept)
    sequence._modules = {str(i) if digits else n: b for i, (n, b) in enumerate(kept.items())}


def _can_be_left_out(block: nn.Module) -> bool:
    """Whether a block may keep the shape of what it gets: it has parts and never downsamples."""
    if next(block.children(), None) is None:
        return False
    return not any(
        _largest(getattr(part, name, 1)) > 1
        for part in block.modules()
        for name in ("stride", "scale_factor", "upscale_factor")
    )


def _largest(value: Any) -> float:
    numbers = value if isinstance(value, (list, tuple)) else (value,)
    return max((n for n in numbers if isinstance(n, (int, float))), default=1)


def _kind(block: nn.Module) -> Hashable:
    """What distinguishes a block: of each part the class, the settings and the shapes of weights.

    Rates (`drop_prob`) are numbers with a point and do not make a kind.
    """
    return tuple(
        (
            name,
            type(part),
            tuple((key, value) for key, value in vars(part).items() if _is_setting(value)),
            tuple((key, tuple(p.shape)) for key, p in part._parameters.items() if p is not None),
            tuple((key, tuple(b.shape)) for key, b in part._buffers.items() if b is not None),
        )
        for name, part in block.named_modules()
    )


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(element, _SIMPLE) for element in value)
    return isinstance(value, _SIMPLE)
