"""Text, documents, time series, several media in one text, and the state of earlier calls.

There is one rule per argument name, a case of `rule` here or of `media.rule`: an argument that
forty models take is one rule. What no rule can make is data in `data/overrides/`. Rules see no
class names.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, Rule
from compilewatch.worker.example_inputs.files import call
from compilewatch.worker.example_inputs.media import REQUIRED_RULES as REQUIRED_OF_MEDIA
from compilewatch.worker.example_inputs.media import features_mask
from compilewatch.worker.example_inputs.media import rule as rule_of_media

ID_LIMIT = 1000
"""Upper limit of ids, so that a reduced vocabulary still contains them."""

PAGE = 1000
"""Upper limit of page coordinates (LayoutLM)."""

SERIES = 64
"""Past values of a time series whose length is not configured."""

MEDIA: dict[str, tuple[str, ...]] = {
    "image": ("pixel_values", "image_pixel_values", "flattened_patches"),
    "video": ("pixel_values_videos",),
    "audio": ("input_features", "input_values", "audio_input_features", "audio_input_ids"),
}
"""The arguments that contain each medium."""

TYPES = {"image": 1, "video": 2, "audio": 3}
"""The values of `mm_token_type_ids`; text is 0."""

ID_UNDER_IMAGE = 3
"""Any id, because its embedding is replaced. `token_ids` never uses such a low id."""

FRAME_SIDE = 1024
"""Height and width of a frame, if it is not configured."""

PROMPT_TOKENS = 32
"""The length to which the processor of SAM 3 pads prompts."""

SIDE = 64
"""Height and width of an image, or length of a signal, for an argument without a rule."""


def value_of(ctx: Context, name: str, required: bool) -> Any:
    """Return what the rules make of an argument; None if they know nothing.

    If it is `required`, its documented shape and the layers of the module are looked at, too.
    """
    value = rule(ctx, name)
    if value is None and required:
        if name in REQUIRED_RULES:
            value = REQUIRED_RULES[name](ctx)
        if value is None and ctx.config is not None:
            value = required_argument(ctx, name)
    return value


def rule(ctx: Context, name: str) -> Any:
    """Return the value of an argument of this name, None without a rule or to keep its default."""
    takes = ctx.signature.parameters
    match name:
        case "input_ids":
            return _input_ids(ctx)
        case "attention_mask":  # ones over the tokens
            ids = ctx.value("input_ids")
            if ids is None:
                return None
            choices = "num_choices" in (ctx.signature.documented_shape("input_ids") or ())
            return torch.ones(ids.shape if choices else ids.shape[:2], dtype=torch.int64)
        case "decoder_input_ids":
            # As long as the encoder's text: heads that pool the decoder find the end of sequence by
            # its position in the encoder (Bart).
            ctx.uses("encoder_decoder")
            vocabulary = ctx.number("vocab_size", kind="decoder", default=ctx.vocabulary())
            special = documented_layout(ctx, name)
            if special is not None:
                return ctx.integers(name, 0, vocabulary, *special)
            return token_ids(ctx, name, ctx.sequence, vocabulary)
        case "qformer_input_ids":  # the instruction for the query transformer
            vocabulary = ctx.number("vocab_size", kind="qformer", default=ctx.vocabulary())
            return token_ids(ctx, name, ctx.sequence // 2, vocabulary)
        case "qformer_attention_mask":
            return torch.ones_like(ctx.value("qformer_input_ids"))
        case "bbox":
            # (batch, sequence, 4): left, top, right, bottom; integers if positions are embedded,
            # otherwise fractions of the page.
            ids = ctx.value("input_ids")
            if ids is None:
                return None
            ctx.uses("document")
            corners = ctx.integers(name, 0, PAGE, *ids.shape, 2, 2).sort(dim=-2).values
            boxes = corners.flatten(start_dim=-2)
            embedded = ctx.find("max_2d_position_embeddings") is not None
            if embedded and ctx.find("dim_bbox") is None:
                return boxes.clamp(max=ctx.number("max_2d_position_embeddings", default=PAGE) - 1)
            return boxes.to(ctx.dtype) / PAGE
        # --- several media in one text
        case "mm_token_type_ids":
            return _token_types(ctx)
        case "token_type_ids":  # which a model with placeholders asks for in training only
            asks = ctx.train and placeholder_id(ctx, "image") is not None
            return _token_types(ctx) if asks else None
        case "image_embeds_position_mask":  # positions are marked instead of ids (Kosmos)
            ids = ctx.value("input_ids") if _marks_images(ctx) else None
            return None if ids is None else (ids == ID_UNDER_IMAGE).long()
        # --- time series
        case "past_values":  # (batch, length), and channels if the model takes several
            ctx.uses("time_series")
            several = ctx.find("num_input_channels") is not None
            channels = ctx.number("num_input_channels", default=0)
            channels = channels or ctx.number("input_size", default=1)
            shape = (channels,) if channels > 1 or several else ()
            return ctx.normal(name, ctx.batch, _past_length(ctx), *shape)
        case "past_observed_mask":
            return torch.ones_like(ctx.value("past_values"))
        case "past_time_features" | "future_time_features":
            length = _past_length(ctx) if name.startswith("past") else _prediction(ctx)
            count = ctx.number("num_time_features", default=1)  # the configured ones, with the age
            return ctx.normal(name, ctx.batch, length, count)
        case "future_values":
            if "future_time_features" not in takes and not ctx.train:
                return None
            past = ctx.value("past_values")
            return ctx.normal(name, ctx.batch, _prediction(ctx), *past.shape[2:])
        case "static_real_features":
            count = ctx.number("num_static_real_features", default=0)
            return ctx.normal(name, ctx.batch, count) if count else None
        case "static_categorical_features":  # ids below each feature's cardinality
            if not ctx.number("num_static_categorical_features", default=0):
                return None
            cardinality = ctx.find("cardinality") or [1]
            columns = (
                ctx.integers(f"static{i}", 0, c, ctx.batch) for i, c in enumerate(cardinality)
            )
            return torch.stack(list(columns), dim=-1)
        # --- a video's session
        case "inference_session":
            return _inference_session(ctx)
        case "frame" if "inference_session" in takes:  # the next one of a session's video
            return ctx.normal(name, 1, 3, _frame_side(ctx), _frame_side(ctx))
    return rule_of_media(ctx, name)


REQUIRED_RULES: dict[str, Rule] = {
    "past_values_padding": lambda ctx: torch.zeros_like(ctx.value("past_values")),
    "freq": lambda ctx: torch.zeros(ctx.batch, 1, dtype=torch.int64),
    **REQUIRED_OF_MEDIA,
}
"""Rules for arguments that are only made if the forward requires them."""


# --- text -----------------------------------------------------------------------------------------


def token_ids(ctx: Context, name: str, length: int, vocabulary: int) -> torch.Tensor:
    """Return ids of ordinary words, shape (batch, length), that end with an end-of-sequence token.

    Special tokens are avoided elsewhere: some heads pool at the end of sequence and require the
    same number of them in each row (Bart, CLIP).
    """
    special: set[int] = set()
    for config in ctx.configs():
        for field, value in vars(config).items():
            if field.endswith(("token_id", "token_index", "token_ids")):
                values = value if isinstance(value, (list, tuple)) else [value]
                special.update(v for v in values if isinstance(v, int))
    words = [i for i in range(4, min(vocabulary, ID_LIMIT)) if i not in special] or [0]
    ids = torch.tensor(words)[ctx.integers(name, 0, len(words), ctx.batch, length)]
    end = ctx.find("eos_token_id", kind="text")
    if isinstance(end, (list, tuple)):
        end = end[0] if end else None
    if isinstance(end, int) and 0 <= end < vocabulary:
        ids[:, -1] = end
    return ids


def documented_layout(ctx: Context, name: str) -> tuple[int, ...] | None:
    """Return the documented sizes of ids that contain several codebooks or choices.

    Choices have a sequence each: DistilBert's texts are wrongly documented as (batch, choices).
    """
    dims = ctx.signature.documented_shape(name) or ()
    if not any("codebook" in dim or ("choices" in dim and len(dims) > 2) for dim in dims):
        return None
    return ctx.documented_sizes(name)


# --- several media in one text --------------------------------------------------------------------


def placeholder_id(ctx: Context, medium: str) -> int | None:
    """Return the id that represents one feature of the medium in `input_ids`."""
    token = ctx.tokens.get(medium)
    if token is None:
        token = ctx.find(f"{medium}_token_id", f"{medium}_token_index")
    return token if isinstance(token, int) else None


def _input_ids(ctx: Context) -> torch.Tensor:
    """Return (batch, sequence): ordinary words around one placeholder for each feature."""
    runs: list[tuple[int, int]] = []
    for medium, arguments in MEDIA.items():
        present = any(ctx.value(name) is not None for name in arguments)
        token = placeholder_id(ctx, medium)
        if present and token and (count := _count_features(ctx, medium)):
            runs.append((token, count))
    if _marks_images(ctx):
        runs.append((ID_UNDER_IMAGE, ctx.number("latent_query_num", default=64)))
    names = {name for arguments in MEDIA.values() for name in arguments}
    only_text = names & ctx.signature.parameters.keys() and not names & ctx.values.keys()
    ctx.uses("text_only" if only_text else "text")
    special = documented_layout(ctx, "input_ids")
    if special is not None:
        return ctx.integers("input_ids", 0, ctx.vocabulary(), *special)
    ctx.placeholders = sum(count for _, count in runs)
    ids = token_ids(ctx, "input_ids", ctx.sequence + ctx.placeholders, ctx.vocabulary())
    start = ctx.sequence // 4
    for token, count in runs:
        ids[:, start : start + count] = token
        start += count + 2
    if int(ids[0, -1]) in {token for token, _ in runs}:  # Emu3's defaults give both the same id
        ids[:, -1] = ids[:, 0]
    return ids


def _count_features(ctx: Context, medium: str) -> int:
    """Count the rows of features of one batch row's medium; 0 if the model has no method for it.

    The model's own tower determines them: its `get_image_features` and similar methods are called
    on real or fake tensors, like its parameters. For an audio encoder without such a method, the
    number of frames is computed by the encoder's own formula.
    """
    if medium in ctx.features:
        return ctx.features[medium]
    name = f"get_{medium}_features"
    owners = (ctx.module, *(getattr(ctx.module, part, None) for part in ("model", "encoder")))
    method = next((getattr(owner, name) for owner in owners if hasattr(owner, name)), None)
    if method is None:
        return _frames_left(ctx) if medium == "audio" else 0
    return _rows(call(method, _arguments(ctx, method), ctx.fake_mode)) // ctx.batch


def _frames_left(ctx: Context) -> int:
    """Return the frames after the audio encoder's strides and pooling, by its own formula."""
    mask = features_mask(ctx)
    for module in ctx.module.modules():
        formula = getattr(module, "_get_feat_extract_output_lengths", None)
        if formula is not None and mask is not None:
            lengths = formula(mask.sum(dim=-1))
            lengths = lengths[-1] if isinstance(lengths, tuple) else lengths
            return int(lengths[0])
    return 0


