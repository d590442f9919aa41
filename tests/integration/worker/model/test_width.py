"""Narrow configurations: under the budget, every ratio kept."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from compilewatch.worker.model.width import PARAMETER_BUDGET, narrow

pytestmark = pytest.mark.torch


def _squares(config: Any) -> int:
    """A stand-in for counting: a model as large as the square of its width."""
    text = getattr(config, "text_config", config)
    return int(text.hidden_size**2 * 64)


def test_a_small_configuration_is_left_alone() -> None:
    config = transformers.LlamaConfig(hidden_size=64)

    assert narrow(config, _squares) is config


def test_the_smallest_factor_that_fits_divides_widths_and_heads_alike() -> None:
    full = transformers.LlamaConfig()
    made = narrow(full, _squares)

    factor = full.hidden_size // made.hidden_size
    assert _squares(made) <= PARAMETER_BUDGET < _squares(full)
    assert made.num_attention_heads * factor == full.num_attention_heads
    assert made.head_dim == full.head_dim
    assert made.vocab_size == full.vocab_size
    assert full.hidden_size == 4096


def test_what_cannot_be_built_is_not_chosen() -> None:
    full = transformers.LlamaConfig()

    made = narrow(full, lambda c: None if c.hidden_size == 1024 else _squares(c))

    assert made.hidden_size < 1024


def test_a_tower_whose_heads_do_not_divide_keeps_its_width() -> None:
    full = transformers.LlavaConfig(vision_config={"num_attention_heads": 7, "hidden_size": 448})
    made = narrow(full, _squares)

    assert made.text_config.hidden_size < full.text_config.hidden_size
    assert made.vision_config.hidden_size == 448
    assert made.vision_config.num_attention_heads == 7


def test_a_tower_of_several_widths_hands_over_the_one_that_its_parent_compares() -> None:
    """The size of CLAP's common space: its text part had half of what its sound part had."""
    made = narrow(transformers.ClapConfig(), lambda config: config.projection_dim * 200_000)

    assert made.projection_dim < transformers.ClapConfig().projection_dim
    assert made.text_config.projection_dim == made.audio_config.projection_dim


def test_experts_go_first_and_routing_still_has_a_choice() -> None:
    full = transformers.DeepseekV3Config()
    made = narrow(full, lambda c: c.n_routed_experts * 10_000_000)

    assert made.n_routed_experts == 4
    assert made.num_experts_per_tok <= made.n_routed_experts // made.n_group * made.topk_group
    assert made.hidden_size == full.hidden_size
