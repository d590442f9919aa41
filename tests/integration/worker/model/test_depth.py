"""Shallow configurations: one of each kind of layer, and every dependent field in step."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from compilewatch import data
from compilewatch.records import ClassBuild, Depth, ModelSpec, Request, Target
from compilewatch.worker.model.depth import reduce_depth
from compilewatch.worker.model.overrides import load_overrides
from compilewatch.worker.model.resolve import build_model

pytestmark = pytest.mark.torch

OVERRIDES = load_overrides(data.OVERRIDES)


def _reduced(config_class: str, **values: Any) -> Any:
    config = getattr(transformers, config_class)(**values)
    reduce_depth(config)
    return config


def test_layers_of_one_kind_become_two() -> None:
    config = _reduced("LlamaConfig")

    assert config.num_hidden_layers == 2
    assert config.hidden_size == transformers.LlamaConfig().hidden_size


def test_a_shallow_stack_is_left_alone() -> None:
    assert _reduced("LlamaConfig", num_hidden_layers=1).num_hidden_layers == 1


def test_per_layer_lists_keep_the_first_of_each_kind() -> None:
    config = _reduced("Gemma3TextConfig")

    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.num_hidden_layers == 2


def test_kinds_are_combinations_not_single_fields() -> None:
    full = transformers.Gemma3nTextConfig()
    config = _reduced("Gemma3nTextConfig")
    n = config.num_hidden_layers

    def kinds(c: Any) -> set[Any]:
        first_shared = c.num_hidden_layers - c.num_kv_shared_layers
        return {
            (kind, sparsity > 0, i >= first_shared)
            for i, (kind, sparsity) in enumerate(
                zip(c.layer_types, c.activation_sparsity_pattern, strict=True)
            )
        }

    assert n < full.num_hidden_layers
    assert kinds(config) == kinds(full)
    assert len(config.intermediate_size) == n


def test_a_threshold_keeps_layers_on_both_sides() -> None:
    config = _reduced("DeepseekV2Config", first_k_dense_replace=3)

    assert (config.num_hidden_layers, config.first_k_dense_replace) == (2, 1)


def test_a_period_keeps_every_phase() -> None:
    full = transformers.JambaConfig()
    config = _reduced("JambaConfig")

    assert config.num_hidden_layers < full.num_hidden_layers
    assert config.attn_layer_period == full.attn_layer_period
    assert set(config.layers_block_type) == set(full.layers_block_type)


def test_a_repeated_pattern_is_kept_once() -> None:
    config = _reduced("RecurrentGemmaConfig")

    assert config.num_hidden_layers == 3
    assert set(config.layers_block_type) == {"linear_attention", "sliding_attention"}


def test_index_sets_name_the_layers_that_stay() -> None:
    config = _reduced("MllamaConfig")

    assert config.text_config.num_hidden_layers == 2
    assert config.text_config.cross_attention_layers == [1]


def test_indices_of_tapped_hidden_states_stay_distinct_and_inside() -> None:
    full = transformers.MllamaConfig().vision_config
    vision = _reduced("MllamaConfig").vision_config

    taps = vision.intermediate_layers_indices
    assert len(set(taps)) == len(full.intermediate_layers_indices)
    assert max(taps) <= vision.num_hidden_layers < full.num_hidden_layers


def test_a_backbone_still_returns_as_many_stages() -> None:
    config = _reduced("Dinov2Config", out_indices=[3, 6, 9, 12])

    assert len(config.out_features) == 4
    assert config.out_features == [config.stage_names[i] for i in config.out_indices]
    assert len(config.stage_names) == config.num_hidden_layers + 1


def test_a_parent_indexes_inside_the_reduced_vision_stack() -> None:
    config = _reduced("VipLlavaConfig")

    depth = config.vision_config.num_hidden_layers
    assert depth == 2
    assert all(-depth <= i < depth for i in config.vision_feature_layers)


def test_stages_keep_their_number_and_one_of_them_a_second_layer() -> None:
    config = _reduced("SwinConfig")

    assert list(config.depths) == [2, 1, 1, 1]
    assert config.num_layers == 4


def test_the_first_stage_that_has_a_second_layer_keeps_it() -> None:
    config = _reduced("HGNetV2Config")

    assert list(config.stage_num_blocks) == [1, 1, 2, 1]
    assert list(config.stage_numb_of_layers) == [2, 1, 1, 1]


def test_blocks_that_differ_in_size_become_two() -> None:
    config = _reduced("VitsConfig")

    assert list(config.resblock_kernel_sizes) == [3, 7]
    assert len(config.resblock_dilation_sizes) == 2
    assert config.posterior_encoder_num_wavenet_layers == 2
    assert len(config.upsample_rates) == 4


def test_layers_described_alike_are_one_kind() -> None:
    config = _reduced("PPLCNetV3Config")

    for stage in config.block_configs:
        assert all(stage.count(layer) == 1 for layer in stage)
    assert [len(stage) for stage in config.block_configs] == [1, 2, 2, 2, 3]


SAME_KINDS = (
    "BartModel",
    "DFineModel",
    "DeepseekV3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "JambaForCausalLM",
    "MllamaForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Sam2Model",
    "SwinModel",
    "VitsModel",
    "Wav2Vec2Model",
)


@pytest.mark.parametrize("class_name", SAME_KINDS)
def test_a_shallow_model_has_the_module_types_of_the_deep_one(class_name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def module_types(depth: Depth) -> tuple[set[str], int]:
        request = Request(
            model=ModelSpec(
                source="library", name=class_name, build=ClassBuild(class_name=class_name)
            ),
            target=Target(),
            key="k",
            depth=depth,
        )
        built = build_model(request, FakeTensorMode(allow_non_fake_inputs=True), OVERRIDES)
        modules = list(built.module.modules())
        # By name: parametrization makes a class for each module.
        return {f"{type(m).__module__}.{type(m).__name__}" for m in modules}, len(modules)

    full, full_size = module_types(Depth.FULL)
    reduced, reduced_size = module_types(Depth.REDUCED)

    assert reduced == full
    assert reduced_size < full_size
