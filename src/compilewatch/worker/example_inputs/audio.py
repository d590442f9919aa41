"""Audio: waveforms, mel features and masks over them."""

from __future__ import annotations

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, Rule

SAMPLES = 19_200
"""Samples of a waveform: about a second, and a multiple of the usual codec hops (320, 1920)."""

FRAMES = 128
MEL_BINS = 80
HOP = 160
"""Samples between two frames of features: ten milliseconds."""

FEATURES = (
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

WORDS = ("audio", "speech", "sound", "encoder")
"""Words in the path of a layer that processes audio, best first."""


def input_features(ctx: Context) -> torch.Tensor | None:
    """Return (batch, features, frames) if the audio part starts with a 1-D convolution over time,
    otherwise (batch, frames, features)."""
    if ctx.lacks("audio"):
        return None
    ctx.uses("audio")
    first = first_layer(ctx)
    configured = ctx.number(*FEATURES, kind="audio", default=MEL_BINS)
    length = _frames(ctx)
    if isinstance(first, nn.Linear):
        return ctx.normal("input_features", ctx.batch, length, first.in_features)
    if isinstance(first, nn.Conv1d) and not _transposes(ctx):
        return ctx.normal("input_features", ctx.batch, first.in_channels, length)
    return ctx.normal("input_features", ctx.batch, length, configured)


def input_values(ctx: Context) -> torch.Tensor | None:
    """Return a waveform (batch, samples).

    If so documented, (batch, channels, samples) or mel features (batch, frames, bins).
    """
    if ctx.lacks("audio"):
        return None
    ctx.uses("audio")
    documented = ctx.signature.documented_shape("input_values") or ()
    if len(documented) == 3 and "mel" in documented[-1]:
        length = ctx.number("max_length", kind="audio", default=FRAMES)
        bins = ctx.number(*FEATURES, kind="audio", default=MEL_BINS)
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
    mel_first = isinstance(first_layer(ctx), nn.Conv1d) and not _transposes(ctx)
    over_time = 2 if mel_first else 1
    return torch.ones(features.shape[0], features.shape[over_time], dtype=torch.int64)


def padding_mask(ctx: Context) -> torch.Tensor | None:
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


def first_layer(ctx: Context) -> nn.Module | None:
    """Return the convolution or projection that processes the frames first.

    This is a layer of the audio part that takes as many features as the configuration states, or
    else a two-dimensional convolution with one channel, or else such a layer anywhere. If the
    configuration states nothing, it is the layer of the audio part that was registered first.
    """
    configured = ctx.number(*FEATURES, kind="audio", default=0)
    groups = _audio_layers(ctx)
    for layer in groups[0]:
        if _channels(layer) == (1 if isinstance(layer, nn.Conv2d) else configured):
            return layer
    for layer in groups[-1]:
        if _channels(layer) == configured:
            return layer
    return groups[0][0] if groups[0] and not configured else None


def _audio_layers(ctx: Context) -> list[list[nn.Conv1d | nn.Conv2d | nn.Linear]]:
    """Return the layers of the audio part by their words, best first; all layers last."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Linear)
    layers = [(n, m) for n, m in ctx.module.named_modules() if isinstance(m, kinds)]
    groups = [[m for n, m in layers if w in n and "position" not in n] for w in WORDS]
    return [group for group in groups if group] + [[m for _, m in layers]]


def _channels(layer: nn.Conv1d | nn.Conv2d | nn.Linear) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _transposes(ctx: Context) -> bool:
    """Whether the model transposes the frames for its convolutions, by the settings of
    Speech2Text."""
    return ctx.find("input_feat_per_channel", kind="audio") is not None


def _frames(ctx: Context) -> int:
    """Return the number of frames: twice the encoder's positions if they are fixed (Whisper),
    complete windows if the encoder has windows (Qwen)."""
    window = ctx.number("n_window", kind="audio", default=0)
    if window:
        return 2 * window
    positions = ctx.number("max_source_positions", kind="audio", default=0)
    fixed = isinstance(first_layer(ctx), nn.Conv1d) and positions and not _transposes(ctx)
    return 2 * positions if fixed else FRAMES


RULES: dict[str, Rule] = {
    "input_features": input_features,
    "input_values": input_values,
    "input_features_mask": features_mask,
    "feature_attention_mask": features_mask,
}

REQUIRED_RULES: dict[str, Rule] = {"padding_mask": padding_mask}
