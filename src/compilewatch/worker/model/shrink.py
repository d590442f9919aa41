"""Makes a model small: fewer layers, and in the real tier also less width.

The *depth* of a configuration is reduced to one layer of each kind. The kind of a layer is
everything that the configuration says about it: its entry in per-layer lists (`layer_types`),
whether index sets contain it (`cross_attention_layers`), its side of a threshold
(`first_k_dense_replace`), its phase in a period (`attn_layer_period`). The first layer of each kind
is kept, and every field that counts or names layers is rewritten accordingly. A model that is built
by name has no such fields: of its blocks that are alike, the first ones stay.

The *width* is divided by one factor, the smallest that fits the parameter budget, which keeps every
equality and ratio between sub-configurations. The sizes of a head, a patch, a state and the
vocabulary do not change, nor do image sizes and token ids.

The rules are about fields, never about models; everything else is an override.
"""

import copy
import importlib
import importlib.util
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard

from torch import nn

from compilewatch.worker.model import replaced

MIN_LAYERS = 2
"""A stack keeps at least its first and last layer, which models treat specially."""

DEPTH = re.compile(
    r"(\w+_)?(num_hidden_layers|num_layers|n_layers?|depth|num_blocks)"
    r"|num_(encoder|decoder|spatial|temporal|global|attention)_layers"
    r"|(\w+_)?(encoder|decoder)_layers|([lrx]_)?layers"
    r"|num_layers_per_stack|num_self_attends_per_block|num_mel_attn_blocks"
    r"|(\w+_)?num_(flows|wavenet_layers)|group_detr"
)
"""Fields with the number of layers of a stack, or of copies of a part."""

STAGE_DEPTHS = (
    *("depths", "depth", "block_sizes", "n_attn_blocks"),
    *("stage_num_blocks", "stage_numb_of_layers"),
)
"""Lists with the number of layers of each stage of a staged model."""

BLOCK_SIZES = re.compile(r"resblock_(dilation|kernel|stride)_sizes")
"""Lists with one entry per block, for blocks that only differ in sizes."""

STAGES_OF_LAYERS = "block_configs"
"""A list of stages; each is a list of complete layer descriptions. Equal layers are one kind."""

PER_LAYER = re.compile(
    r"\w*layers?_\w+|\w*block_types?|\w+_types|\w+_layers|\w+_per_layer|\w+_pattern"
    r"|attention_window|intermediate_size|num_attention_heads|num_key_value_heads|head_dim"
)
"""Lists with one entry per layer if they are as long as the stack is deep."""

INDEX_SET = re.compile(
    r"cross_attention_layers|deepstack_visual_indexes|full_attn_idxs|fullatt_block_indexes"
    r"|global_attn_indexes|hybrid_layer_ids|insert_layer_id|attn_layer_indices|look_ahead_layers"
    r"|look_backward_layers|merge_index|mlp_only_layers|moe_layers|no_rope_layer_ids"
    r"|residual_block_indices|rope_scaling_layers|window_block_indexes|window_block_indices"
)
"""Indices of layers that differ from the others."""

LAYER_TAPS = re.compile(r"backbone_out_indices|intermediate_hidden_state_indices")
"""Indices of layers whose output is used. They stay distinct: their number affects a shape."""

HIDDEN_STATE_TAPS = re.compile(r"intermediate_layers_indices|_?out_indices")
"""The same as indices into `hidden_states`, where 0 is the embedding and i the output of i-1."""

FIRST_COUNT = re.compile(
    r"first_k_dense_replace|max_window_layers|moe_layer_start_index|num_dense_layers"
    r"|num_first_full_attention_layers|num_hash_layers"
)
"""How many of the first layers differ from the others."""

LAST_COUNT = re.compile(
    r"num_kv_shared_layers|num_last_full_attention_layers|num_timestamp_prediction_layers"
)
"""How many of the last layers differ from the others."""

