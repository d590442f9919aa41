"""Images, videos and sound: as pixels, patches and tiles; as waveforms and features."""

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


def rule(ctx: Context, name: str) -> Any:
    """Return the value of an argument of this name, None without a rule or to keep its default."""
    batch, side, pixels = ctx.batch, patches_per_side(ctx), None
    tiles = ctx.number("max_num_tiles", kind="image", default=1)
    match name:
        case "pixel_values":
            return _pixel_values(ctx)
        case "flattened_patches":
            # (batch, patches, 2 + values): row and column of each patch from 1, then its pixels.
            ctx.uses("vision")
            places = _position_grid(ctx).flip(-1) + 1
            count = _patch_features(ctx, image_layer(ctx))
            pixels = ctx.normal(name, *places.shape[:2], count)
            return torch.cat((places.to(pixels.dtype), pixels), dim=-1)
        case "pixel_values_videos":  # (batch, frames, channels, height, width), but beside images
            if ctx.lacks("video") or "pixel_values" in ctx.signature.parameters:
                return None
            ctx.uses("video")
            return ctx.normal(name, batch, _video_frames(ctx), channels(ctx), *image_size(ctx))
        case "image_grid_thw" | "grid_thw":  # patches over time, height and width of each image
            has_pixels = ctx.value("pixel_values") is not None
            takes = has_pixels or "hidden_states" in ctx.signature.parameters
            return torch.tensor([[1, side, side]] * batch) if takes else None
        case "image_merge_sizes" | "merge_sizes":
            return torch.ones(batch, dtype=torch.int64)
        case "aspect_ratio_ids":
            return torch.ones(batch, 1, dtype=torch.int64)
        case "aspect_ratio_mask":  # the first tile is filled
            mask = torch.zeros(batch, 1, tiles, dtype=torch.int64)
            mask[..., 0] = 1
            return mask
        case "cross_attention_mask":  # (batch, sequence, 1, tiles): every token sees the first tile
            filled, ids = ctx.value("aspect_ratio_mask"), ctx.value("input_ids")
            if filled is None or ids is None:
                return None
            return filled[:, None].expand(-1, ids.shape[1], -1, -1).contiguous()
        case "input_features":
            return _input_features(ctx)
        case "input_values":
            return _input_values(ctx)
        case "input_features_mask" | "feature_attention_mask":
            return features_mask(ctx)
        case _ if name not in OF_PIXELS or (pixels := ctx.value("pixel_values")) is None:
            return None
        case "target_sizes" | "spatial_shapes":  # patches over height and width of each image
            return torch.tensor([[side, side]] * batch)
        case "pixel_attention_mask":  # ones over the patches (batch, patches) or tiles
            if "spatial_shapes" in ctx.signature.parameters:
                return torch.ones(pixels.shape[:2], dtype=torch.int64)
            documented = ctx.signature.documented_shape(name) or ()
            if len(documented) == 2 or name in ctx.signature.required:
                return torch.ones(pixels.shape[:2], dtype=torch.bool)
            return None
    return _position_grid(ctx)


OF_PIXELS = frozenset({"target_sizes", "spatial_shapes", "pixel_attention_mask", *POSITIONS})
"""Arguments that are made beside pixels only."""


def _vision_hidden_states(ctx: Context) -> torch.Tensor | None:
    """Packed patches, as vision towers with a grid name them."""
    if "grid_thw" not in ctx.signature.parameters:
        return None
    ctx.uses("vision")
    return _packed_patches(ctx, "hidden_states", image_layer(ctx))


def _image_sizes(ctx: Context) -> torch.Tensor | None:
    """Return (images, 2): height and width; for models with tiles, one of their resolutions."""
    if (pixels := ctx.value("pixel_values")) is None:
        return None
    return torch.tensor([list(_resolution(ctx) or pixels.shape[-2:])] * ctx.batch)


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


REQUIRED_RULES: dict[str, Rule] = {
    "hidden_states": _vision_hidden_states,
    "image_sizes": _image_sizes,
    "padding_mask": _padding_mask,
}


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
        # Images are tiled over a list of resolutions: one complete view, and the tiles of one.
        resolution = _resolution(ctx)
        views = [(resolution[0] // height) * (resolution[1] // width) + 1] if resolution else []
        return ctx.normal("pixel_values", ctx.batch, *views, *plain)
    if isinstance(first, nn.Linear) and first.in_features == _patch_features(ctx, None):
        count = (height // patch_size(ctx)) * (width // patch_size(ctx))
        if len(ctx.signature.documented_shape("pixel_values") or ()) == 2:
            return ctx.normal("pixel_values", ctx.batch * count, first.in_features)
        return ctx.normal("pixel_values", ctx.batch, count, first.in_features)
    if "pixel_attention_mask" in parameters:
        return ctx.normal("pixel_values", ctx.batch, 1, *plain)
    frames = ctx.find("num_frames", kind="video")
    if frames is not None and "pixel_values_videos" not in parameters:
        ctx.strategies.pop("vision", None)
        ctx.uses("video")
        return ctx.normal("pixel_values", ctx.batch, _video_frames(ctx), *plain)
    return ctx.normal("pixel_values", ctx.batch, *plain)


def _position_grid(ctx: Context) -> torch.Tensor:
    """(batch, patches, 2): column and row of each patch, row by row."""
    side = torch.arange(patches_per_side(ctx))
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    grid = torch.stack((columns.flatten(), rows.flatten()), dim=-1)
    return grid.expand(ctx.batch, -1, -1).contiguous()


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


def _resolution(ctx: Context) -> tuple[int, int] | None:
    """Return the first of the resolutions for which the configuration tiles images."""
    resolutions = ctx.find("image_grid_pinpoints")
    return (int(resolutions[0][0]), int(resolutions[0][1])) if resolutions else None


def _video_frames(ctx: Context) -> int:
    return ctx.number("num_frames", "frames_per_clip", kind="video", default=8)


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
