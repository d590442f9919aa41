"""Arguments without a rule: made from the docstring, or from the first layer that takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.documented import documented_sizes

SIDE = 64
"""Height and width of an image, or length of a signal, if it is not configured."""


def required_argument(ctx: Context, name: str) -> Any:
    """Return a value for an argument without a default, None if its shape is unknown.

    Its documented shape has precedence. If the forward needs only one argument, or one remains, it
    gets what the first layer of the module takes.
    """
    sizes = documented_sizes(ctx, name)
    if sizes is not None:
        return _tensor(ctx, name, sizes)
    if len(ctx.signature.required) == 1:
        return _from_first_layer(ctx, name)
    return None


def _tensor(ctx: Context, name: str, sizes: tuple[int, ...]) -> torch.Tensor:
    kind = ctx.signature.annotation(name) + ctx.signature.documented_type(name)
    if "LongTensor" in kind or "IntTensor" in kind:
        return ctx.integers(name, 0, 2, *sizes)
    if "BoolTensor" in kind or name.endswith("mask"):
        return torch.ones(sizes, dtype=torch.bool)
    return ctx.normal(name, *sizes)


def _from_first_layer(ctx: Context, name: str) -> torch.Tensor | None:
    for layer in ctx.module.modules():
        if isinstance(layer, nn.Embedding):
            return ctx.integers(name, 0, layer.num_embeddings, ctx.batch, ctx.sequence)
        if isinstance(layer, nn.Conv3d):
            return ctx.normal(name, ctx.batch, layer.in_channels, 8, SIDE, SIDE)
        if isinstance(layer, nn.Conv2d):
            return ctx.normal(name, ctx.batch, layer.in_channels, SIDE, SIDE)
        if isinstance(layer, nn.Conv1d):
            return ctx.normal(name, ctx.batch, layer.in_channels, SIDE)
        if isinstance(layer, (nn.LSTM, nn.GRU, nn.RNN)):
            return ctx.normal(name, ctx.batch, ctx.sequence, layer.input_size)
        if isinstance(layer, nn.Linear):
            return ctx.normal(name, ctx.batch, layer.in_features)
    return None
