"""Reduces the depth of a configuration and keeps one layer of each kind.

The kind of a layer is everything that the configuration says about it: its entry in per-layer lists
(`layer_types`), whether index sets contain it (`cross_attention_layers`), its side of a threshold
(`first_k_dense_replace`), its phase in a period (`attn_layer_period`). The first layer of each kind
is kept, and every field that counts or names layers is rewritten accordingly. The rules are about
fields, never about models; everything else is an override.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from compilewatch.worker.model.architectures import is_config, sub_configs

MIN_LAYERS = 2
"""A stack keeps at least its first and last layer, which models treat specially."""

DEPTH_NAME = re.compile(
    r"(\w+_)?(num_hidden_layers|num_layers|n_layers?|depth|num_blocks)"
    r"|num_(encoder|decoder|spatial|temporal|global|attention)_layers"
    r"|(\w+_)?(encoder|decoder)_layers|([lrx]_)?layers"
    r"|num_layers_per_stack|num_self_attends_per_block|num_mel_attn_blocks"
    r"|(\w+_)?num_(flows|wavenet_layers)|group_detr"
)
"""Fields with the number of layers of a stack, or of copies of a part."""

STAGE_DEPTHS = (
    "depths",
    "depth",
    "block_sizes",
    "n_attn_blocks",
    "stage_num_blocks",
    "stage_numb_of_layers",
)
"""Lists with the number of layers of each stage of a staged model."""

BLOCK_SIZES = (
    "resblock_dilation_sizes",
    "resblock_kernel_sizes",
    "resblock_stride_sizes",
)
"""Lists with one entry per block, for blocks that only differ in sizes."""

STAGES_OF_LAYERS = ("block_configs",)
"""Lists of stages; each is a list of complete layer descriptions. Equal layers are one kind."""

PER_LAYER_NAME = re.compile(
    r"\w*layers?_\w+|\w*block_types?|\w+_types|\w+_layers|\w+_per_layer|\w+_pattern"
    r"|attention_window|intermediate_size|num_attention_heads|num_key_value_heads|head_dim"
)
"""Lists with one entry per layer if they are as long as the stack is deep."""

INDEX_SETS = (
    "cross_attention_layers",
    "deepstack_visual_indexes",
    "full_attn_idxs",
    "fullatt_block_indexes",
    "global_attn_indexes",
    "hybrid_layer_ids",
    "insert_layer_id",
    "attn_layer_indices",
    "look_ahead_layers",
    "look_backward_layers",
    "merge_index",
    "mlp_only_layers",
    "moe_layers",
    "no_rope_layer_ids",
    "residual_block_indices",
    "rope_scaling_layers",
    "window_block_indexes",
    "window_block_indices",
)
"""Indices of layers that differ from the others."""

LAYER_TAPS = ("backbone_out_indices", "intermediate_hidden_state_indices")
"""Indices of layers whose output is used. They stay distinct: their number affects a shape."""

HIDDEN_STATE_TAPS = ("intermediate_layers_indices", "out_indices", "_out_indices")
"""The same as indices into `hidden_states`, where 0 is the embedding and i the output of i-1."""

FIRST_COUNTS = (
    "first_k_dense_replace",
    "max_window_layers",
    "moe_layer_start_index",
    "num_dense_layers",
    "num_first_full_attention_layers",
    "num_hash_layers",
)
"""How many of the first layers differ from the others."""

LAST_COUNTS = (
    "num_kv_shared_layers",
    "num_last_full_attention_layers",
    "num_timestamp_prediction_layers",
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

PATTERNS = ("block_types",)
"""Lists of kinds that are repeated up to the depth of the stack."""

VISION_TAPS = (
    "extract_layers",
    "feature_layer",
    "intermediate_hook_ids",
    "vision_feature_layer",
    "vision_feature_layers",
    "vision_layer",
    "vit_layers",
)
"""Indices of the vision stack's layers whose output is used, in a parent or sibling."""

_VISION_NAME = re.compile(r"vis|image|vit|backbone|patch_model")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """The kept layers of a stack of `depth` layers, by their old indices, in order."""

    depth: int
    layers: tuple[int, ...]

    def position(self, old: int) -> int:
        """Return the new index of an old layer, or of the next kept one; negative ones stay so."""
        if old < 0:
            return max(old, -len(self.layers))
        return sum(layer < old for layer in self.layers)


def reduce_depth(config: Any) -> None:
    """Keep one layer of each kind, in place, also in sub-configurations.

    Layers keep their order. Only fields that depend on the number of layers are rewritten.
    """
    for owner in sub_configs(config):
        _reduce_stages(owner)
        _reduce_stacks(owner)
    _clamp_vision_taps(config)


