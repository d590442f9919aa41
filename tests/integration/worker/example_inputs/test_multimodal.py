"""Placeholders: as many as the model itself makes features, in any tier."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch.records import Mode
from compilewatch.worker.model.construct import to_fake
from tests.integration.worker.example_inputs import conftest
from tests.integration.worker.example_inputs.conftest import TEXT, Make, forward, tiny

pytestmark = pytest.mark.torch


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


def test_types_of_tokens_that_only_training_needs(make: Make) -> None:
    class NeedsTypesInTraining(nn.Module):
        """As PaliGemma of Transformers 5.5.4."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = llava()
            self.config = self.inner.config

        def get_image_features(self, pixel_values: torch.Tensor) -> Any:
            return self.inner.get_image_features(pixel_values)

        def forward(
            self,
            input_ids: torch.Tensor,
            pixel_values: torch.Tensor,
            token_type_ids: torch.Tensor | None = None,
        ) -> torch.Tensor:
            assert token_type_ids is not None or not self.training
            return self.inner(input_ids=input_ids, pixel_values=pixel_values).logits

    module = NeedsTypesInTraining()
    assert "token_type_ids" not in make(module.eval()).kwargs
    inputs = make(module.train(), mode=Mode.TRAIN)
    assert torch.equal(inputs.kwargs["token_type_ids"] == 1, inputs.kwargs["input_ids"] == 150)
    forward(module, inputs)
