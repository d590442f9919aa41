"""Audio: waveforms, mel features and masks over them."""

from __future__ import annotations

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, Rule

SAMPLES = 16_000
"""One second at the usual rate, and a multiple of the usual codec hops."""

FRAMES = 128
MEL_BINS = 80


def mel_bins(ctx: Context) -> int:
    """Features of one frame."""
    return ctx.number(
        "num_mel_bins",
        "n_mels",
        "feature_size",
        "num_mel_filters",
        "input_feat_per_channel",
        "feature_projection_input_dim",
        "input_dim",
        "input_feat_size",
        "mel_dim",
        "n_mel_channels",
        "num_feats",
        kind="audio",
        default=MEL_BINS,
    )


def frames(ctx: Context) -> int:
    """Frames of the features: twice the encoder's positions where they are fixed (Whisper)."""
    positions = ctx.number("max_source_positions", kind="audio", default=0)
    return 2 * positions if positions else FRAMES


def input_features(ctx: Context) -> torch.Tensor:
    """(batch, mel bins, frames) where the encoder begins with a 1-D convolution over time, else
    (batch, frames, mel bins)."""
    ctx.uses("audio")
    bins, length = mel_bins(ctx), frames(ctx)
    if _begins_with_convolution(ctx, bins):
        return ctx.normal("input_features", ctx.batch, bins, length)
    return ctx.normal("input_features", ctx.batch, length, bins)


def input_values(ctx: Context) -> torch.Tensor:
    """A waveform: (batch, samples), or (batch, channels, samples) where so documented."""
    ctx.uses("audio")
    documented = ctx.signature.documented_shape("input_values") or ()
    if len(documented) == 3 and "mel" in documented[-1]:
        length = ctx.number("max_length", kind="audio", default=FRAMES)
        return ctx.normal("input_values", ctx.batch, length, mel_bins(ctx))
    if len(documented) == 3:
        count = ctx.number("audio_channels", "channels", "num_channels", kind="audio", default=1)
        return ctx.normal("input_values", ctx.batch, count, SAMPLES)
    return ctx.normal("input_values", ctx.batch, SAMPLES)


def features_mask(ctx: Context) -> torch.Tensor | None:
    """Ones over the frames of `input_features`, (batch, frames)."""
    features = ctx.value("input_features")
    if features is None:
        return None
    bins = mel_bins(ctx)
    length = features.shape[2] if features.shape[1] == bins else features.shape[1]
    return torch.ones(features.shape[0], length, dtype=torch.int64)


def _begins_with_convolution(ctx: Context, bins: int) -> bool:
    if ctx.find("input_feat_per_channel") is not None:
        return False  # the convolutions of Speech2Text transpose first
    for layer in ctx.module.modules():
        if isinstance(layer, nn.Conv1d) and layer.in_channels == bins:
            return True
        if isinstance(layer, nn.Linear) and layer.in_features == bins:
            return False
    return False


RULES: dict[str, Rule] = {
    "input_features": input_features,
    "input_values": input_values,
    "input_features_mask": features_mask,
    "feature_attention_mask": features_mask,
}
