"""One tiny model of each modality: its eager forward takes the inputs that were made for it."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.integration.worker.example_inputs.conftest import (
    BERT,
    SEQ2SEQ,
    SIZES,
    TEXT,
    TOKENS,
    VISION,
    WAV2VEC2,
    Make,
    forward,
    tiny,
)

pytestmark = pytest.mark.torch

T5 = {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
SIGLIP2 = SIZES | {"patch_size": 8, "num_patches": 16}
CLIP = {"text_config": TEXT | {"max_position_embeddings": 16}, "vision_config": VISION}
CLIP |= {"projection_dim": 16}  # type: ignore[dict-item]
WHISPER = SEQ2SEQ | TOKENS | {"decoder_start_token_id": 1}
WHISPER |= {"max_source_positions": 40, "max_target_positions": 64, "num_mel_bins": 16}
SPEECH = SEQ2SEQ | {"input_feat_per_channel": 12, "conv_channels": 32}
SERIES: dict[str, Any] = SEQ2SEQ | {"prediction_length": 4, "context_length": 8}
SERIES |= {"lags_sequence": [1, 2, 7], "num_time_features": 2, "embedding_dimension": [2]}
SERIES |= {"num_static_categorical_features": 1, "cardinality": [3]}
MUSICGEN = {"vocab_size": 100, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1}
MUSICGEN |= {"num_attention_heads": 2, "num_codebooks": 3}

IDS, PIXELS = {"input_ids": (2, 32)}, {"pixel_values": (2, 3, 32, 32)}
PATCHES = {"pixel_values": (2, 16, 192), "pixel_attention_mask": (2, 16), "spatial_shapes": (2, 2)}
PAST = {"past_values": (2, 15), "past_time_features": (2, 15, 2), "future_values": (2, 4)}
PAST |= {"static_categorical_features": (2, 1)}
CHOICES = {"input_ids": (2, 2, 32), "attention_mask": (2, 2, 32)}

CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("LlamaForCausalLM", TEXT, "text", IDS | {"attention_mask": (2, 32)}),
    ("T5ForConditionalGeneration", T5, "encoder_decoder", IDS | {"decoder_input_ids": (2, 32)}),
    ("ViTModel", VISION, "vision", PIXELS),
    ("CLIPModel", CLIP, "vision+text", PIXELS | {"input_ids": (2, 16)}),
    ("Siglip2VisionModel", SIGLIP2, "vision", PATCHES),
    (
        "VideoMAEModel",
        VISION | {"num_frames": 4, "tubelet_size": 2},
        "video",
        {"pixel_values": (2, 4, 3, 32, 32)},
    ),
    ("Wav2Vec2Model", WAV2VEC2, "audio", {"input_values": (2, 19200)}),
    (
        "WhisperForConditionalGeneration",
        WHISPER,
        "audio+encoder_decoder",
        {"input_features": (2, 16, 80)},
    ),
    ("Speech2TextModel", SPEECH, "audio+encoder_decoder", {"input_features": (2, 128, 12)}),
    ("LayoutLMModel", BERT | {"max_2d_position_embeddings": 64}, "document", {"bbox": (2, 32, 4)}),
    ("TimeSeriesTransformerModel", SERIES, "time_series", PAST),
    ("BertForMultipleChoice", BERT, "text", CHOICES),
    ("MusicgenForCausalLM", MUSICGEN, "text", {"input_ids": (6, 32)}),
]


@pytest.mark.parametrize(
    ("name", "values", "strategy", "shapes"), CASES, ids=[case[0] for case in CASES]
)
def test_forward_accepts_inputs(
    make: Make, name: str, values: dict[str, Any], strategy: str, shapes: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    module = tiny(name, **values)
    inputs = make(module)
    assert strategy in inputs.strategy
    assert {name: tuple(inputs.kwargs[name].shape) for name in shapes} == shapes
    forward(module, inputs)


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return tiny("ViTModel", **VISION)


def test_ids_are_ordinary_words_and_end_once(make: Make) -> None:
    inputs = make(tiny("LlamaForCausalLM", **TEXT))
    ids = inputs.kwargs["input_ids"]
    assert (ids[:, -1] == 2).all()
    assert ids[:, :-1].min() > 2
    assert ids.max() < 200
    both = {0: "batch", 1: "sequence"}
    assert inputs.dynamic_shapes == {"input_ids": both, "attention_mask": both}
    decoder: Any = make(tiny("T5ForConditionalGeneration", **T5)).dynamic_shapes
    assert decoder["decoder_input_ids"] == {0: "batch", 1: "decoder_sequence"}


def test_same_inputs_whatever_the_global_seed_in_the_dtype_of_the_module(
    make: Make, vit: nn.Module
) -> None:
    torch.manual_seed(1)
    first = make(vit)
    assert first.dynamic_shapes == {"pixel_values": {0: "batch"}}
    torch.manual_seed(2)
    torch.randn(7)
    pixels = first.kwargs["pixel_values"]
    assert torch.equal(pixels, make(vit).kwargs["pixel_values"])
    half = tiny("ViTModel", **VISION).to(torch.bfloat16)
    assert make(half).kwargs["pixel_values"].dtype is torch.bfloat16