def _arguments(ctx: Context, method: Callable[..., Any]) -> dict[str, Any]:
    parameters = dict(inspect.signature(method).parameters)
    inner = getattr(getattr(ctx.module, "model", None), method.__name__, None)
    if inner is not None:  # heads pass arguments on to it by **kwargs
        parameters |= inspect.signature(inner).parameters
    values = {}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        value = ctx.value(name, required=required)
        if value is None and required:
            # The field of the configuration, or of a part of it, that is called like the argument.
            parts = (part for part in vars(ctx.config).values() if hasattr(part, "model_type"))
            fields = (getattr(part, name, None) for part in (ctx.config, *parts))
            value = next((field for field in fields if field is not None), None)
        if value is not None:
            values[name] = value
    return values


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


def _token_types(ctx: Context) -> torch.Tensor | None:
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


def _marks_images(ctx: Context) -> bool:
    if "image_embeds_position_mask" not in ctx.signature.parameters:
        return False
    return any(ctx.value(name) is not None for name in MEDIA["image"])


def _past_length(ctx: Context) -> int:
    """Return the context length plus the largest lag of the model."""
    length = ctx.number("context_length", "prediction_length", default=SERIES)
    return length + max(ctx.find("lags_sequence") or (0,))


def _prediction(ctx: Context) -> int:
    return ctx.number("prediction_length", default=8)


