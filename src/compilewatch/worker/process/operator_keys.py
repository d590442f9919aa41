"""Lets all fake modes of a process share what they computed for sizes that are numbers.

A fake mode looks an operator up by its inputs, and also by the settings of its shape environment
(`FakeTensorMode._cache_key`, torch 2.9 to 2.15). So the eager call, which has none, the capture and
`fullgraph=True` computed every operator anew, a twentieth of a sweep. Where a size is a symbol, a
result is kept in that symbol's shape environment, whose settings never change. Elsewhere they do
not matter: torch does not keep a result that depends on data or has a symbol that its inputs lack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode


def share_operators() -> None:
    """Leave the settings of the shape environment out of the keys of operators."""
    original = getattr(FakeTensorMode, "_cache_key", None)
    if original is None:  # another torch
        return

    def cache_key(
        self: FakeTensorMode,
        state: Any,
        func: Any,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Any:
        if not isinstance(func, OpOverload):
            return original(self, state, func, args, kwargs)
        shape_env, self.shape_env = self.shape_env, None
        try:
            return original(self, state, func, args, kwargs)
        finally:
            self.shape_env = shape_env

    FakeTensorMode._cache_key = cache_key


def describe_tensors_at_once() -> None:
    """Put what a key says of a tensor into it as one tuple, instead of field by field.

    A key has the same fields as before. Tensors with symbolic sizes are described by torch.
    """
    metadata = getattr(fake_tensor, "TensorMetadata", None)
    original = getattr(metadata, "_flatten_into", None)
    if metadata is None or original is None:  # another torch
        return
    fields = attrgetter(*(field.name for field in dataclasses.fields(metadata)))

    def flatten_into(self: Any, result: list[object], mode: FakeTensorMode, state: Any) -> None:
        sizes = (*self.shape, *self.stride, self.storage_offset, self.storage_bytes)
        if all(type(size) is int for size in sizes):
            result.append(fields(self))
        else:
            original(self, result, mode, state)

    metadata._flatten_into = flatten_into