def _reduce_stages(config: Any) -> None:
    for name in STAGE_DEPTHS:
        depths = vars(config).get(name)
        if _is_ints(depths):
            setattr(config, name, type(depths)(_stage_depths(depths)))
    for name in BLOCK_SIZES:
        blocks = vars(config).get(name)
        if isinstance(blocks, list | tuple):
            setattr(config, name, blocks[:MIN_LAYERS])
    for name in STAGES_OF_LAYERS:
        stages = vars(config).get(name)
        if isinstance(stages, list | tuple) and all(isinstance(s, list | tuple) for s in stages):
            setattr(config, name, [_distinct(stage) for stage in stages])


def _stage_depths(depths: Sequence[int]) -> list[int]:
    """Return one layer per stage, and `MIN_LAYERS` for the first stage that has as many.

    The first layer of a stage is of one kind (it downsamples) and the following ones of another;
    this pair occurs in every stage.
    """
    deep = next((i for i, depth in enumerate(depths) if depth >= MIN_LAYERS), None)
    return [min(depth, MIN_LAYERS if i == deep else 1) for i, depth in enumerate(depths)]


def _distinct(layers: Sequence[Any]) -> list[Any]:
    return [layer for i, layer in enumerate(layers) if layer not in layers[:i]]


def _reduce_stacks(config: Any) -> None:
    fields = vars(config)
    stages = next((fields[n] for n in STAGE_DEPTHS if isinstance(fields.get(n), list | tuple)), ())
    depths = {
        name: value
        for name, value in fields.items()
        if DEPTH_NAME.fullmatch(name)
        and _is_int(value)
        and value > MIN_LAYERS
        # A staged model repeats its number of stages, or of all blocks, in these fields.
        and not (stages and value in (len(stages), sum(stages)))
    }
    overrides = _heterogeneous_overrides(config)
    main = next((depths[n] for n in depths if not n.startswith("num_global")), None)
    for depth in dict.fromkeys(depths.values()):
        kept = _choose(config, depth, is_main=depth == main, overrides=overrides)
        _rewrite(config, kept, is_main=depth == main)
        for name, value in depths.items():
            if value == depth:
                setattr(config, name, len(kept.layers))
        if depth == main:
            _rename_stages(config, kept)
            if overrides is not None:
                config.per_layer_config = {
                    new: overrides[old] for new, old in enumerate(kept.layers) if old in overrides
                }


def _choose(
    config: Any, depth: int, *, is_main: bool, overrides: dict[int, dict[str, Any]] | None
) -> _Kept:
    """Return the first layer of each kind, and the earliest others up to `MIN_LAYERS`."""
    fields = vars(config)
    traits: list[Callable[[int], Any]] = [
        _entry_trait(value) for _, value in _per_layer_lists(fields, depth)
    ]
    required: set[int] = set()
    if is_main:
        traits += [_member_trait(value) for _, value in _index_sets(fields, depth)]
        traits += [_below_trait(n) for _, n in _counts(fields, FIRST_COUNTS)]
        traits += [_below_trait(depth - n) for _, n in _counts(fields, LAST_COUNTS)]
        if overrides is not None:
            traits.append(_heterogeneous_trait(overrides))
        required = {t for _, value in _taps(fields, LAYER_TAPS) for t in value if t >= 0}
        for _, value in _taps(fields, HIDDEN_STATE_TAPS):
            # Some stacks collect the input of a layer, not its output: keep one after the last tap.
            required |= {t - 1 for t in value if t > 0} | {max((0, *value))}
    periods = [
        fields[name]
        for name, replaced_by in PERIODS.items()
        if _is_int(fields.get(name))
        and 1 < fields[name] <= depth
        and not any(fields.get(n) for n in replaced_by)
    ]
    # A list that is shorter than the stack is repeated.
    periods += [len(fields[n]) for n in PATTERNS if fields.get(n) and 1 < len(fields[n]) < depth]
    traits += [_phase_trait(period) for period in periods]
    first: dict[tuple[Any, ...], int] = {}
    for layer in range(depth):
        first.setdefault(tuple(trait(layer) for trait in traits), layer)
    layers = set(first.values()) | {layer for layer in required if layer < depth}
    if periods:  # phases cannot be renumbered, so keep all layers up to the last needed one
        layers = set(range(max(layers) + 1))
    for layer in range(depth):
        if len(layers) >= MIN_LAYERS:
            break
        layers.add(layer)
    return _Kept(depth=depth, layers=tuple(sorted(layers)))


