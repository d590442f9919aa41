"""Which configuration a class takes, and which part of a model is evaluated."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from compilewatch.worker.model.architectures import configuration_class
from compilewatch.worker.model.resolve import generation_step

pytestmark = pytest.mark.torch


class AutoConfig:
    """A part whose type the parent does not fix: it has no model type."""


class OddTextConfig:
    model_type = "odd_text"


class OddDecoderConfig:
    model_type = "odd_decoder"


class OddTextEncoderConfig:
    model_type = "odd_text_encoder"
    sub_configs: ClassVar = {"decoder": OddDecoderConfig}


class OddConfig:
    model_type = "odd"
    sub_configs: ClassVar = {
        "text": OddTextConfig,
        "encoder": OddTextEncoderConfig,
        "vision": AutoConfig,
    }


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("OddModel", OddConfig),
        ("OddForCausalLM", OddConfig),
        ("OddTextModel", OddTextConfig),
        ("OddTextEncoderModel", OddTextEncoderConfig),
        ("OddDecoderForCausalLM", OddDecoderConfig),  # a part of a part
        ("OddVisionModel", OddConfig),  # nothing says which configuration that is
        ("AnotherModel", OddConfig),
    ],
)
def test_a_class_takes_the_part_that_it_is_named_after(class_name: str, expected: Any) -> None:
    model_class = type(class_name, (), {"config_class": OddConfig})
    assert configuration_class(model_class) is expected


class Stage(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


class Codec(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class OnlyGenerates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codec = Codec()
        self.first = Stage()
        self.second = Stage()

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self.codec(self.second.generate(self.first.generate(x)))


def test_a_class_without_forward_is_evaluated_on_a_step_of_its_generation() -> None:
    module = OnlyGenerates()
    assert generation_step(module) == ("first", module.first)


def test_a_class_with_a_forward_is_evaluated_itself() -> None:
    stage, empty = Stage(), nn.Module()
    assert generation_step(stage) == ("", stage)
    assert generation_step(empty) == ("", empty)
