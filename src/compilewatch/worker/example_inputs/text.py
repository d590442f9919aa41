"""Token ids, masks and decoder inputs."""

from __future__ import annotations

from typing import Any

import torch

from compilewatch.worker.example_inputs.context import SEQUENCE, Context, Rule

ID_LIMIT = 1000
"""Ids stay below this, so that a reduced vocabulary still holds them."""


def token_ids(ctx: Context, name: str, length: int, vocabulary: int) -> torch.Tensor:
    """Ids of ordinary words, shape (batch, length), ending with one end-of-sequence token.

    Special tokens are avoided elsewhere: some heads pool at the end of sequence, and demand as
    many of them in each row (Bart, CLIP).
    """
    special = _special_ids(ctx)
    words = [i for i in range(min(vocabulary, ID_LIMIT)) if i not in special] or [0]
    picks = ctx.integers(name, 0, len(words), ctx.batch, length)
    ids = torch.tensor(words)[picks]
    end = ctx.find("eos_token_id", kind="text")
    if isinstance(end, (list, tuple)):
        end = end[0] if end else None
    if isinstance(end, int) and 0 <= end < vocabulary:
        ids[:, -1] = end
    return ids


def input_ids(ctx: Context) -> torch.Tensor:
    ctx.uses("text")
    return token_ids(ctx, "input_ids", SEQUENCE, ctx.vocabulary())


def attention_mask(ctx: Context) -> torch.Tensor | None:
    """Ones over the tokens, shape (batch, sequence)."""
    ids = ctx.value("input_ids")
    return None if ids is None else torch.ones(ids.shape[:2], dtype=torch.int64)


def decoder_input_ids(ctx: Context) -> torch.Tensor:
    """Ids for the decoder, half as long as the encoder's text."""
    ctx.uses("encoder_decoder")
    vocabulary = ctx.number("vocab_size", kind="text", default=ctx.vocabulary())
    return token_ids(ctx, "decoder_input_ids", SEQUENCE // 2, vocabulary)


def _special_ids(ctx: Context) -> set[int]:
    found: set[int] = set()
    for config in ctx.configs():
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                values: Any = value if isinstance(value, (list, tuple)) else [value]
                found.update(v for v in values if isinstance(v, int))
    return found


RULES: dict[str, Rule] = {
    "input_ids": input_ids,
    "attention_mask": attention_mask,
    "decoder_input_ids": decoder_input_ids,
}
