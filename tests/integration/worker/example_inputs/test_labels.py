"""Labels: what a model predicts decides their shape, and a finite loss comes out."""

from typing import Any

import pytest
import torch

from compilewatch.records import Mode
from tests.integration.worker.example_inputs import conftest
from tests.integration.worker.example_inputs.conftest import BERT, TEXT, VISION, Make, tiny

pytestmark = pytest.mark.torch

SEGFORMER: dict[str, Any] = {"num_encoder_blocks": 1, "decoder_hidden_size": 16, "image_size": 32}
SEGFORMER |= {"depths": [1], "sr_ratios": [1], "hidden_sizes": [16], "patch_sizes": [7]}
SEGFORMER |= {"strides": [4], "num_attention_heads": [2], "mlp_ratios": [2], "num_labels": 3}
MUSICGEN = {"vocab_size": 20, "num_hidden_layers": 1, "ffn_dim": 32, "num_attention_heads": 2}
MUSICGEN |= {"hidden_size": 16, "num_codebooks": 4, "pad_token_id": 19, "bos_token_id": 19}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}
SPAN: dict[str, tuple[int, ...]] = {"start_positions": (2,), "end_positions": (2,)}

CASES: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("LlamaForCausalLM", TEXT, {"labels": (2, 32)}),
    ("BertForSequenceClassification", BERT, {"labels": (2,)}),
    ("BertForTokenClassification", BERT, {"labels": (2, 32)}),
    ("BertForQuestionAnswering", BERT, SPAN),
    ("BertForMultipleChoice", BERT, {"labels": (2,)}),
    ("BertForPreTraining", BERT, {"labels": (2, 32), "next_sentence_label": (2,)}),
    ("ViTForImageClassification", VISION | {"num_labels": 3}, {"labels": (2,)}),
    ("SegformerForSemanticSegmentation", SEGFORMER, {"labels": (2, 32, 32)}),
    ("Wav2Vec2ForCTC", conftest.WAV2VEC2 | {"vocab_size": 20}, {"labels": (2, 29)}),
    ("MusicgenForCausalLM", MUSICGEN, {"labels": (2, 32, 4)}),
    ("GPT2DoubleHeadsModel", GPT2, {"labels": (2, 32), "mc_labels": ()}),
]


@pytest.mark.parametrize(("name", "values", "shapes"), CASES, ids=[case[0] for case in CASES])
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
