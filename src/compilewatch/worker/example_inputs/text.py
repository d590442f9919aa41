"""Token ids, masks and decoder inputs."""

from __future__ import annotations

from typing import Any

import torch

from compilewatch.worker.example_inputs.context import Context, Rule
from compilewatch.worker.example_inputs.documented import documented_sizes

ID_LIMIT = 1000
"""Upper limit of ids, so that a reduced vocabulary still contains them."""


def token_ids(ctx: Context, name: str, length: int, vocabulary: int) -> torch.Tensor:
    """Return ids of ordinary words, shape (batch, length), that end with an end-of-sequence token.

    Special tokens are avoided elsewhere: some heads pool at the end of sequence and require the
    same number of them in each row (Bart, CLIP).
    """
    special = _special_ids(ctx)
    words = [i for i in range(4, min(vocabulary, ID_LIMIT)) if i not in special] or [0]
    picks = ctx.integers(name, 0, len(words), ctx.batch, length)
    ids = torch.tensor(words)[picks]
    end = ctx.find("eos_token_id", kind="text")
    if isinstance(end, (list, tuple)):
        end = end[0] if end else None
    if isinstance(end, int) and 0 <= end < vocabulary:
        ids[:, -1] = end
    return ids


def attention_mask(ctx: Context) -> torch.Tensor | None:
    """Return ones over the tokens, shape (batch, sequence)."""
    ids = ctx.value("input_ids")
    if ids is None:
        return None
    dims = ctx.signature.documented_shape("input_ids") or ()
    shape = ids.shape if "num_choices" in dims else ids.shape[:2]
    return torch.ones(shape, dtype=torch.int64)


def decoder_input_ids(ctx: Context) -> torch.Tensor:
    """Return ids for the decoder, as long as the encoder's text.

    Heads that pool the decoder find the end of sequence by its position in the encoder (Bart).
    """
    ctx.uses("encoder_decoder")
    vocabulary = ctx.number("vocab_size", kind="decoder", default=ctx.vocabulary())
    special = documented_layout(ctx, "decoder_input_ids")
    if special is not None:
        return ctx.integers("decoder_input_ids", 0, vocabulary, *special)
    return token_ids(ctx, "decoder_input_ids", ctx.sequence, vocabulary)


def qformer_input_ids(ctx: Context) -> torch.Tensor:
    """Return ids of the instruction for the query transformer."""
    vocabulary = ctx.number("vocab_size", kind="qformer", default=ctx.vocabulary())
    return token_ids(ctx, "qformer_input_ids", ctx.sequence // 2, vocabulary)


def qformer_attention_mask(ctx: Context) -> torch.Tensor:
    return torch.ones_like(ctx.value("qformer_input_ids"))


def documented_layout(ctx: Context, name: str) -> tuple[int, ...] | None:
    """Return the documented sizes of ids that contain several codebooks or choices."""
    dims = ctx.signature.documented_shape(name) or ()
    if not any("codebook" in dim or "choices" in dim for dim in dims):
        return None
    return documented_sizes(ctx, name)


def _special_ids(ctx: Context) -> set[int]:
    ids: set[int] = set()
    for config in ctx.configs():
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                values: Any = value if isinstance(value, (list, tuple)) else [value]
                ids.update(v for v in values if isinstance(v, int))
    return ids


RULES: dict[str, Rule] = {
    "attention_mask": attention_mask,
    "decoder_input_ids": decoder_input_ids,
    "qformer_input_ids": qformer_input_ids,
    "qformer_attention_mask": qformer_attention_mask,
}