# --- state of earlier calls: another model's cache, a video's session -----------------------------


def filled_cache(ctx: Context, length: int) -> Any:
    """Return a cache that another model filled with `length` tokens.

    Its sizes are those of the keys that the model's own attention computes, one entry for each
    layer, since it concatenates its keys with those of the cache.
    """
    from transformers.cache_utils import DynamicCache

    attentions: dict[int, Any] = {
        submodule.layer_idx: submodule
        for submodule in ctx.module.modules()
        if isinstance(getattr(submodule, "layer_idx", None), int)
        and hasattr(submodule, "k_proj")
        and hasattr(submodule, "head_dim")
    }
    cache = DynamicCache()
    for layer, attention in sorted(attentions.items()):
        heads = attention.k_proj.out_features // attention.head_dim
        shape = (ctx.batch, heads, length, int(attention.head_dim))
        cache.update(
            ctx.normal(f"keys{layer}", *shape), ctx.normal(f"values{layer}", *shape), layer
        )
    return cache


def _inference_session(ctx: Context) -> Any:
    """Return a session of a video in which a person has pointed at one object, or given a prompt.

    The class of the session is the annotation of the argument. Each call of the model adds the
    frame that it is given, so that the first one detects the object and later ones track it.
    """
    kind: Any = ctx.signature.parameters["inference_session"].annotation
    if not isinstance(kind, type):
        return None
    ctx.uses("session")
    side = _frame_side(ctx)
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


