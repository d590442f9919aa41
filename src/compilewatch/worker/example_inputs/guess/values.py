"""What is guessed for a call: descriptions of tensors, nested as the forward takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.files import attributes_object

Where = tuple[Any, ...]
"""Where a tensor is in a call: the argument, then keys, positions or attributes."""

Call = Mapping[str, Any]
"""An argument -> its `Guess`, a container of them, a ready tensor, or another value."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """One tensor: `normal`, `integers` in [0, high), `true` (a mask), or `segments` (sorted ids).

    `lengths` are those of a full row and of a padded one, up to `high`.

    `why` says what it was derived from, for a person who reads the error of a wrong guess.
    `free` is whether its spatial sizes are a convention only, so that others may be tried.
    """

    shape: tuple[int, ...]
    fill: str = "normal"
    high: int = 2
    why: str = ""
    free: bool = True

    def resized(self, *shape: int) -> Guess:
        return replace(self, shape=shape)


@dataclass(frozen=True)
class Attributes:
    """An object with attributes, such as a graph of PyTorch Geometric."""

    values: Mapping[str, Any]


def leaves(value: Any, where: Where = ()) -> Iterator[tuple[Where, Guess]]:
    """Yield the tensors of a nested value with their places."""
    if isinstance(value, Guess):
        yield where, value
    elif isinstance(value, Attributes):
        yield from leaves(value.values, where)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*where, key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from leaves(inner, (*where, i))


def changed(value: Any, where: Where, new: Any) -> Any:
    """Return a nested value with another value in one place, which may be a new key."""
    if not where:
        return new
    first, *rest = where
    below = tuple(rest)
    if isinstance(value, Attributes):
        return Attributes(changed(value.values, where, new))
    if isinstance(value, Mapping):
        return {**value, first: changed(value.get(first), below, new)}
    elements = [changed(v, below, new) if i == first else v for i, v in enumerate(value)]
    return tuple(elements) if isinstance(value, tuple) else elements


def tensors(ctx: Context, name: str, value: Any) -> Any:
    """Return a nested value with real tensors, drawn with the seeds of their places."""
    if isinstance(value, Guess):
        return _tensor(ctx, name, value)
    if isinstance(value, Attributes):
        return attributes_object(
            {k: tensors(ctx, f"{name}.{k}", v) for k, v in value.values.items()}
        )
    if isinstance(value, Mapping):
        return {k: tensors(ctx, f"{name}.{k}", v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        elements = [tensors(ctx, f"{name}[{i}]", v) for i, v in enumerate(value)]
        return tuple(elements) if isinstance(value, tuple) else elements
    return value


def described(call: Call) -> tuple[str, ...]:
    """Say what was guessed, a line for each tensor; nothing for a call without one."""
    guessed = [
        f"{_named(where)} {list(g.shape)} {_KINDS[g.fill]}" + (f" ({g.why})" if g.why else "")
        for where, g in leaves(call)
    ]
    ready = [
        f"{name} {list(tensor.shape)} (a tensor of the model, or of a rule for its name)"
        for name, value in call.items()
        for tensor in tree_leaves(value)
        if isinstance(tensor, torch.Tensor)
    ]
    return (*guessed, *ready)


_KINDS = {
    "normal": "float",
    "integers": "int64",
    "true": "bool",
    "segments": "int64",
    "lengths": "int64",
    "ones": "float",
}


def _named(where: Where) -> str:
    return str(where[0]) + "".join(f"[{step!r}]" for step in where[1:])


def _tensor(ctx: Context, name: str, guess: Guess) -> torch.Tensor:
    if guess.fill == "integers":
        return ctx.integers(name, 0, guess.high, *guess.shape)
    if guess.fill == "true":
        return torch.ones(guess.shape, dtype=torch.bool)
    if guess.fill == "ones":
        return torch.ones(guess.shape, dtype=ctx.dtype)
    if guess.fill == "lengths":
        return torch.linspace(guess.high, guess.high // 2, guess.shape[0]).long()
    if guess.fill == "segments":
        count = guess.shape[0]
        return torch.arange(count) * guess.high // max(count, 1)
    return ctx.normal(name, *guess.shape)
