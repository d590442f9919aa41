"""Sizes from a docstring: `(batch_size * num_codebooks, sequence_length)` -> (8, 32).

Transformers documents the shape of each argument. Much of this text is shared and not correct for
every model, so it is only used if the argument has no rule, and for dimensions that only few
arguments have (codebooks).
"""

from __future__ import annotations

import re

from compilewatch.worker.example_inputs.context import Context


def documented_sizes(ctx: Context, name: str) -> tuple[int, ...] | None:
    """Return the sizes of an argument, None if a documented dimension is unknown."""
    dims = ctx.signature.documented_shape(name)
    if dims is None:
        return None
    sizes = [_size(ctx, dim) for dim in dims]
    return None if any(s is None for s in sizes) else tuple(s for s in sizes if s is not None)


def _size(ctx: Context, dim: str) -> int | None:
    product = 1
    for factor in re.split(r"\s*[*x]\s+|\s*\*\s*", dim):
        size = _factor(ctx, factor.strip().removeprefix("config."))
        if size is None:
            return None
        product *= size
    return product


def _factor(ctx: Context, word: str) -> int | None:
    if word.isdigit():
        return int(word)
    if word in ("batch_size", "batch", "bs", "bsz"):
        return ctx.batch
    if word.endswith(("sequence_length", "seq_length", "seq_len", "seqlen", "input_ids_length")):
        return ctx.sequence
    if word in ("frames", "num_frames", "time_steps"):
        return 8
    if word == "num_choices":
        return 2
    return ctx.number(word, default=0) or None