def _frame_side(ctx: Context) -> int:
    return ctx.number("image_size", kind="image", default=FRAME_SIDE)


# --- arguments without a rule ---------------------------------------------------------------------


def required_argument(ctx: Context, name: str) -> Any:
    """Return a value for an argument without a default, None if its shape is unknown.

    Its documented shape has precedence. If the forward needs only one argument, or one remains, it
    gets what the first layer of the module takes.
    """
    sizes = ctx.documented_sizes(name)
    if sizes is not None:
        kind = ctx.signature.annotation(name) + ctx.signature.documented_type(name)
        if "LongTensor" in kind or "IntTensor" in kind:
            return ctx.integers(name, 0, 2, *sizes)
        if "BoolTensor" in kind or name.endswith("mask"):
            return torch.ones(sizes, dtype=torch.bool)
        return ctx.normal(name, *sizes)
    if len(ctx.signature.required) != 1:
        return None
    for layer in ctx.module.modules():
        if isinstance(layer, nn.Embedding):
            return ctx.integers(name, 0, layer.num_embeddings, ctx.batch, ctx.sequence)
        for layer_kind, shape in _FIRST_LAYERS:
            if isinstance(layer, layer_kind):
                return ctx.normal(name, ctx.batch, *shape(ctx, layer))
    return None


_FIRST_LAYERS: tuple[tuple[Any, Callable[[Context, Any], tuple[int, ...]]], ...] = (
    (nn.Conv3d, lambda _, layer: (layer.in_channels, 8, SIDE, SIDE)),
    (nn.Conv2d, lambda _, layer: (layer.in_channels, SIDE, SIDE)),
    (nn.Conv1d, lambda _, layer: (layer.in_channels, SIDE)),
    ((nn.LSTM, nn.GRU, nn.RNN), lambda ctx, layer: (ctx.sequence, layer.input_size)),
    (nn.Linear, lambda _, layer: (layer.in_features,)),
)
