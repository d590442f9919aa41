"""Tiny models of each modality, and the call that makes inputs for them."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.records import Build, ClassBuild, Mode, Request, Target
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.model import overrides
from compilewatch.worker.model.overrides import Override
from compilewatch.worker.subject import ExampleInputs
from tests import factories

Make = Callable[..., ExampleInputs]

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 4}
TOKENS = {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = SIZES | TOKENS
TEXT = BERT | {"num_key_value_heads": 2}
VISION = SIZES | {"image_size": 32, "patch_size": 8}
SEQ2SEQ = {
    "vocab_size": 200,
    "d_model": 32,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
}
WAV2VEC2 = SIZES | {
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 8, 8),
    "conv_stride": (5, 8, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def tiny(class_name: str, **values: Any) -> nn.Module:
    """A model of Transformers with these values in its configuration."""
    model_class = getattr(transformers, class_name)
    module: nn.Module = model_class(model_class.config_class(**values))
    return module


@pytest.fixture(scope="session")
def make() -> Make:
    """`make(module, …)` -> the inputs of that module, real unless a fake mode is given.

    `override` is the table of an override for it.
    """

    def call(
        module: nn.Module,
        *,
        mode: Mode = Mode.EVAL,
        override: dict[str, Any] | None = None,
        fake_mode: FakeTensorMode | None = None,
        build: Build | None = None,
        inputs_file: str | None = None,
    ) -> ExampleInputs:
        name = type(module).__name__
        build = build or ClassBuild(class_name=name)
        target = Target(mode=mode)
        spec = factories.spec("model", build=build)
        request = Request(model=spec, target=target, key="key", inputs_file=inputs_file)
        date, inputs = datetime.date(2026, 11, 21), override or {}
        line = Override(reason="a test", date=date, classes=(name,), inputs=inputs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(overrides, "overrides_of", lambda _: (line,))
            return make_inputs(module, request, fake_mode)

    return call


def forward(module: nn.Module, inputs: ExampleInputs) -> Any:
    """One eager call without gradients."""
    with torch.no_grad():
        return module.eval()(*inputs.args, **inputs.kwargs)
