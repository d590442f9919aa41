"""Images: plain, as patches with or without a grid, in tiles."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, Rule

IMAGE_SIZE = 224
"""Height and width if the configuration states none."""

LARGE = 512
"""Height or width from which an image of variable size is reduced."""

POSITION = re.compile(r"position|pos_emb|(abs|rel|_)_?pos($|_)")

SIDE = 4
"""Patches along each side of an image of variable size (times the merge factor)."""

WORDS = ("vis", "image", "vit", "patch", "pixel")
"""Words in the path of a layer that processes images."""

GRIDS = ("image_grid_thw", "grid_thw", "image_grid_hw")
POSITIONS = ("image_position_ids", "pixel_position_ids")


def image_size(ctx: Context) -> tuple[int, int]:
    """Return the configured height and width, or 224 x 224; smaller if any size is possible.

    An image is only reduced if it is large and no positions are learned: the name of no parameter
    matches `POSITION`.
    """
    height, width = _configured_size(ctx)
    learned = any(POSITION.search(name) for name, _ in ctx.module.named_parameters())
    if learned or max(height, width) <= LARGE:
        return height, width
    side = 4 * patches_per_side(ctx) * patch_size(ctx)
    return min(height, side), min(width, side)


def _configured_size(ctx: Context) -> tuple[int, int]:
    size: Any = ctx.find("image_size", "img_size", "input_size", kind="image")
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, (list, tuple)) and len(size) >= 2 and size[0]:
        return int(size[-2]), int(size[-1])
    if isinstance(size, (list, tuple)) and size:
        size = size[0]
    side = int(size) if isinstance(size, (int, float)) and size > 0 else IMAGE_SIZE
    return side, side


def channels(ctx: Context) -> int:
    return ctx.number(
        "num_channels", "in_channels", "in_chans", "num_input_channels", kind="image", default=3
    )


def patch_size(ctx: Context) -> int:
    return ctx.number("patch_size", "spatial_patch_size", kind="image", default=14)


def patches_per_side(ctx: Context) -> int:
    """Return patches per side of an image of variable size, a multiple of the merge size."""
    merge = ctx.number(
        "spatial_merge_size",
        "merge_size",
        "merge_kernel_size",
        "pooling_kernel_size",
        "downsample_factor",
        kind="image",
        default=1,
    )
    return max(SIDE, 2 * merge)


def pixel_values(ctx: Context) -> torch.Tensor | None:
    """Return (batch, channels, height, width), or the layout that other arguments imply."""
    if ctx.lacks("image"):
        return None
    ctx.uses("vision")
    parameters = ctx.signature.parameters
    first = first_layer(ctx)
    height, width = image_size(ctx)
    plain = (channels(ctx), height, width)
    if any(name in parameters for name in GRIDS[:2]):
        return _packed_patches(ctx, "pixel_values", first)
    if "target_sizes" in parameters:  # one sequence of all patches of all images (NaViT)
        side, count = patch_size(ctx), ctx.batch * patches_per_side(ctx) ** 2
        return ctx.normal("pixel_values", 1, channels(ctx), side, count * side)
    if "spatial_shapes" in parameters or any(name in parameters for name in POSITIONS):
        count = patches_per_side(ctx) ** 2
        return ctx.normal("pixel_values", ctx.batch, count, _patch_features(ctx, first))
    if "aspect_ratio_ids" in parameters:
        tiles = ctx.number("max_num_tiles", kind="image", default=1)
        return ctx.normal("pixel_values", ctx.batch, 1, tiles, *plain)
    if "image_sizes" in parameters:
        return _tiles(ctx, plain)
    if isinstance(first, nn.Linear) and first.in_features == _patch_features(ctx, None):
        count = (height // patch_size(ctx)) * (width // patch_size(ctx))
        if len(ctx.signature.documented_shape("pixel_values") or ()) == 2:
            return ctx.normal("pixel_values", ctx.batch * count, first.in_features)
        return ctx.normal("pixel_values", ctx.batch, count, first.in_features)
    if "pixel_attention_mask" in parameters:
        return ctx.normal("pixel_values", ctx.batch, 1, *plain)
    if _is_video(ctx):
        ctx.strategies.pop("vision", None)
        ctx.uses("video")
        return ctx.normal("pixel_values", ctx.batch, _frames(ctx), *plain)
    return ctx.normal("pixel_values", ctx.batch, *plain)


def flattened_patches(ctx: Context) -> torch.Tensor:
    """Return (batch, patches, 2 + values): row and column of each patch from 1, then its pixels."""
    ctx.uses("vision")
    places = position_grid(ctx).flip(-1) + 1
    count = _patch_features(ctx, first_layer(ctx))
    pixels = ctx.normal("flattened_patches", *places.shape[:2], count)
    return torch.cat((places.to(pixels.dtype), pixels), dim=-1)


def pixel_values_videos(ctx: Context) -> torch.Tensor | None:
    """Return (batch, frames, channels, height, width); None if the forward also takes images."""
    if ctx.lacks("video") or "pixel_values" in ctx.signature.parameters:
        return None
    ctx.uses("video")
    return ctx.normal(
        "pixel_values_videos", ctx.batch, _frames(ctx), channels(ctx), *image_size(ctx)
    )


def grid_thw(ctx: Context) -> torch.Tensor | None:
    """(images, 3): patches over time, height and width of each image."""
    if ctx.value("pixel_values") is None and "hidden_states" not in ctx.signature.parameters:
        return None
    side = patches_per_side(ctx)
    return torch.tensor([[1, side, side]] * ctx.batch)


def target_sizes(ctx: Context) -> torch.Tensor | None:
    """(images, 2): patches over height and width of each image."""
    if ctx.value("pixel_values") is None:
        return None
    side = patches_per_side(ctx)
    return torch.tensor([[side, side]] * ctx.batch)


def position_ids_2d(ctx: Context) -> torch.Tensor | None:
    """(batch, patches, 2): column and row of each patch."""
    return None if ctx.value("pixel_values") is None else position_grid(ctx)


def position_grid(ctx: Context) -> torch.Tensor:
    """(batch, patches, 2): column and row of each patch, row by row."""
    side = torch.arange(patches_per_side(ctx))
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    grid = torch.stack((columns.flatten(), rows.flatten()), dim=-1)
    return grid.expand(ctx.batch, -1, -1).contiguous()


def image_sizes(ctx: Context) -> torch.Tensor | None:
    """Return (images, 2): height and width; for models with tiles, one of their resolutions."""
    if ctx.value("pixel_values") is None:
        return None
    size = _resolution(ctx) or tuple(ctx.value("pixel_values").shape[-2:])
    return torch.tensor([list(size)] * ctx.batch)


def pixel_attention_mask(ctx: Context) -> torch.Tensor | None:
    """Return ones over the patches (batch, patches) or tiles (batch, tiles); otherwise None."""
    pixels = ctx.value("pixel_values")
    if pixels is None:
        return None
    if "spatial_shapes" in ctx.signature.parameters:
        return torch.ones(pixels.shape[:2], dtype=torch.int64)
    documented = ctx.signature.documented_shape("pixel_attention_mask") or ()
    if len(documented) == 2 or "pixel_attention_mask" in ctx.signature.required:
        return torch.ones(pixels.shape[:2], dtype=torch.bool)
    return None


def aspect_ratio_ids(ctx: Context) -> torch.Tensor:
    """(batch, 1): the first aspect ratio, one tile."""
    return torch.ones(ctx.batch, 1, dtype=torch.int64)


def aspect_ratio_mask(ctx: Context) -> torch.Tensor:
    """(batch, 1, tiles): the first tile is filled."""
    mask = torch.zeros(
        ctx.batch, 1, ctx.number("max_num_tiles", kind="image", default=1), dtype=torch.int64
    )
    mask[..., 0] = 1
    return mask


def cross_attention_mask(ctx: Context) -> torch.Tensor | None:
    """(batch, sequence, 1, tiles): every token sees the first tile."""
    tiles, ids = ctx.value("aspect_ratio_mask"), ctx.value("input_ids")
    if tiles is None or ids is None:
        return None
    return tiles[:, None].expand(-1, ids.shape[1], -1, -1).contiguous()


def merge_sizes(ctx: Context) -> torch.Tensor:
    """(images,): patches merged along each side."""
    return torch.ones(ctx.batch, dtype=torch.int64)


def vision_hidden_states(ctx: Context) -> torch.Tensor | None:
    """Packed patches, as vision towers with a grid name them."""
    if "grid_thw" not in ctx.signature.parameters:
        return None
    ctx.uses("vision")
    return _packed_patches(ctx, "hidden_states", first_layer(ctx))


def first_layer(ctx: Context) -> nn.Module | None:
    """Return the first convolution or projection of the vision part, which determines the input.

    A layer that is named after patches has precedence, because the order of registration varies.
    """
    kinds = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.Unfold)
    layers = [(n, m) for n, m in ctx.module.named_modules() if isinstance(m, kinds)]
    if "input_ids" in ctx.signature.parameters:
        layers = [(n, m) for n, m in layers if any(word in n for word in WORDS)]
    embeddings = [m for n, m in layers if "patch" in n and "merge" not in n]
    return next(iter(embeddings or [m for _, m in layers]), None)


def _patch_features(ctx: Context, first: nn.Module | None) -> int:
    if isinstance(first, nn.Linear):
        return int(first.in_features)
    if isinstance(first, nn.Conv3d):
        return int(math.prod(first.kernel_size) * first.in_channels)
    temporal = ctx.number("temporal_patch_size", kind="image", default=1)
    return channels(ctx) * temporal * patch_size(ctx) ** 2


def _packed_patches(ctx: Context, name: str, first: nn.Module | None) -> torch.Tensor:
    """Return (patches of all images, values per patch), with height and width for convolutions."""
    count = ctx.batch * patches_per_side(ctx) ** 2
    if isinstance(first, nn.Conv2d):
        return ctx.normal(name, count, first.in_channels, *first.kernel_size)
    return ctx.normal(name, count, _patch_features(ctx, first))


def _tiles(ctx: Context, plain: tuple[int, int, int]) -> torch.Tensor:
    """Return (batch, tiles, channels, height, width) if images are tiled over a list of resolutions
    (one complete view and the tiles of one resolution), else (batch, channels, height, width)."""
    resolution = _resolution(ctx)
    if resolution is None:
        return ctx.normal("pixel_values", ctx.batch, *plain)
    tiles = (resolution[0] // plain[1]) * (resolution[1] // plain[2]) + 1
    return ctx.normal("pixel_values", ctx.batch, tiles, *plain)


def _resolution(ctx: Context) -> tuple[int, int] | None:
    """Return the first of the resolutions for which the configuration tiles images."""
    resolutions = ctx.find("image_grid_pinpoints")
    return (int(resolutions[0][0]), int(resolutions[0][1])) if resolutions else None


def _frames(ctx: Context) -> int:
    return ctx.number("num_frames", "frames_per_clip", kind="video", default=8)


def _is_video(ctx: Context) -> bool:
    return (
        ctx.find("num_frames", kind="video") is not None
        and "pixel_values_videos" not in ctx.signature.parameters
    )


RULES: dict[str, Rule] = {
    "pixel_values": pixel_values,
    "flattened_patches": flattened_patches,
    "pixel_values_videos": pixel_values_videos,
    "image_grid_thw": grid_thw,
    "grid_thw": grid_thw,
    "target_sizes": target_sizes,
    "spatial_shapes": target_sizes,
    "image_position_ids": position_ids_2d,
    "pixel_position_ids": position_ids_2d,
    "pixel_attention_mask": pixel_attention_mask,
    "aspect_ratio_ids": aspect_ratio_ids,
    "aspect_ratio_mask": aspect_ratio_mask,
    "cross_attention_mask": cross_attention_mask,
    "image_merge_sizes": merge_sizes,
    "merge_sizes": merge_sizes,
}

REQUIRED_RULES: dict[str, Rule] = {
    "hidden_states": vision_hidden_states,
    "image_sizes": image_sizes,
}
