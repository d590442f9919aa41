"""Arguments that hold the state of earlier calls: another model's cache, a video's session."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, Rule

FRAME_SIDE = 1024
"""Height and width of a frame, if it is not configured."""

PROMPT_TOKENS = 32
"""The length to which the processor of SAM 3 pads prompts."""


def filled_cache(ctx: Context, length: int) -> Any:
    """Return a cache that another model filled with `length` tokens.

    Its sizes are those of the keys that the model's own attention computes, one entry for each
    layer, since it concatenates its keys with those of the cache.
    """
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    for layer, attention in sorted(_attentions(ctx.module).items()):
        heads = attention.k_proj.out_features // attention.head_dim
        shape = (ctx.batch, heads, length, int(attention.head_dim))
        cache.update(
            ctx.normal(f"keys{layer}", *shape), ctx.normal(f"values{layer}", *shape), layer
        )
    return cache


def _attentions(module: nn.Module) -> dict[int, Any]:
    attentions: dict[int, Any] = {}
    for submodule in module.modules():
        index = getattr(submodule, "layer_idx", None)
        if (
            isinstance(index, int)
            and hasattr(submodule, "k_proj")
            and hasattr(submodule, "head_dim")
        ):
            attentions[index] = submodule
    return attentions


def inference_session(ctx: Context) -> Any:
    """Return a session of a video in which a person has pointed at one object, or given a prompt.

    The class of the session is the annotation of the argument. Each call of the model adds the
    frame that it is given, so that the first one detects the object and later ones track it.
    """
    kind: Any = ctx.signature.parameters["inference_session"].annotation
    if not isinstance(kind, type):
        return None
    ctx.uses("session")
    side = _side(ctx)
    session: Any = kind(video_height=side, video_width=side, dtype=ctx.dtype)
    if hasattr(session, "add_prompt"):
        prompt = session.add_prompt("a cat")
        ids = ctx.integers("prompt", 4, 1000, 1, PROMPT_TOKENS)
        session.prompt_input_ids[prompt] = ids
        session.prompt_attention_masks[prompt] = torch.ones_like(ids)
        return session
    index = session.obj_id_to_idx(1)
    coordinates = torch.full((1, 1, 1, 2), side / 2, dtype=ctx.dtype)
    labels = torch.ones((1, 1, 1), dtype=torch.int32)
    session.add_point_inputs(index, 0, {"point_coords": coordinates, "point_labels": labels})
    session.obj_with_new_inputs = [1]
    return session


def frame(ctx: Context) -> torch.Tensor | None:
    """Return the next frame of a session's video, shape (1, 3, side, side)."""
    if "inference_session" not in ctx.signature.parameters:
        return None
    side = _side(ctx)
    return ctx.normal("frame", 1, 3, side, side)


def _side(ctx: Context) -> int:
    return ctx.number("image_size", kind="image", default=FRAME_SIDE)


RULES: dict[str, Rule] = {"inference_session": inference_session, "frame": frame}
