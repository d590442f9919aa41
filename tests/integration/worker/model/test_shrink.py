"""What a shallow and a narrow model keeps."""

import sys
import types
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.records import Depth
from compilewatch.worker.model import shrink
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.model.shrink import drop_repeated, narrow, one_block_of_each_kind
from tests import factories

pytestmark = pytest.mark.torch


def reduced(config_class: str, **values: Any) -> Any:
    config = getattr(transformers, config_class)(**values)
    shrink.reduce_depth(config)
    return config


FIRST_DENSE = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
STAGES = {"stage_num_blocks": [1, 1, 2, 1], "stage_numb_of_layers": [2, 1, 1, 1]}
BLOCKS = {"resblock_kernel_sizes": [3, 7], "posterior_encoder_num_wavenet_layers": 2}


@pytest.mark.parametrize(
    ("config_class", "values", "expected"),
    [
        # Layers of one kind become two, and a shallow stack is left alone.
        ("LlamaConfig", {}, {"num_hidden_layers": 2, "hidden_size": 4096}),
        ("LlamaConfig", {"num_hidden_layers": 1}, {"num_hidden_layers": 1}),
        # Per-layer lists keep the first of each kind.
        ("Gemma3TextConfig", {}, {"layer_types": ["sliding_attention", "full_attention"]}),
        # A threshold keeps layers on both sides.
        ("DeepseekV2Config", {"first_k_dense_replace": 3}, FIRST_DENSE),
        # A repeated pattern is kept once.
        ("RecurrentGemmaConfig", {}, {"num_hidden_layers": 3}),
        # Index sets name the layers that stay.
        ("MllamaTextConfig", {}, {"num_hidden_layers": 2, "cross_attention_layers": [1]}),
        # Stages keep their number; the first that has a second layer keeps it.
        ("SwinConfig", {}, {"depths": [2, 1, 1, 1], "num_layers": 4}),
        ("HGNetV2Config", {}, STAGES),
        # Blocks that differ in size become two.
        ("VitsConfig", {}, BLOCKS),
    ],
)
def test_fields_that_count_or_name_layers_are_rewritten(
    config_class: str, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    fields = vars(reduced(config_class, **values))
    shown = {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items()}
    assert {name: shown[name] for name in expected} == expected


def test_kinds_are_combinations_and_a_period_keeps_every_phase() -> None:
    def kinds(c: Any) -> set[Any]:
        first_shared = c.num_hidden_layers - c.num_kv_shared_layers
        layers = enumerate(zip(c.layer_types, c.activation_sparsity_pattern, strict=True))
        return {(kind, sparsity > 0, i >= first_shared) for i, (kind, sparsity) in layers}

    full, config = transformers.Gemma3nTextConfig(), reduced("Gemma3nTextConfig")
    assert len(config.intermediate_size) == config.num_hidden_layers < full.num_hidden_layers
    assert kinds(config) == kinds(full)
    full, config = transformers.JambaConfig(), reduced("JambaConfig")
    assert config.num_hidden_layers < full.num_hidden_layers
    assert config.attn_layer_period == full.attn_layer_period
    assert set(config.layers_block_type) == set(full.layers_block_type)
    # Layers described alike are one kind.
    stages = reduced("PPLCNetV3Config").block_configs
    assert all(stage.count(layer) == 1 for stage in stages for layer in stage)
    assert [len(stage) for stage in stages] == [1, 2, 2, 2, 3]


def test_indices_of_tapped_layers_stay_distinct_and_inside() -> None:
    full = transformers.MllamaConfig().vision_config
    vision = reduced("MllamaConfig").vision_config
    taps = vision.intermediate_layers_indices
    assert len(set(taps)) == len(full.intermediate_layers_indices)
    assert max(taps) <= vision.num_hidden_layers < full.num_hidden_layers
    backbone = reduced("Dinov2Config", out_indices=[3, 6, 9, 12])
    assert len(backbone.out_features) == 4
    assert backbone.out_features == [backbone.stage_names[i] for i in backbone.out_indices]
    assert len(backbone.stage_names) == backbone.num_hidden_layers + 1
    parent = reduced("VipLlavaConfig")
    assert parent.vision_config.num_hidden_layers == 2
    assert all(-2 <= i < 2 for i in parent.vision_feature_layers)


@pytest.mark.parametrize(
    "class_name",
    [
        *("BartModel", "DFineModel", "DeepseekV3ForCausalLM", "Gemma3ForConditionalGeneration"),
        *("JambaForCausalLM", "MllamaForConditionalGeneration", "Sam2Model", "SwinModel"),
        *("Qwen2_5_VLForConditionalGeneration", "VitsModel", "Wav2Vec2Model"),
    ],
)
def test_a_shallow_model_has_the_module_types_of_the_deep_one(class_name: str) -> None:
    def module_types(depth: Depth) -> tuple[set[str], int]:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        request = factories.request(class_name, depth=depth)
        modules = list(build_model(request, mode).module.modules())
        # By name: parametrization makes a class for each module.
        return {f"{type(m).__module__}.{type(m).__name__}" for m in modules}, len(modules)

    deep, deep_size = module_types(Depth.FULL)
    shallow, shallow_size = module_types(Depth.REDUCED)
    assert shallow == deep
    assert shallow_size < deep_size


def squares(config: Any) -> int:
    """A stand-in for counting: a model as large as the square of its width."""
    text = getattr(config, "text_config", config)
    return int(text.hidden_size**2 * 64)


def test_the_smallest_factor_that_fits_divides_widths_and_heads_alike() -> None:
    small, full = transformers.LlamaConfig(hidden_size=64), transformers.LlamaConfig()
    assert narrow(small, squares) is small
    config = narrow(full, squares)
    factor = full.hidden_size // config.hidden_size
    assert squares(config) <= shrink.PARAMETER_BUDGET < squares(full)
    assert config.num_attention_heads * factor == full.num_attention_heads
    assert (config.head_dim, config.vocab_size) == (full.head_dim, full.vocab_size)
    assert full.hidden_size == 4096
    # What cannot be built is not chosen.
    other = narrow(full, lambda c: None if c.hidden_size == 1024 else squares(c))
    assert other.hidden_size < 1024


def test_a_tower_whose_heads_do_not_divide_keeps_its_width() -> None:
    full = transformers.LlavaConfig(vision_config={"num_attention_heads": 7, "hidden_size": 448})
    config = narrow(full, squares)
    assert config.text_config.hidden_size < full.text_config.hidden_size
    assert config.vision_config.hidden_size == 448
    assert config.vision_config.num_attention_heads == 7
    # One of several widths hands over the one that its parent compares.
    clap = narrow(transformers.ClapConfig(), lambda config: config.projection_dim * 200_000)
    assert clap.projection_dim < transformers.ClapConfig().projection_dim
    assert clap.text_config.projection_dim == clap.audio_config.projection_dim


def test_experts_go_first_and_routing_still_has_a_choice() -> None:
    full = transformers.DeepseekV3Config()
    config = narrow(full, lambda c: c.n_routed_experts * 10_000_000)
    assert config.n_routed_experts == 4
    choices = config.n_routed_experts // config.n_group * config.topk_group
    assert config.num_experts_per_tok <= choices
    assert config.hidden_size == full.hidden_size


class Block(nn.Module):
    """A residual block; `shift` is a setting that changes what it does, `rate` only how much."""

    def __init__(self, width: int = 4, *, shift: int = 0, rate: float = 0.0, stride: int = 1):
        super().__init__()
        self.shift = shift
        self.rate = rate
        self.conv = nn.Conv2d(width, width, 3, stride=stride, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def test_two_blocks_of_a_kind_stay_whatever_their_rates() -> None:
    stage = nn.Sequential(*(Block(rate=rate / 10) for rate in range(5)))
    drop_repeated(stage)
    assert list(stage._modules) == ["0", "1"]
    assert stage(torch.rand(1, 4, 8, 8)).shape == (1, 4, 8, 8)
    # Other settings make another kind.
    shifts = drop_repeated(nn.Sequential(*(Block(shift=i % 2) for i in range(8))))
    assert [block.shift for block in shifts.children()] == [0, 1, 0, 1]
    # What changes a shape stays, and what is no sequence.
    down = nn.Sequential(*(Block(stride=2) for _ in range(4)))
    layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.ReLU(), nn.MaxPool2d(2))))
    widths = nn.Sequential(*(Block(width) for width in (4, 8, 16)))
    blocks = nn.ModuleList(Block() for _ in range(5))
    assert [len(drop_repeated(m)) for m in (down, layers, widths, blocks)] == [4, 8, 3, 5]
    nested = nn.ModuleDict({"stage": nn.Sequential(*(Block() for _ in range(5)))})
    assert len(drop_repeated(nested)["stage"]) == 2


def test_timm_builds_each_kind_of_block_once_while_a_model_is_reduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the function of its builder that repeats blocks."""
    builder: Any = types.ModuleType(shrink.TIMM_BUILDER)
    builder._scale_stage_depth = lambda blocks, repeats, *_: [
        dict(block) for block, n in zip(blocks, repeats, strict=True) for _ in range(n)
    ]
    timm = types.ModuleType("timm")
    timm.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    for module in (timm, types.ModuleType("timm.models"), builder):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    # One block that shrinks, then two kinds alternately.
    blocks = [{"kind": kind, "s": s} for kind, s in ("a2", "a1", "m1", "a1", "m1")]

    def depth_of(config: Any) -> int:
        with one_block_of_each_kind(config):
            return len(builder._scale_stage_depth(blocks, [1, 2, 1, 3, 1], 1.0))

    tower = transformers.LlavaConfig(vision_config=transformers.TimmWrapperConfig())
    assert (depth_of(transformers.LlavaConfig()), depth_of(tower)) == (8, 3)
    assert len(builder._scale_stage_depth(blocks, [1, 2, 1, 3, 1], 1.0)) == 8
    # Nothing happens without timm.
    monkeypatch.setitem(sys.modules, "timm", None)
    assert depth_of(tower) == 8
