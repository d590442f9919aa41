"""Overrides of inputs: what they set, what they drop, and what is wrong with them."""

from __future__ import annotations

import datetime
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
from compilewatch.worker.model.overrides import Override, load_overrides
from tests.integration.worker.example_inputs.conftest import TEXT, Make, forward

pytestmark = pytest.mark.torch


def llama() -> nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT))


def override(**inputs: Any) -> Override:
    return Override(
        reason="a test",
        date=datetime.date(2026, 11, 21),
        model_types=("llama",),
        inputs=inputs,
    )


def test_a_tensor_is_given_in_sizes_of_batch_sequence_and_configuration(make: Make) -> None:
    spec = {"shape": ["batch", "sequence", "config.hidden_size"], "fill": "uniform"}
    inputs = make(llama(), override=override(inputs_embeds=spec, drop=["input_ids"]))
    assert inputs.kwargs["inputs_embeds"].shape == (2, 32, 32)
    assert "input_ids" not in inputs.kwargs
    assert "attention_mask" not in inputs.kwargs
    assert "override" in inputs.strategy


def test_batch_and_sequence_reach_the_rules(make: Make) -> None:
    module = llama()
    inputs = make(module, override=override(batch=1, sequence=8))
    assert inputs.kwargs["input_ids"].shape == (1, 8)
    forward(module, inputs)


def test_a_product_of_sizes(make: Make) -> None:
    spec = {"shape": ["2*batch", "config.num_attention_heads*3"]}
    inputs = make(llama(), override=override(position_ids=spec))
    assert inputs.kwargs["position_ids"].shape == (4, 12)


def test_what_no_argument_is_called_is_left_out(make: Make) -> None:
    inputs = make(llama(), override=override(pixel_values={"shape": [2]}))
    assert "pixel_values" not in inputs.kwargs


@pytest.mark.parametrize(
    "table",
    [
        {"input_ids": {"shape": ["config.no_such"]}},
        {"input_ids": {"fill": "ones"}},
        {"batch": "two"},
        {"drop": "input_ids"},
    ],
)
def test_a_malformed_table_names_the_model(make: Make, table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="overrides: model: "):
        make(llama(), override=override(**table))


def test_shipped_overrides_are_well_formed() -> None:
    """For any model: every name in an expression counts as two."""
    tables = [o.inputs for o in load_overrides(data.OVERRIDES).override if o.inputs]
    assert tables
    for table in tables:
        msgspec.convert(table, AppliedSettings)
        for name in table.keys() - SETTINGS:
            from_spec(name, table[name], lambda _: 2, torch.float32)
