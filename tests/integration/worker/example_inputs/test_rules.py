"""One tiny model of each modality: its forward takes the inputs that rules make for it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch.records import Mode
from compilewatch.worker.example_inputs.sizes import inputs_of, sizes_of
from compilewatch.worker.model.construct import to_fake
from compilewatch.worker.subject import Subject
from tests import factories
from tests.integration.worker.example_inputs import conftest
from tests.integration.worker.example_inputs.conftest import BERT, TEXT, VISION, Make, forward, tiny

pytestmark = pytest.mark.torch

T5 = {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
DISTILBERT = {"vocab_size": 200, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 4}
SIGLIP2 = conftest.SIZES | {"patch_size": 8, "num_patches": 16}
CLIP = {"text_config": TEXT | {"max_position_embeddings": 16}, "vision_config": VISION}
CLIP |= {"projection_dim": 16}  # type: ignore[dict-item]
WHISPER = conftest.SEQ2SEQ | conftest.TOKENS | {"decoder_start_token_id": 1}
WHISPER |= {"max_source_positions": 40, "max_target_positions": 64, "num_mel_bins": 16}
SPEECH = conftest.SEQ2SEQ | {"input_feat_per_channel": 12, "conv_channels": 32}
SERIES: dict[str, Any] = conftest.SEQ2SEQ | {"prediction_length": 4, "context_length": 8}
SERIES |= {"lags_sequence": [1, 2, 7], "num_time_features": 2, "embedding_dimension": [2]}
SERIES |= {"num_static_categorical_features": 1, "cardinality": [3]}
MUSICGEN = {"vocab_size": 100, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1}
MUSICGEN |= {"num_attention_heads": 2, "num_codebooks": 3}

IDS, PIXELS = {"input_ids": (2, 32)}, {"pixel_values": (2, 3, 32, 32)}
PATCHES = {"pixel_values": (2, 16, 192), "pixel_attention_mask": (2, 16), "spatial_shapes": (2, 2)}
PAST = {"past_values": (2, 15), "past_time_features": (2, 15, 2), "future_values": (2, 4)}
PAST |= {"static_categorical_features": (2, 1)}
CHOICES = {"input_ids": (2, 2, 32), "attention_mask": (2, 2, 32)}
FILM, PAGE = (
    VISION | {"num_frames": 4, "tubelet_size": 2},
    BERT | {"max_2d_position_embeddings": 64},
)
HEARD = "audio+encoder_decoder"

CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("LlamaForCausalLM", TEXT, "text", IDS | {"attention_mask": (2, 32)}),
    ("T5ForConditionalGeneration", T5, "encoder_decoder", IDS | {"decoder_input_ids": (2, 32)}),
    ("ViTModel", VISION, "vision", PIXELS),
    ("CLIPModel", CLIP, "vision+text", PIXELS | {"input_ids": (2, 16)}),
    ("Siglip2VisionModel", SIGLIP2, "vision", PATCHES),
    ("VideoMAEModel", FILM, "video", {"pixel_values": (2, 4, 3, 32, 32)}),
    ("Wav2Vec2Model", conftest.WAV2VEC2, "audio", {"input_values": (2, 19200)}),
    ("WhisperForConditionalGeneration", WHISPER, HEARD, {"input_features": (2, 16, 80)}),
    ("Speech2TextModel", SPEECH, HEARD, {"input_features": (2, 128, 12)}),
    ("LayoutLMModel", PAGE, "document", {"bbox": (2, 32, 4)}),
    ("TimeSeriesTransformerModel", SERIES, "time_series", PAST),
    ("BertForMultipleChoice", BERT, "text", CHOICES),
    ("DistilBertModel", DISTILBERT, "text", IDS),
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


def llava() -> nn.Module:
    return tiny(
        "LlavaForConditionalGeneration",
        text_config=TEXT | {"model_type": "llama"},
        vision_config=conftest.VISION | {"model_type": "clip_vision_model"},
        image_token_index=150,
        vision_feature_layer=-1,
    )


def test_image_tokens_match_the_patches_of_the_tower_in_any_tier(make: Make) -> None:
    module = llava()
    inputs = make(module)
    per_row = (inputs.kwargs["input_ids"] == 150).sum(dim=1)
    assert per_row.tolist() == [16, 16]  # (32 / 8) squared
    assert inputs.strategy == "vision+text"
    forward(module, inputs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = make(to_fake(llava(), mode), fake_mode=mode).kwargs
    assert all(isinstance(value, FakeTensor) for value in fake.values())
    shapes = {name: value.shape for name, value in fake.items()}
    assert shapes == {name: value.shape for name, value in inputs.kwargs.items()}
    # Without a mode, a fake model gets real inputs.
    real = make(to_fake(llava(), mode)).kwargs
    assert torch.equal(real["input_ids"], inputs.kwargs["input_ids"])
    assert not any(isinstance(value, FakeTensor) for value in real.values())


def test_other_sizes_keep_the_tokens_of_an_image_and_call_no_model(make: Make) -> None:
    model, maker = llava(), llava()
    subject = Subject(
        request=factories.request("LlavaForConditionalGeneration"),
        module=model,
        inputs=make(maker),
        fake_mode=None,
        artifacts=Path(),
        enter=lambda _: None,
        maker=maker,
    )
    assert {"batch": 2, "sequence": 32}.items() <= sizes_of(subject).items()
    called: list[object] = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: called.append(module))
    inputs = inputs_of(subject, {"batch": 3})
    assert inputs.kwargs["input_ids"].shape == (3, 32 + 16)
    assert inputs_of(subject, {"sequence": 20}).kwargs["input_ids"].shape == (2, 20 + 16)
    assert not called
    forward(model, inputs)


def test_image_tokens_match_merged_patches_of_a_grid(make: Make) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    vision = {"embed_dim": 32, "hidden_size": 32, "depth": 1, "num_heads": 4, "patch_size": 4}
    module = tiny(
        "Qwen2VLForConditionalGeneration",
        text_config=TEXT | {"rope_parameters": rope},
        vision_config=vision | {"spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=150,
        video_token_id=151,
        vision_start_token_id=152,
        vision_end_token_id=153,
    )
    inputs = make(module)
    assert inputs.kwargs["pixel_values"].shape == (32, 3 * 2 * 4 * 4)
    assert inputs.kwargs["image_grid_thw"].tolist() == [[1, 4, 4], [1, 4, 4]]
    image = inputs.kwargs["input_ids"] == 150
    assert image.sum(dim=1).tolist() == [4, 4]
    assert torch.equal(inputs.kwargs["mm_token_type_ids"] == 1, image)
    forward(module, inputs)


def test_audio_tokens_match_the_frames_of_the_encoder(make: Make) -> None:
    audio = {k: v for k, v in conftest.SEQ2SEQ.items() if not k.startswith(("decoder", "vocab"))}
    audio |= {"num_mel_bins": 16, "max_source_positions": 40}
    module = tiny(
        "Qwen2AudioForConditionalGeneration",
        text_config=TEXT | {"model_type": "qwen2"},
        audio_config=audio | {"model_type": "qwen2_audio_encoder"},
        audio_token_index=150,
    )
    inputs = make(module)
    assert inputs.kwargs["input_features"].shape == (2, 16, 80)
    assert (inputs.kwargs["input_ids"] == 150).sum(dim=1).tolist() == [20, 20]
    forward(module, inputs)


class NeedsTypesInTraining(nn.Module):
    """As PaliGemma of Transformers 5.5.4."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = llava()
        self.config = self.inner.config
        self.get_image_features = self.inner.get_image_features

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert token_type_ids is not None or not self.training
        return self.inner(input_ids=input_ids, pixel_values=pixel_values).logits


