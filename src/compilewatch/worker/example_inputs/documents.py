"""Document pages: boxes around words."""

from __future__ import annotations

import torch

from compilewatch.worker.example_inputs.context import Context, Rule

PAGE = 1000
"""Upper limit of page coordinates (LayoutLM)."""


def bbox(ctx: Context) -> torch.Tensor | None:
    """Return (batch, sequence, 4): left, top, right, bottom; integers if positions are embedded,
    otherwise fractions of the page."""
    ids = ctx.value("input_ids")
    if ids is None:
        return None
    ctx.uses("document")
    corners = ctx.integers("bbox", 0, PAGE, *ids.shape, 2, 2).sort(dim=-2).values
    boxes = corners.flatten(start_dim=-2)
    if ctx.find("max_2d_position_embeddings") is not None and ctx.find("dim_bbox") is None:
        limit = ctx.number("max_2d_position_embeddings", default=PAGE)
        return boxes.clamp(max=limit - 1)
    return boxes.to(ctx.dtype) / PAGE


RULES: dict[str, Rule] = {"bbox": bbox}
