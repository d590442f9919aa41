"""Images, videos and sound: as pixels, patches and tiles; as waveforms and features."""

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

IMAGE_WORDS = ("vis", "image", "vit", "patch", "pixel")
"""Words in the path of a layer that processes images."""

GRIDS = ("image_grid_thw", "grid_thw")
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


def _pixel_values(ctx: Context) -> torch.Tensor | None:
    """Return (batch, channels, height, width), or the layout that other arguments imply."""
    if ctx.lacks("image"):
        return None
    ctx.uses("vision")
    parameters = ctx.signature.parameters
    first = image_layer(ctx)
    height, width = image_size(ctx)
    plain = (channels(ctx), height, width)
    if any(name in parameters for name in GRIDS):
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
        return ctx.normal("pixel_values", ctx.batch, _video_frames(ctx), *plain)
    return ctx.normal("pixel_values", ctx.batch, *plain)


def _flattened_patches(ctx: Context) -> torch.Tensor:
    """Return (batch, patches, 2 + values): row and column of each patch from 1, then its pixels."""
    ctx.uses("vision")
    places = _position_grid(ctx).flip(-1) + 1
    count = _patch_features(ctx, image_layer(ctx))
    pixels = ctx.normal("flattened_patches", *places.shape[:2], count)
    return torch.cat((places.to(pixels.dtype), pixels), dim=-1)


def _pixel_values_videos(ctx: Context) -> torch.Tensor | None:
    """Return (batch, frames, channels, height, width); None if the forward also takes images."""
    if ctx.lacks("video") or "pixel_values" in ctx.signature.parameters:
        return None
    ctx.uses("video")
    return ctx.normal(
        "pixel_values_videos", ctx.batch, _video_frames(ctx), channels(ctx), *image_size(ctx)
    )


def _grid_thw(ctx: Context) -> torch.Tensor | None:
    """(images, 3): patches over time, height and width of each image."""
    if ctx.value("pixel_values") is None and "hidden_states" not in ctx.signature.parameters:
        return None
    side = patches_per_side(ctx)
    return torch.tensor([[1, side, side]] * ctx.batch)


def _patch_counts(ctx: Context) -> torch.Tensor:
    """(images, 2): patches over height and width of each image."""
    side = patches_per_side(ctx)
    return torch.tensor([[side, side]] * ctx.batch)


def _position_grid(ctx: Context) -> torch.Tensor:
    """(batch, patches, 2): column and row of each patch, row by row."""
    side = torch.arange(patches_per_side(ctx))
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    grid = torch.stack((columns.flatten(), rows.flatten()), dim=-1)
    return grid.expand(ctx.batch, -1, -1).contiguous()


def _image_sizes(ctx: Context) -> torch.Tensor:
    """Return (images, 2): height and width; for models with tiles, one of their resolutions."""
    size = _resolution(ctx) or tuple(ctx.value("pixel_values").shape[-2:])
    return torch.tensor([list(size)] * ctx.batch)


def _pixel_attention_mask(ctx: Context) -> torch.Tensor | None:
    """Return ones over the patches (batch, patches) or tiles (batch, tiles); otherwise None."""
    pixels = ctx.value("pixel_values")
    if "spatial_shapes" in ctx.signature.parameters:
        return torch.ones(pixels.shape[:2], dtype=torch.int64)
    documented = ctx.signature.documented_shape("pixel_attention_mask") or ()
    if len(documented) == 2 or "pixel_attention_mask" in ctx.signature.required:
        return torch.ones(pixels.shape[:2], dtype=torch.bool)
    return None


def _aspect_ratio_mask(ctx: Context) -> torch.Tensor:
    """(batch, 1, tiles): the first tile is filled."""
    tiles = ctx.number("max_num_tiles", kind="image", default=1)
    mask = torch.zeros(ctx.batch, 1, tiles, dtype=torch.int64)
    mask[..., 0] = 1
    return mask


def _cross_attention_mask(ctx: Context) -> torch.Tensor | None:
    """(batch, sequence, 1, tiles): every token sees the first tile."""
    tiles, ids = ctx.value("aspect_ratio_mask"), ctx.value("input_ids")
    if tiles is None or ids is None:
        return None
    return tiles[:, None].expand(-1, ids.shape[1], -1, -1).contiguous()


