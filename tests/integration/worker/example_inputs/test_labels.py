"""Labels: what a model predicts decides their shape, and a finite loss comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers as tf
from torch import nn

from compilewatch.records import Mode
from tests.integration.worker.example_inputs.conftest import TEXT, VISION, Make

pytestmark = pytest.mark.torch

BERT = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}


def bert(head: str) -> nn.Module:
    module: nn.Module = getattr(tf, f"BertFor{head}")(tf.BertConfig(**BERT, num_labels=2))
    return module


def causal() -> nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT))


def image_classes() -> nn.Module:
    return tf.ViTForImageClassification(tf.ViTConfig(**VISION, num_labels=3))


def segmentation() -> nn.Module:
    return tf.SegformerForSemanticSegmentation(
        tf.SegformerConfig(
            num_labels=3,
            num_encoder_blocks=1,
            depths=[1],
            sr_ratios=[1],
            hidden_sizes=[16],
            patch_sizes=[7],
            strides=[4],
            num_attention_heads=[2],
            mlp_ratios=[2],
            decoder_hidden_size=16,
            image_size=32,
        )
    )


def ctc() -> nn.Module:
    return tf.Wav2Vec2ForCTC(
        tf.Wav2Vec2Config(
            vocab_size=20,
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


def codebooks() -> nn.Module:
    config = tf.MusicgenDecoderConfig(
        vocab_size=20,
        num_hidden_layers=1,
        ffn_dim=32,
        num_attention_heads=2,
        hidden_size=16,
        num_codebooks=4,
        pad_token_id=19,
        bos_token_id=19,
    )
    return tf.MusicgenForCausalLM(config)


def two_heads() -> nn.Module:
    return tf.GPT2DoubleHeadsModel(tf.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2))


CASES: list[tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]] = [
    (causal, {"labels": (2, 32)}),
    (lambda: bert("SequenceClassification"), {"labels": (2,)}),
    (lambda: bert("TokenClassification"), {"labels": (2, 32)}),
    (lambda: bert("QuestionAnswering"), {"start_positions": (2,), "end_positions": (2,)}),
    (lambda: bert("MultipleChoice"), {"labels": (2,)}),
    (lambda: bert("PreTraining"), {"labels": (2, 32), "next_sentence_label": (2,)}),
    (image_classes, {"labels": (2,)}),
    (segmentation, {"labels": (2, 32, 32)}),
    (ctc, {"labels": (2, 29)}),
    (codebooks, {"labels": (2, 32, 4)}),
    (two_heads, {"labels": (2, 32), "mc_labels": ()}),
]
NAMES = [
    *("causal", "class", "token", "span", "choice", "pretraining", "image", "pixel", "ctc"),
    *("codebooks", "two heads"),
]


@pytest.mark.parametrize(("build", "shapes"), CASES, ids=NAMES)
def test_labels_give_a_finite_loss(
    make: Make, build: Callable[[], nn.Module], shapes: dict[str, tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    module = build().train()
    inputs = make(module, mode=Mode.TRAIN)
    assert {name: tuple(inputs.kwargs[name].shape) for name in shapes} == shapes
    loss = module(**inputs.kwargs).loss
    assert torch.isfinite(loss)
    assert loss.requires_grad


def test_no_labels_in_eval_mode(make: Make) -> None:
    assert "labels" not in make(causal()).kwargs


def test_a_model_without_a_loss_gets_no_labels(make: Make) -> None:
    inputs = make(tf.BertModel(tf.BertConfig(**BERT)), mode=Mode.TRAIN)
    assert set(inputs.kwargs) == {"input_ids", "attention_mask"}


def test_objects_for_detection(make: Make) -> None:
    module = tf.YolosForObjectDetection(
        tf.YolosConfig(**VISION | {"image_size": [32, 32]}, num_detection_tokens=5, num_labels=3)
    )
    labels = make(module, mode=Mode.TRAIN).kwargs["labels"]
    assert [set(label) for label in labels] == [{"boxes", "class_labels", "masks"}] * 2
    assert labels[0]["boxes"].shape == (2, 4)
    assert int(labels[0]["class_labels"].max()) < 3