def test_types_of_tokens_that_only_training_needs(make: Make) -> None:
    module = NeedsTypesInTraining()
    assert "token_type_ids" not in make(module.eval()).kwargs
    inputs = make(module.train(), mode=Mode.TRAIN)
    assert torch.equal(inputs.kwargs["token_type_ids"] == 1, inputs.kwargs["input_ids"] == 150)
    forward(module, inputs)


SEGFORMER: dict[str, Any] = {"num_encoder_blocks": 1, "decoder_hidden_size": 16, "image_size": 32}
SEGFORMER |= {"depths": [1], "sr_ratios": [1], "hidden_sizes": [16], "patch_sizes": [7]}
SEGFORMER |= {"strides": [4], "num_attention_heads": [2], "mlp_ratios": [2], "num_labels": 3}
MUSIC_LABELLED = {"vocab_size": 20, "num_hidden_layers": 1, "ffn_dim": 32, "num_attention_heads": 2}
MUSIC_LABELLED |= {"hidden_size": 16, "num_codebooks": 4, "pad_token_id": 19, "bos_token_id": 19}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}

OF_LABELS: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("LlamaForCausalLM", TEXT, {"labels": (2, 32)}),
    ("BertForSequenceClassification", BERT, {"labels": (2,)}),
    ("BertForTokenClassification", BERT, {"labels": (2, 32)}),
    ("BertForQuestionAnswering", BERT, {"start_positions": (2,), "end_positions": (2,)}),
    ("BertForMultipleChoice", BERT, {"labels": (2,)}),
    ("BertForPreTraining", BERT, {"labels": (2, 32), "next_sentence_label": (2,)}),
    ("ViTForImageClassification", VISION | {"num_labels": 3}, {"labels": (2,)}),
    ("SegformerForSemanticSegmentation", SEGFORMER, {"labels": (2, 32, 32)}),
    ("Wav2Vec2ForCTC", conftest.WAV2VEC2 | {"vocab_size": 20}, {"labels": (2, 29)}),
    ("MusicgenForCausalLM", MUSIC_LABELLED, {"labels": (2, 32, 4)}),
    ("GPT2DoubleHeadsModel", GPT2, {"labels": (2, 32), "mc_labels": ()}),
]


@pytest.mark.parametrize(
    ("name", "values", "shapes"), OF_LABELS, ids=[case[0] for case in OF_LABELS]
)
def test_labels_give_a_finite_loss(
    make: Make, name: str, values: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    module = tiny(name, **values).train()
    inputs = make(module, mode=Mode.TRAIN)
    assert {name: tuple(inputs.kwargs[name].shape) for name in shapes} == shapes
    loss = module(**inputs.kwargs).loss
    assert torch.isfinite(loss)
    assert loss.requires_grad


def test_no_labels_in_eval_mode_nor_without_a_loss(make: Make) -> None:
    assert "labels" not in make(tiny("LlamaForCausalLM", **TEXT)).kwargs
    inputs = make(tiny("BertModel", **BERT), mode=Mode.TRAIN)
    assert set(inputs.kwargs) == {"input_ids", "attention_mask"}


def test_objects_for_detection(make: Make) -> None:
    values = VISION | {"image_size": [32, 32], "num_detection_tokens": 5, "num_labels": 3}
    labels = make(tiny("YolosForObjectDetection", **values), mode=Mode.TRAIN).kwargs["labels"]
    assert [set(label) for label in labels] == [{"boxes", "class_labels", "masks"}] * 2
    assert labels[0]["boxes"].shape == (2, 4)
    assert int(labels[0]["class_labels"].max()) < 3