PERIODS: dict[str, tuple[str, ...]] = {
    "attn_layer_period": ("layer_types", "layers_block_type"),
    "cross_attention_frequency": (),
    "cross_layer_interval": (),
    "decoder_sparse_step": ("mlp_layer_types",),
    "encoder_sparse_step": (),
    "expert_layer_period": ("mlp_layer_types",),
    "full_attention_interval": ("layer_types",),
    "global_attn_every_n_layers": ("layer_types",),
    "interleave_moe_layer_step": ("moe_layers",),
    "layer_group_size": ("layer_types",),
    "moe_layer_freq": ("mlp_layer_types",),
    "moe_layer_interval": (),
    "n_layers_per_attn_res_block": (),
    "sliding_window_pattern": ("layer_types",),
}
"""Period of a kind, with the per-layer lists that models read instead if they exist."""

PATTERN = "block_types"
"""A list of kinds that is repeated up to the depth of the stack."""

VISION_TAPS = re.compile(
    r"extract_layers|feature_layer|intermediate_hook_ids|vision_feature_layers?|vision_layer"
    r"|vit_layers"
)
"""Indices of the vision stack's layers whose output is used, in a parent or sibling."""

_VISION = re.compile(r"vis|image|vit|backbone|patch_model")

Rewritten = Callable[[Sequence[int]], Any]
"""Returns the value of a field for the layers that are kept."""


