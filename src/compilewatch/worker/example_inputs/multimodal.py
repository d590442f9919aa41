"""Token ids with a placeholder for each feature of an image, video or sound.

The model itself determines how many features a medium has: `get_image_features` and similar methods
are called with the arguments made so far, and the rows of the result are counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from compilewatch.worker.example_inputs import audio, text
from compilewatch.worker.example_inputs.context import Context, Rule
from compilewatch.worker.example_inputs.fakes import call

MEDIA: dict[str, tuple[str, ...]] = {
    "image": ("pixel_values", "image_pixel_values", "flattened_patches"),
    "video": ("pixel_values_videos",),
    "audio": ("input_features", "input_values", "audio_input_features", "audio_input_ids"),
}
"""The arguments that contain each medium."""

ID_UNDER_IMAGE = 3
"""Any id, because its embedding is replaced. `text.token_ids` never uses such a low id."""

TYPES = {"image": 1, "video": 2, "audio": 3}
"""The values of `mm_token_type_ids`; text is 0."""


def placeholder_id(ctx: Context, medium: str) -> int | None:
    """Return the id that represents one feature of the medium in `input_ids`."""
    token = ctx.tokens.get(medium)
    if token is None:
        token = ctx.find(f"{medium}_token_id", f"{medium}_token_index")
    return token if isinstance(token, int) else None


def input_ids(ctx: Context) -> torch.Tensor:
    """Return (batch, sequence): ordinary words around one placeholder for each feature."""
    runs: list[tuple[int, int]] = []
    for medium, arguments in MEDIA.items():
        present = any(ctx.value(name) is not None for name in arguments)
        token = placeholder_id(ctx, medium)
        if present and token:
            count = count_features(ctx, medium)
            if count:
                runs.append((token, count))
    if _marks_images(ctx):
        runs.append((ID_UNDER_IMAGE, ctx.number("latent_query_num", default=64)))
    ctx.uses("text_only" if _has_no_medium(ctx) else "text")
    special = text.documented_layout(ctx, "input_ids")
    if special is not None:
        return ctx.integers("input_ids", 0, ctx.vocabulary(), *special)
    total = ctx.sequence + sum(count for _, count in runs)
    ids = text.token_ids(ctx, "input_ids", total, ctx.vocabulary())
    start = ctx.sequence // 4
    for token, count in runs:
        ids[:, start : start + count] = token
        start += count + 2
    placeholders = {token for token, _ in runs}
    if int(ids[0, -1]) in placeholders:  # Emu3's defaults give both the same id
        ids[:, -1] = ids[:, 0]
    return ids


def count_features(ctx: Context, medium: str) -> int:
    """Count the rows of features of one batch row's medium; 0 if the model has no method for it.

    Runs the model's own tower on real or fake tensors, like its parameters. For an audio encoder
    without such a method, the number of frames is computed by the encoder's own formula.
    """
    if medium in ctx.features:
        return ctx.features[medium]
    method = _method(ctx, f"get_{medium}_features")
    if method is None:
        return _frames_left(ctx) if medium == "audio" else 0
    return _rows(call(method, _arguments(ctx, method), ctx.fake_mode)) // ctx.batch


def _method(ctx: Context, name: str) -> Callable[..., Any] | None:
    """Return a method of the module, of the model in a head, or of the encoder in a model."""
    owners = (ctx.module, getattr(ctx.module, "model", None), getattr(ctx.module, "encoder", None))
    return next((getattr(owner, name) for owner in owners if hasattr(owner, name)), None)


def _frames_left(ctx: Context) -> int:
    """Return the frames after the audio encoder's strides and pooling, by its own formula."""
    mask = audio.features_mask(ctx)
    for module in ctx.module.modules():
        formula = getattr(module, "_get_feat_extract_output_lengths", None)
        if formula is not None and mask is not None:
            lengths = formula(mask.sum(dim=-1))
            lengths = lengths[-1] if isinstance(lengths, tuple) else lengths
            return int(lengths[0])
    return 0


def token_types(ctx: Context) -> torch.Tensor | None:
    """0 for text, 1 for image, 2 for video and 3 for audio tokens, shape of `input_ids`."""
    ids = ctx.value("input_ids")
    if ids is None:
        return None
    types = torch.zeros_like(ids)
    for medium, value in TYPES.items():
        token = placeholder_id(ctx, medium)
        if token is not None:
            types[ids == token] = value
    return types


def training_types(ctx: Context) -> torch.Tensor | None:
    """Return the types of tokens where a model with placeholders asks for them in training only."""
    return token_types(ctx) if ctx.train and placeholder_id(ctx, "image") is not None else None


def image_positions(ctx: Context) -> torch.Tensor | None:
    """Return ones at image features, for models that mark positions instead of ids (Kosmos)."""
    ids = ctx.value("input_ids") if _marks_images(ctx) else None
    return None if ids is None else (ids == ID_UNDER_IMAGE).long()


def _has_no_medium(ctx: Context) -> bool:
    """Whether the forward takes other media and none of them could be made."""
    arguments = [name for names in MEDIA.values() for name in names]
    takes = any(name in ctx.signature.parameters for name in arguments)
    return takes and not any(name in ctx.values for name in arguments)


def _marks_images(ctx: Context) -> bool:
    if "image_embeds_position_mask" not in ctx.signature.parameters:
        return False
    return any(ctx.value(name) is not None for name in MEDIA["image"])


def _arguments(ctx: Context, method: Callable[..., Any]) -> dict[str, Any]:
    parameters = dict(inspect.signature(method).parameters)
    inner = getattr(getattr(ctx.module, "model", None), method.__name__, None)
    if inner is not None:  # heads pass arguments on to it by **kwargs
        parameters |= inspect.signature(inner).parameters
    values = {n: ctx.value(n, required=p.default is p.empty) for n, p in parameters.items()}
    for name, parameter in parameters.items():
        if values[name] is None and parameter.default is parameter.empty:
            values[name] = _configured(ctx.config, name)
    return {name: value for name, value in values.items() if value is not None}


def _configured(config: Any, name: str) -> Any:
    """The field of a configuration, or of a part of it, that an argument is called like."""
    parts = (value for value in vars(config).values() if hasattr(value, "model_type"))
    fields = (getattr(part, name, None) for part in (config, *parts))
    return next((value for value in fields if value is not None), None)


def _rows(features: Any) -> int:
    """Count all dimensions but the last, over all tensors of the projected features."""
    if hasattr(features, "last_hidden_state"):
        for name in ("pooler_output", "last_hidden_state"):
            if getattr(features, name, None) is not None:
                return _rows(getattr(features, name))
        features = features.deepstack_features[0][1]  # (layer, features) for each layer
    if isinstance(features, torch.Tensor):
        return int(features.numel() // features.shape[-1])
    return sum(_rows(part) for part in features)


RULES: dict[str, Rule] = {
    "input_ids": input_ids,
    "mm_token_type_ids": token_types,
    "token_type_ids": training_types,
    "image_embeds_position_mask": image_positions,
}
