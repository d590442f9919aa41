"""One tiny model of each modality: its eager forward takes the inputs that were made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

from tests.integration.worker.example_inputs.conftest import TEXT, VISION, Make, forward

pytestmark = pytest.mark.torch


def llama() -> nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT))


def t5() -> nn.Module:
    return tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=200, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    )


def vit() -> nn.Module:
    return tf.ViTModel(tf.ViTConfig(**VISION))


def clip() -> nn.Module:
    text = TEXT | {"max_position_embeddings": 16}
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))


def siglip2_vision() -> nn.Module:
    config = VISION | {"num_patches": 16}
    config.pop("image_size")
    return tf.Siglip2VisionModel(tf.Siglip2VisionConfig(**config))


def videomae() -> nn.Module:
    config = tf.VideoMAEConfig(**VISION, num_frames=4, tubelet_size=2)
    return tf.VideoMAEModel(config)


def wav2vec2() -> nn.Module:
    return tf.Wav2Vec2Model(
        tf.Wav2Vec2Config(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            conv_dim=(32, 32, 32),
            conv_kernel=(10, 8, 8),
            conv_stride=(5, 8, 8),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
        )
    )


def whisper() -> nn.Module:
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            vocab_size=200,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=40,
            max_target_positions=64,
            num_mel_bins=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def speech2text() -> nn.Module:
    return tf.Speech2TextModel(
        tf.Speech2TextConfig(
            vocab_size=200,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            input_feat_per_channel=12,
            conv_channels=32,
        )
    )


def layoutlm() -> nn.Module:
    config = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}
    return tf.LayoutLMModel(tf.LayoutLMConfig(**config, max_2d_position_embeddings=64))


def time_series() -> nn.Module:
    return tf.TimeSeriesTransformerModel(
        tf.TimeSeriesTransformerConfig(
            prediction_length=4,
            context_length=8,
            lags_sequence=[1, 2, 7],
            num_time_features=2,
            num_static_categorical_features=1,
            cardinality=[3],
            embedding_dimension=[2],
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
        )
    )


def multiple_choice() -> nn.Module:
    config = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}
    return tf.BertForMultipleChoice(tf.BertConfig(**config))


def musicgen() -> nn.Module:
    return tf.MusicgenForCausalLM(
        tf.MusicgenDecoderConfig(
            vocab_size=100,
            hidden_size=16,
            ffn_dim=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_codebooks=3,
        )
    )


CASES: list[tuple[Callable[[], nn.Module], str, dict[str, tuple[int, ...]]]] = [
    (llama, "text", {"input_ids": (2, 32), "attention_mask": (2, 32)}),
    (t5, "encoder_decoder", {"input_ids": (2, 32), "decoder_input_ids": (2, 32)}),
    (vit, "vision", {"pixel_values": (2, 3, 32, 32)}),
    (clip, "vision+text", {"input_ids": (2, 16), "pixel_values": (2, 3, 32, 32)}),
    (
        siglip2_vision,
        "vision",
        {
            "pixel_values": (2, 16, 192),
            "pixel_attention_mask": (2, 16),
            "spatial_shapes": (2, 2),
        },
    ),
    (videomae, "video", {"pixel_values": (2, 4, 3, 32, 32)}),
    (wav2vec2, "audio", {"input_values": (2, 19200)}),
    (whisper, "audio+encoder_decoder", {"input_features": (2, 16, 80)}),
    (speech2text, "audio+encoder_decoder", {"input_features": (2, 128, 12)}),
    (layoutlm, "document", {"bbox": (2, 32, 4)}),
    (
        time_series,
        "time_series",
        {
            "past_values": (2, 15),
            "past_time_features": (2, 15, 2),
            "static_categorical_features": (2, 1),
            "future_values": (2, 4),
        },
    ),
    (multiple_choice, "text", {"input_ids": (2, 2, 32), "attention_mask": (2, 2, 32)}),
    (musicgen, "text", {"input_ids": (6, 32)}),
]


@pytest.mark.parametrize(
    ("build", "strategy", "shapes"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_forward_accepts_inputs(
    make: Make,
    build: Callable[[], nn.Module],
    strategy: str,
    shapes: dict[str, tuple[int, ...]],
) -> None:
    torch.manual_seed(0)
    module = build()
    inputs = make(module)
    assert strategy in inputs.strategy
    found = {name: tuple(inputs.kwargs[name].shape) for name in shapes}
    assert found == shapes
    forward(module, inputs)


def test_ids_are_ordinary_words_and_end_once(make: Make) -> None:
    ids = make(llama()).kwargs["input_ids"]
    assert (ids[:, -1] == 2).all()
    assert ids[:, :-1].min() > 2
    assert ids.max() < 200


def test_same_inputs_whatever_the_global_seed(make: Make) -> None:
    module = vit()
    torch.manual_seed(1)
    first = make(module).kwargs["pixel_values"]
    torch.manual_seed(2)
    torch.randn(7)
    assert torch.equal(first, make(module).kwargs["pixel_values"])


def test_floats_take_the_dtype_of_the_module(make: Make) -> None:
    inputs = make(vit().to(torch.bfloat16))
    assert inputs.kwargs["pixel_values"].dtype is torch.bfloat16


def test_dynamic_dimensions_are_batch_and_sequence(make: Make) -> None:
    assert make(llama()).dynamic_shapes == {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "sequence"},
    }
    assert make(vit()).dynamic_shapes == {"pixel_values": {0: "batch"}}
    decoder: Any = make(t5()).dynamic_shapes["decoder_input_ids"]
    assert decoder == {0: "batch", 1: "decoder_sequence"}
