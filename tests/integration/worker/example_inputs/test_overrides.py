"""Overrides of inputs: what they set, what they drop, and what is wrong with them."""

from typing import Any

import msgspec
import pytest
import torch
import transformers as tf
from torch import nn

from compilewatch import data
from compilewatch.errors import ConfigError
from compilewatch.worker.example_inputs import SETTINGS, AppliedSettings
from compilewatch.worker.example_inputs.files import from_spec
from compilewatch.worker.model.overrides import load_overrides
from tests.integration.worker.example_inputs.conftest import TEXT, Make, forward, tiny

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return tiny("LlamaForCausalLM", **TEXT | {"num_hidden_layers": 2})


def test_a_tensor_is_given_in_sizes_of_batch_sequence_and_configuration(
    make: Make, llama: nn.Module
) -> None:
    embeds = {"shape": ["batch", "sequence", "config.hidden_size"], "fill": "uniform"}
    product = {"shape": ["2*batch", "config.num_attention_heads*3"]}
    no_argument = {"shape": [2]}
    inputs = make(
        llama,
        override={
            "inputs_embeds": embeds,
            "position_ids": product,
            "pixel_values": no_argument,
            "drop": ["input_ids"],
        },
    )
    shapes = {name: tuple(value.shape) for name, value in inputs.kwargs.items()}
    assert shapes == {"inputs_embeds": (2, 32, 32), "position_ids": (4, 12)}
    assert "override" in inputs.strategy


def test_batch_and_sequence_reach_the_rules(make: Make, llama: nn.Module) -> None:
    inputs = make(llama, override={"batch": 1, "sequence": 8})
    assert inputs.kwargs["input_ids"].shape == (1, 8)
    forward(llama, inputs)


def test_a_cache_of_another_model_fits_the_attention_that_reads_it(
    make: Make, llama: nn.Module
) -> None:
    inputs = make(llama, override={"cache": 5, "drop": ["attention_mask"]})
    cache = inputs.kwargs["past_key_values"]
    assert isinstance(cache, tf.DynamicCache)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, 5, 8)] * 2
    assert forward(llama, inputs).logits.shape == (2, 32, 200)
    assert cache.get_seq_length() == 5 + 32


@pytest.mark.parametrize(
    "table",
    [
        {"input_ids": {"shape": ["config.no_such"]}},
        {"input_ids": {"fill": "ones"}},
        {"batch": "two"},
        {"drop": "input_ids"},
    ],
)
def test_a_malformed_table_names_the_model(
    make: Make, llama: nn.Module, table: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="overrides: model: "):
        make(llama, override=table)


def test_shipped_overrides_are_well_formed() -> None:
    """For any model: every name in an expression counts as two."""
    tables = [o.inputs for o in load_overrides(data.OVERRIDES).override if o.inputs]
    assert tables
    for table in tables:
        msgspec.convert(table, AppliedSettings)
        for name in table.keys() - SETTINGS:
            from_spec(name, table[name], lambda _: 2, torch.float32)