def _rewrite(config: Any, kept: _Kept, *, is_main: bool) -> None:
    """Rewrite every field that counts or names layers of this stack for the kept layers."""
    fields = vars(config)
    for name, value in list(_per_layer_lists(fields, kept.depth)):
        setattr(config, name, type(value)(value[layer] for layer in kept.layers))
    if not is_main:
        return
    for name, value in list(_index_sets(fields, kept.depth)):
        if _is_int(value):
            setattr(config, name, kept.position(value))
        else:
            setattr(config, name, type(value)(kept.position(i) for i in value if i in kept.layers))
    for name, value in list(_taps(fields, LAYER_TAPS + HIDDEN_STATE_TAPS)):
        if not name.startswith("_"):
            setattr(config, name, type(value)(kept.position(t) for t in value))
    for name, count in _counts(fields, FIRST_COUNTS):
        setattr(config, name, sum(layer < count for layer in kept.layers))
    for name, count in _counts(fields, LAST_COUNTS):
        setattr(config, name, sum(layer >= kept.depth - count for layer in kept.layers))
    if _is_int(fields.get("moe_layer_end_index")):
        config.moe_layer_end_index = min(fields["moe_layer_end_index"], len(kept.layers) - 1)


def _rename_stages(config: Any, kept: _Kept) -> None:
    """Rename the layers of a backbone (`stem`, `stage1`, …) and the list of its outputs."""
    names = vars(config).get("stage_names")
    if not isinstance(names, list) or len(names) != kept.depth + 1:
        return
    indices = [kept.position(i) for i in vars(config).get("_out_indices") or []]
    config.stage_names = names[: len(kept.layers) + 1]
    config.set_output_features_output_indices(out_features=None, out_indices=indices or None)


def _clamp_vision_taps(root: Any) -> None:
    """Limit indices of vision layers to the reduced depth, wherever they occur."""
    depth = min(_vision_depths(root), default=None)
    if depth is None:
        return
    for config in sub_configs(root):
        for name in VISION_TAPS:
            value = vars(config).get(name)
            if _is_int(value):
                setattr(config, name, _clamp(value, depth))
            elif _is_ints(value):
                setattr(config, name, type(value)(_clamp(v, depth) for v in value))


def _vision_depths(root: Any) -> Iterator[int]:
    for owner in sub_configs(root):
        for key, value in vars(owner).items():
            if is_config(value) and _VISION_NAME.search(key):
                yield from (
                    vars(value)[n]
                    for n in ("num_hidden_layers", "num_layers", "depth", "layers")
                    if _is_int(vars(value).get(n))
                )


def _clamp(index: int, depth: int) -> int:
    return max(index, -depth) if index < 0 else min(index, depth - 1)


def _heterogeneous_overrides(config: Any) -> dict[int, dict[str, Any]] | None:
    """Return per-layer settings (Transformers' `per_layer_config`), None if there are none."""
    spec = vars(config).get("_heterogeneity_spec")
    return None if spec is None else {int(k): dict(v) for k, v in spec.per_layer_overrides.items()}


def _per_layer_lists(fields: dict[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if (
            isinstance(value, list | tuple)
            and len(value) == depth
            and name not in INDEX_SETS
            and PER_LAYER_NAME.fullmatch(name)
        ):
            yield name, value


def _index_sets(fields: dict[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for name in INDEX_SETS:
        value = fields.get(name)
        if (_is_int(value) and 0 <= value < depth) or (
            _is_ints(value) and value and max(value) < depth
        ):
            yield name, value


def _taps(fields: dict[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in names:
        if _is_ints(fields.get(name)):
            yield name, fields[name]


def _counts(fields: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(name, fields[name]) for name in names if _is_int(fields.get(name))]


def _entry_trait(values: Any) -> Callable[[int], Any]:
    """Return the trait of list entries: names; of numbers only whether they are zero."""
    return lambda i: values[i] if isinstance(values[i], str) else bool(values[i])


def _member_trait(value: Any) -> Callable[[int], bool]:
    members = {value} if _is_int(value) else set(value)
    return lambda i: i in members


def _heterogeneous_trait(overrides: dict[int, dict[str, Any]]) -> Callable[[int], Any]:
    """Return the trait of per-layer settings, without sizes, which do not make a kind."""
    kinds = {
        layer: tuple((k, bool(v) if _is_int(v) else repr(v)) for k, v in sorted(fields.items()))
        for layer, fields in overrides.items()
    }
    return kinds.get


def _below_trait(bound: int) -> Callable[[int], bool]:
    return lambda i: i < bound


def _phase_trait(period: int) -> Callable[[int], int]:
    return lambda i: i % period


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_ints(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list | tuple) and all(_is_int(v) for v in value)