def _vision_hidden_states(ctx: Context) -> torch.Tensor | None:
    """Packed patches, as vision towers with a grid name them."""
    if "grid_thw" not in ctx.signature.parameters:
        return None
    ctx.uses("vision")
    return _packed_patches(ctx, "hidden_states", image_layer(ctx))


def image_layer(ctx: Context) -> nn.Module | None:
    """Return the first convolution or projection of the vision part, which determines the input.

    A layer that is named after patches has precedence, because the order of registration varies.
    """
    kinds = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.Unfold)
    layers = [(n, m) for n, m in ctx.module.named_modules() if isinstance(m, kinds)]
    if "input_ids" in ctx.signature.parameters:
        layers = [(n, m) for n, m in layers if any(word in n for word in IMAGE_WORDS)]
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


def _video_frames(ctx: Context) -> int:
    return ctx.number("num_frames", "frames_per_clip", kind="video", default=8)


def _is_video(ctx: Context) -> bool:
    return (
        ctx.find("num_frames", kind="video") is not None
        and "pixel_values_videos" not in ctx.signature.parameters
    )


SAMPLES = 19_200
"""Samples of a waveform: about a second, and a multiple of the usual codec hops (320, 1920)."""

FRAMES = 128
MEL_BINS = 80
HOP = 160
"""Samples between two frames of features: ten milliseconds."""

FRAME_FEATURES = (
    "num_mel_bins",
    "n_mels",
    "num_mel_filters",
    "feature_projection_input_dim",
    "input_feat_per_channel",
    "feature_size",
    "num_chroma",
    "input_feat_size",
    "mel_dim",
    "n_mel_channels",
    "num_feats",
    "input_dim",
)
"""Settings with the number of features of a frame of audio."""

AUDIO_WORDS = ("audio", "speech", "sound", "encoder")
"""Words in the path of a layer that processes audio, best first."""


def _input_features(ctx: Context) -> torch.Tensor | None:
    """Return (batch, features, frames) if the audio part starts with a 1-D convolution over time,
    otherwise (batch, frames, features)."""
    if ctx.lacks("audio"):
        return None
    ctx.uses("audio")
    first = audio_layer(ctx)
    configured = ctx.number(*FRAME_FEATURES, kind="audio", default=MEL_BINS)
    length = _audio_frames(ctx)
    if isinstance(first, nn.Linear):
        return ctx.normal("input_features", ctx.batch, length, first.in_features)
    if isinstance(first, nn.Conv1d) and not _transposes(ctx):
        return ctx.normal("input_features", ctx.batch, first.in_channels, length)
    return ctx.normal("input_features", ctx.batch, length, configured)


def _input_values(ctx: Context) -> torch.Tensor | None:
    """Return a waveform (batch, samples).

    If so documented, (batch, channels, samples) or mel features (batch, frames, bins).
    """
    if ctx.lacks("audio"):
        return None
    ctx.uses("audio")
    documented = ctx.signature.documented_shape("input_values") or ()
    if len(documented) == 3 and "mel" in documented[-1]:
        length = ctx.number("max_length", kind="audio", default=FRAMES)
        bins = ctx.number(*FRAME_FEATURES, kind="audio", default=MEL_BINS)
        return ctx.normal("input_values", ctx.batch, length, bins)
    if len(documented) == 3:
        channels = ctx.number("audio_channels", "channels", "num_channels", kind="audio", default=1)
        return ctx.normal("input_values", ctx.batch, channels, SAMPLES)
    return ctx.normal("input_values", ctx.batch, SAMPLES)


def features_mask(ctx: Context) -> torch.Tensor | None:
    """Return ones over the frames of `input_features`, (batch, frames)."""
    features = ctx.value("input_features")
    if features is None:
        return None
    mel_first = isinstance(audio_layer(ctx), nn.Conv1d) and not _transposes(ctx)
    over_time = 2 if mel_first else 1
    return torch.ones(features.shape[0], features.shape[over_time], dtype=torch.int64)