def sub_configs(config: Any, _seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a configuration and all sub-configurations once, the deepest first."""
    seen = set() if _seen is None else _seen
    if id(config) in seen:
        return
    seen.add(id(config))
    for value in list(vars(config).values()):
        if is_config(value):
            yield from sub_configs(value, seen)
    yield config


def is_config(value: Any) -> bool:
    """Whether a value is a configuration of Transformers."""
    return hasattr(value, "model_type") and hasattr(value, "to_dict")


def reduce_depth(config: Any) -> None:
    """Keep one layer of each kind, in place, also in sub-configurations.

    Layers keep their order. Only fields that depend on the number of layers are rewritten.
    """
    for owner in sub_configs(config):
        for name, value in list(vars(owner).items()):
            _reduce_stages(owner, name, value)
        _reduce_stacks(owner)
    _clamp_vision_taps(config)


def _reduce_stages(config: Any, name: str, value: Any) -> None:
    if name in STAGE_DEPTHS and _is_ints(value):
        # The first layer of a stage is of one kind (it downsamples) and the following ones of
        # another. This pair occurs in every stage: the first that has it keeps it.
        deep = next((i for i, depth in enumerate(value) if depth >= MIN_LAYERS), None)
        kept = (min(d, MIN_LAYERS if i == deep else 1) for i, d in enumerate(value))
        setattr(config, name, type(value)(kept))
    elif BLOCK_SIZES.fullmatch(name) and isinstance(value, list | tuple):
        setattr(config, name, value[:MIN_LAYERS])
    elif name == STAGES_OF_LAYERS and all(isinstance(stage, list | tuple) for stage in value):
        setattr(config, name, [_distinct(stage) for stage in value])


def _distinct(layers: Sequence[Any]) -> list[Any]:
    return [layer for i, layer in enumerate(layers) if layer not in layers[:i]]


def _reduce_stacks(config: Any) -> None:
    fields = vars(config)
    stages = next((fields[n] for n in STAGE_DEPTHS if isinstance(fields.get(n), list | tuple)), ())
    depths = {
        name: value
        for name, value in fields.items()
        if DEPTH.fullmatch(name)
        and _is_int(value)
        and value > MIN_LAYERS
        # A staged model repeats its number of stages, or of all blocks, in these fields.
        and not (stages and value in (len(stages), sum(stages)))
    }
    # Per-layer settings (Transformers' `per_layer_config`).
    spec = fields.get("_heterogeneity_spec")
    settings = (
        {int(k): dict(v) for k, v in spec.per_layer_overrides.items()} if spec is not None else {}
    )
    main = next((depth for name, depth in depths.items() if not name.startswith("num_global")), 0)
    for depth in dict.fromkeys(depths.values()):
        about = {
            name: field
            for name, value in fields.items()
            if (field := _about_layers(name, value, depth, is_main=depth == main)) is not None
        }
        traits = [trait for trait, _ in about.values() if trait is not None]
        if depth == main:
            # Sizes do not make a kind.
            kinds: dict[int, Hashable] = {
                layer: tuple(
                    (k, bool(v) if _is_int(v) else repr(v)) for k, v in sorted(own.items())
                )
                for layer, own in settings.items()
            }
            traits.append(kinds.get)
        layers = _kept_layers(fields, depth, traits, is_main=depth == main)
        for name, (_, rewritten) in about.items():
            setattr(config, name, rewritten(layers))
        for name in [name for name, value in depths.items() if value == depth]:
            setattr(config, name, len(layers))
        if depth != main:
            continue
        _rename_stages(config, depth, layers)
        if spec is not None:
            config.per_layer_config = {
                new: settings[old] for new, old in enumerate(layers) if old in settings
            }


def _about_layers(
    name: str, value: Any, depth: int, *, is_main: bool
) -> tuple[Callable[[int], Hashable] | None, Rewritten] | None:
    """What a field says about each layer of a stack, and its value for those that are kept.

    None for a field about something else. Only the main stack of a configuration has indices and
    counts.
    """
    is_list = isinstance(value, list | tuple) and not INDEX_SET.fullmatch(name)
    if is_list and len(value) == depth and PER_LAYER.fullmatch(name):
        # Of numbers, only whether they are zero makes a kind.
        return (
            lambda layer: value[layer] if isinstance(value[layer], str) else bool(value[layer]),
            lambda layers: type(value)(value[layer] for layer in layers),
        )
    if not is_main:
        return None
    if _is_int(value):
        if INDEX_SET.fullmatch(name) and 0 <= value < depth:
            return lambda layer: layer == value, lambda layers: _position(value, layers)
        if FIRST_COUNT.fullmatch(name):
            return (
                lambda layer: layer < value,
                lambda layers: sum(layer < value for layer in layers),
            )
        if LAST_COUNT.fullmatch(name):
            first = depth - value
            return (
                lambda layer: layer < first,
                lambda layers: sum(layer >= first for layer in layers),
            )
        if name == "moe_layer_end_index":
            return None, lambda layers: min(value, len(layers) - 1)
    elif INDEX_SET.fullmatch(name) and _is_ints(value) and value and max(value) < depth:
        return (
            set(value).__contains__,
            lambda layers: type(value)(_position(i, layers) for i in value if i in layers),
        )
    elif _is_taps(name, value) and not name.startswith("_"):
        return None, lambda layers: type(value)(_position(i, layers) for i in value)
    return None


def _is_taps(name: str, value: Any) -> bool:
    taps = LAYER_TAPS.fullmatch(name) or HIDDEN_STATE_TAPS.fullmatch(name)
    return taps is not None and _is_ints(value)


def _position(old: int, layers: Sequence[int]) -> int:
    """The new index of an old layer, or of the next kept one; negative ones stay so."""
    return max(old, -len(layers)) if old < 0 else bisect_left(layers, old)


def _kept_layers(
    fields: dict[str, Any],
    depth: int,
    traits: Sequence[Callable[[int], Hashable]],
    *,
    is_main: bool,
) -> list[int]:
    """Return the first layer of each kind, and the earliest others up to `MIN_LAYERS`."""
    layers: set[int] = set()
    for name, value in fields.items() if is_main else ():
        if _is_taps(name, value) and LAYER_TAPS.fullmatch(name):
            layers |= {tap for tap in value if 0 <= tap < depth}
        elif _is_taps(name, value):
            # Some stacks collect the input of a layer, not its output: keep one after the last tap.
            needed = {tap - 1 for tap in value if tap > 0} | {max((0, *value))}
            layers |= {layer for layer in needed if layer < depth}
    periods = [
        fields[name]
        for name, replaced_by in PERIODS.items()
        if _is_int(fields.get(name))
        and 1 < fields[name] <= depth
        and not any(fields.get(n) for n in replaced_by)
    ]
    if 1 < len(fields.get(PATTERN) or ()) < depth:
        periods.append(len(fields[PATTERN]))
    first: dict[Hashable, int] = {}
    for layer in range(depth):
        phases = tuple(layer % period for period in periods)
        first.setdefault((*phases, *(trait(layer) for trait in traits)), layer)
    layers |= set(first.values())
    if periods:  # phases cannot be renumbered, so keep all layers up to the last needed one
        layers = set(range(max(layers) + 1))
    others = (layer for layer in range(depth) if layer not in layers)
    return sorted([*layers, *(next(others) for _ in range(MIN_LAYERS - len(layers)))])


def _rename_stages(config: Any, depth: int, layers: Sequence[int]) -> None:
    """Rewrite the stages of a backbone: `stem`, `stage1`, …"""
    names = vars(config).get("stage_names")
    if isinstance(names, list) and len(names) == depth + 1:
        indices = [_position(i, layers) for i in vars(config).get("_out_indices") or []]
        config.stage_names = names[: len(layers) + 1]
        config.set_output_features_output_indices(out_features=None, out_indices=indices or None)


def _clamp_vision_taps(root: Any) -> None:
    """Limit indices of vision layers to the reduced depth, wherever they occur."""
    depths: list[int] = [
        vars(part)[name]
        for owner in sub_configs(root)
        for key, part in vars(owner).items()
        if is_config(part) and _VISION.search(key)
        for name in ("num_hidden_layers", "num_layers", "depth", "layers")
        if _is_int(vars(part).get(name))
    ]
    if not depths:
        return

    def clamped(index: int) -> int:
        return max(index, -min(depths)) if index < 0 else min(index, min(depths) - 1)

    for config in sub_configs(root):
        for name, value in list(vars(config).items()):
            if VISION_TAPS.fullmatch(name) and _is_int(value):
                setattr(config, name, clamped(value))
            elif VISION_TAPS.fullmatch(name) and _is_ints(value):
                setattr(config, name, type(value)(map(clamped, value)))


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_ints(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list | tuple) and all(_is_int(v) for v in value)


# --- models that are built by name ----------------------------------------------------------------

TIMM_BUILDER = "timm.models._efficientnet_builder"


def one_block_of_each_kind(config: Any) -> AbstractContextManager[None]:
    """While active, timm builds each stage of an EfficientNet or MobileNet from its distinct
    blocks, in order (timm 1.0).

    Their layers are neither in the configuration nor among the arguments that it can pass. Nothing
    changes for a `config` without a part that names a model of timm, nor without timm.
    """
    names_one = any(isinstance(vars(c).get("architecture"), str) for c in sub_configs(config))
    if not names_one or importlib.util.find_spec("timm") is None:
        return nullcontext()
    builder: Any = importlib.import_module(TIMM_BUILDER)
    scale = builder._scale_stage_depth

    def distinct(blocks: Sequence[dict[str, Any]], *_: Any) -> Any:
        kinds = _distinct(blocks)
        return scale(kinds, [1] * len(kinds))

    return replaced(builder, "_scale_stage_depth", distinct)


def drop_repeated(module: nn.Module) -> nn.Module:
    """Keep, in every `nn.Sequential` of a module, the first `MIN_LAYERS` blocks of each kind.

    In place. Blocks with the same classes, settings and shapes of weights do the same.
    """
    for sequence in list(module.modules()):
        if type(sequence) is not nn.Sequential:
            continue
        seen: Counter[Hashable] = Counter()
        kept: dict[str, nn.Module] = {}
        for name, block in sequence.named_children():
            kind = _kind(block) if _keeps_shape(block) else None
            seen[kind] += 1
            if kind is None or seen[kind] <= MIN_LAYERS:
                kept[name] = block
        # Under their new positions, since code may index a sequence.
        digits = all(name.isdigit() for name in kept)
        sequence._modules = {str(i) if digits else n: b for i, (n, b) in enumerate(kept.items())}
    return module


def _keeps_shape(block: nn.Module) -> bool:
    """Whether a block may keep the shape of what it gets: it has parts and never downsamples."""
    return next(block.children(), None) is not None and not any(
        isinstance(size, int | float) and size > 1
        for part in block.modules()
        for name in ("stride", "scale_factor", "upscale_factor")
        for value in [getattr(part, name, 1)]
        for size in (value if isinstance(value, list | tuple) else (value,))
    )


def _kind(block: nn.Module) -> Hashable:
    """What distinguishes a block: of each part the class, the settings and the shapes of weights.

    Rates (`drop_prob`) are numbers with a point and do not make a kind.
    """
    return tuple(
        (
            name,
            type(part),
            tuple((key, value) for key, value in vars(part).items() if _is_setting(value)),
            tuple((key, tuple(p.shape)) for key, p in part._parameters.items() if p is not None),
            tuple((key, tuple(b.shape)) for key, b in part._buffers.items() if b is not None),
        )
        for name, part in block.named_modules()
    )


def _is_setting(value: Any) -> bool:
    simple = (bool, int, str, type(None))
    if isinstance(value, tuple):
        return all(isinstance(element, simple) for element in value)
    return isinstance(value, simple)


# --- width ----------------------------------------------------------------------------------------

PARAMETER_BUDGET = 64_000_000
"""A quarter GiB in float32, initialised in under a second on one core."""

FACTORS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)

EXPERTS = 4
EXPERT_GROUPS = 2

ALIGNMENT = 8
"""Grouped kernels require rows of 16 bytes: eight values of two bytes."""

EXPERT_COUNT = re.compile(r"(n|num)_routed_experts|num_(local_)?experts|moe_num_(primary_)?experts")
EXPERT_CHOICES = re.compile(r"num_experts_per_tok(en)?|moe_k|moe_top_?k|top_k_experts")

WIDTH_NAME = re.compile(
    r"downsample_channels|(\w+_)?(hidden_size|hidden_dim|d_model|model_dim|n_embd|emb_dim|embed_dim|embedding_size|"
    r"embedding_dim|intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|n_inner|"
    r"feedforward_dim|feed_forward_hidden_size|dim_feedforward|dim_ff|mlp_dim|d_ff|d_inner|"
    r"inner_dim|expert_dim|lru_width|proj_dim|project_dim|projection_dim|projection_size|"
    r"project_size|projector_dim|conv_channels|output_size)"
    r"|dim|decoder_dim|hidden_size_per_layer_input|intermediate_size_mlp|word_embed_proj_dim|"
    r"(adapter|projector)_(in|out|input|output)_(dim|size)|hidden_size_global|output_dim|"
    r"vision_output_dim|embedding_output_dim|quantization_dim"
)
"""Fields with the width of a tensor between or inside layers."""

INNER_NAME = re.compile(
    r"(\w+_)?(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|mlp_dim|d_ff|dim_ff)"
    r"|intermediate_size_mlp"
)
"""Widths that are internal to a layer: they need not divide exactly, only stay aligned."""

STAGED = ("depths", "hidden_sizes")
TOWER_NAME = re.compile(r"vision|image|video|audio|speech|acoustic|sound")
HANDED_OVER_NAME = re.compile(r"(\w+_)?(out|output)_|text_|llm_|lm_|decoder_|projection_dim")
"""Widths of a tower that belong to its parent."""

HEADS_NAME = re.compile(
    r"(\w+_)?(attention_heads|num_heads|n_heads?|key_value_heads|kv_heads|kv_n_heads|key_heads|"
    r"value_heads|mamba_heads|num_attention_heads_per_layer|num_key_value_heads_per_layer)"
)
"""Fields with the number of heads of a fixed size."""


def narrow(config: Any, count: Callable[[Any], int | None], budget: int = PARAMETER_BUDGET) -> Any:
    """Return a copy of a configuration that fits the budget as closely as the rules allow.

    `count` returns how many parameters a configuration has, None if it builds no model.
    """
    best, size = config, count(config)
    if size is None or size <= budget:
        return config
    fewer = _with_fewer_experts(config)
    after = count(fewer)
    if after is not None and after < size:
        best, size = fewer, after
    for factor in FACTORS:
        if size <= budget:
            break
        for towers in (True, False):  # the heads of a tower may not divide where the text's do
            candidate = _divided(fewer, factor, towers=towers)
            after = None if candidate is None else count(candidate)
            if after is not None:
                break
        if after is not None and after < size:
            best, size = candidate, after
    return best


def _with_fewer_experts(config: Any) -> Any:
    changed = copy.deepcopy(config)
    # Routing selects the best two of each group: half the groups, two experts each.
    limits = {"n_group": EXPERT_GROUPS, "num_expert_group": EXPERT_GROUPS, "topk_group": 1}
    for owner in sub_configs(changed):
        fields = vars(owner)
        has_experts = any(map(EXPERT_COUNT.fullmatch, fields))
        for name, value in list(fields.items()) if has_experts else ():
            limit = limits.get(name)
            if EXPERT_COUNT.fullmatch(name):
                limit = EXPERTS
            elif EXPERT_CHOICES.fullmatch(name):
                limit = EXPERTS // 2
            if limit is not None and _is_int(value) and value > limit:
                setattr(owner, name, limit)
    return changed


def _divided(config: Any, factor: int, *, towers: bool) -> Any:
    """Divide every width and head count of the tree; None if one cannot be divided.

    Without `towers`, image and audio encoders only change the width of their output.
    """
    divided_config = copy.deepcopy(config)
    kept: set[int] = set()
    for owner in sub_configs(divided_config) if not towers else ():
        for name, value in vars(owner).items():
            if is_config(value) and TOWER_NAME.search(name):
                kept.update(map(id, sub_configs(value)))
    for owner in sub_configs(divided_config):
        # Each stage of a staged model has its own width, and the model is small.
        staged = any(isinstance(vars(owner).get(n), list | tuple) for n in STAGED)
        for name, value in list(vars(owner).items()):
            heads = HEADS_NAME.fullmatch(name)
            if value is None or not (heads or WIDTH_NAME.fullmatch(name)):
                continue
            if (staged or id(owner) in kept) and not HANDED_OVER_NAME.match(name):
                continue
            if isinstance(value, int) and INNER_NAME.fullmatch(name):
                setattr(owner, name, max(ALIGNMENT, value // factor // ALIGNMENT * ALIGNMENT))
                continue
            divided = _quotient(value, factor, shared="key_value" in name or "kv" in name)
            if divided is None:
                return None
            if (
                not heads
                and isinstance(value, int)
                and value % ALIGNMENT == 0 != divided % ALIGNMENT
            ):
                return None
            if divided != value:
                setattr(owner, name, divided)
    return divided_config


def _quotient(value: Any, factor: int, *, shared: bool) -> Any:
    """Divide `value`, element by element; None if there is a remainder.

    Shared heads (`num_key_value_heads`) are reduced to at least one.
    """
    if isinstance(value, list | tuple):
        parts = [_quotient(v, factor, shared=shared) for v in value]
        return None if None in parts else type(value)(parts)
    if not _is_int(value) or value <= 1:
        return value
    if value % factor == 0:
        return value // factor
    return 1 if shared and value < factor else None
