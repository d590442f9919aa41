"""Makes a shallow configuration narrow enough for real tensors.

It makes the smallest change that fits the parameter budget: first fewer experts, then all widths
and head counts of the configuration tree divided by one factor, which keeps every equality and
ratio between sub-configurations. The sizes of a head, a patch, a state and the vocabulary do not
change, nor do image sizes and token ids.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from compilewatch.worker.model.architectures import is_config, sub_configs

PARAMETER_BUDGET = 64_000_000
"""A quarter GiB in float32, initialised in under a second on one core."""

FACTORS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)

EXPERTS = 4
EXPERT_GROUPS = 2

ALIGNMENT = 8
"""Grouped kernels require rows of 16 bytes: eight values of two bytes."""

EXPERT_COUNTS = (
    "n_routed_experts",
    "num_experts",
    "num_local_experts",
    "moe_num_experts",
    "moe_num_primary_experts",
    "num_routed_experts",
)
EXPERT_CHOICES = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_k",
    "moe_top_k",
    "moe_topk",
    "top_k_experts",
)

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


def narrow(config: Any, count: Callable[[Any], int | None]) -> Any:
    """Return a copy of a configuration that fits the budget as closely as the rules allow.

    `count` returns how many parameters a configuration has, None if it builds no model.
    """
    best, size = config, count(config)
    if size is None or size <= PARAMETER_BUDGET:
        return config
    fewer = _with_fewer_experts(config)
    after = count(fewer)
    if after is not None and after < size:
        best, size = fewer, after
    for factor in FACTORS:
        if size <= PARAMETER_BUDGET:
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
    for owner in sub_configs(changed):
        fields = vars(owner)
        for name in EXPERT_COUNTS:
            _lower(owner, name, EXPERTS)
        if any(name in fields for name in EXPERT_COUNTS):
            for name in EXPERT_CHOICES:
                _lower(owner, name, EXPERTS // 2)
            # Routing selects the best two of each group: half the groups, two experts each.
            _lower(owner, "n_group", EXPERT_GROUPS)
            _lower(owner, "num_expert_group", EXPERT_GROUPS)
            _lower(owner, "topk_group", EXPERT_GROUPS // 2)
    return changed


def _lower(config: Any, name: str, limit: int) -> None:
    value = vars(config).get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > limit:
        setattr(config, name, limit)


def _divided(config: Any, factor: int, *, towers: bool) -> Any:
    """Divide every width and head count of the tree; None if one cannot be divided.

    Without `towers`, image and audio encoders only change the width of their output.
    """
    divided_config = copy.deepcopy(config)
    kept = set() if towers else {id(owner) for owner in _towers(divided_config)}
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
            if divided is None or not (heads or _as_aligned(divided, value)):
                return None
            if divided != value:
                setattr(owner, name, divided)
    return divided_config


def _towers(config: Any) -> Iterator[Any]:
    for owner in sub_configs(config):
        for name, value in vars(owner).items():
            if is_config(value) and TOWER_NAME.search(name):
                yield from sub_configs(value)


def _quotient(value: Any, factor: int, *, shared: bool) -> Any:
    """Divide `value`, element by element; None if there is a remainder.

    Shared heads (`num_key_value_heads`) are reduced to at least one.
    """
    if isinstance(value, list | tuple):
        parts = [_quotient(v, factor, shared=shared) for v in value]
        return None if None in parts else type(value)(parts)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 1:
        return value
    if value % factor == 0:
        return value // factor
    return 1 if shared and value < factor else None


def _as_aligned(narrow_width: Any, width: Any) -> bool:
    if not isinstance(width, int):
        return True
    return width % ALIGNMENT != 0 or narrow_width % ALIGNMENT == 0