def _padding_mask(ctx: Context) -> torch.Tensor | None:
    """Return ones over the samples of `input_values`, in its shape if so documented, or over the
    samples from which `input_features` were made."""
    values, features = ctx.value("input_values"), ctx.value("input_features")
    if values is None and features is not None:
        return torch.ones(features.shape[0], max(features.shape[1:]) * HOP, dtype=torch.bool)
    if values is None:
        return None
    dims = len(ctx.signature.documented_shape("padding_mask") or ())
    shape = values.shape if dims == values.dim() else (values.shape[0], values.shape[-1])
    return torch.ones(shape, dtype=torch.bool)


def audio_layer(ctx: Context) -> nn.Module | None:
    """Return the convolution or projection that processes the frames first.

    This is a layer of the audio part that takes as many features as the configuration states, or
    else a two-dimensional convolution with one channel, or else such a layer anywhere. If the
    configuration states nothing, it is the layer of the audio part that was registered first.
    """
    configured = ctx.number(*FRAME_FEATURES, kind="audio", default=0)
    groups = _audio_layers(ctx)
    for layer in groups[0]:
        if _layer_channels(layer) == (1 if isinstance(layer, nn.Conv2d) else configured):
            return layer
    for layer in groups[-1]:
        if _layer_channels(layer) == configured:
            return layer
    return groups[0][0] if groups[0] and not configured else None


def _audio_layers(ctx: Context) -> list[list[nn.Conv1d | nn.Conv2d | nn.Linear]]:
    """Return the layers of the audio part by their words, best first; all layers last."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Linear)
    layers = [(n, m) for n, m in ctx.module.named_modules() if isinstance(m, kinds)]
    groups = [[m for n, m in layers if w in n and "position" not in n] for w in AUDIO_WORDS]
    return [group for group in groups if group] + [[m for _, m in layers]]


def _layer_channels(layer: nn.Conv1d | nn.Conv2d | nn.Linear) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _transposes(ctx: Context) -> bool:
    """Whether the model transposes the frames for its convolutions, by the settings of
    Speech2Text."""
    return ctx.find("input_feat_per_channel", kind="audio") is not None


def _audio_frames(ctx: Context) -> int:
    """Return the number of frames: twice the encoder's positions if they are fixed (Whisper),
    complete windows if the encoder has windows (Qwen)."""
    window = ctx.number("n_window", kind="audio", default=0)
    if window:
        return 2 * window
    positions = ctx.number("max_source_positions", kind="audio", default=0)
    fixed = isinstance(audio_layer(ctx), nn.Conv1d) and positions and not _transposes(ctx)
    return 2 * positions if fixed else FRAMES


def _of_pixels(make: Rule) -> Rule:
    """Return a rule that makes nothing without pixels."""
    return lambda ctx: None if ctx.value("pixel_values") is None else make(ctx)


MEDIA_RULES: dict[str, Rule] = {
    "pixel_values": _pixel_values,
    "flattened_patches": _flattened_patches,
    "pixel_values_videos": _pixel_values_videos,
    "image_grid_thw": _grid_thw,
    "grid_thw": _grid_thw,
    "target_sizes": _of_pixels(_patch_counts),
    "spatial_shapes": _of_pixels(_patch_counts),
    "image_position_ids": _of_pixels(_position_grid),
    "pixel_position_ids": _of_pixels(_position_grid),
    "pixel_attention_mask": _of_pixels(_pixel_attention_mask),
    "aspect_ratio_ids": lambda ctx: torch.ones(ctx.batch, 1, dtype=torch.int64),
    "aspect_ratio_mask": _aspect_ratio_mask,
    "cross_attention_mask": _cross_attention_mask,
    "image_merge_sizes": lambda ctx: torch.ones(ctx.batch, dtype=torch.int64),
    "merge_sizes": lambda ctx: torch.ones(ctx.batch, dtype=torch.int64),
    "input_features": _input_features,
    "input_values": _input_values,
    "input_features_mask": features_mask,
    "feature_attention_mask": features_mask,
}

REQUIRED_MEDIA_RULES: dict[str, Rule] = {
    "hidden_states": _vision_hidden_states,
    "image_sizes": _of_pixels(_image_sizes),
    "padding_mask": _padding_mask,
}
