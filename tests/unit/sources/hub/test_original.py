from __future__ import annotations

from typing import Any

import pytest

from compilewatch.sources.hub.repositories import converted, converted_mamba

LLAMA_2_7B = {
    "dim": 4096,
    "multiple_of": 256,
    "n_heads": 32,
    "n_layers": 32,
    "norm_eps": 1e-05,
    "vocab_size": -1,
}
LLAMA_3_8B = {
    **LLAMA_2_7B,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "multiple_of": 1024,
    "ffn_dim_multiplier": 1.3,
    "rope_theta": 500000.0,
}
MISTRAL_7B = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "norm_eps": 1e-05,
    "vocab_size": 32000,
}
MIXTRAL = {**MISTRAL_7B, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (LLAMA_2_7B, ("llama", 11008, 32, 32000)),
        (LLAMA_3_8B, ("llama", 14336, 8, 128256)),
        (MISTRAL_7B, ("mistral", 14336, 8, 32000)),
        (MIXTRAL, ("mixtral", 14336, 8, 32000)),
    ],
)
def test_sizes_are_those_of_the_published_configurations(
    params: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    config = converted(params)
    assert config is not None
    keys = ("model_type", "intermediate_size", "num_key_value_heads", "vocab_size")
    assert tuple(config[key] for key in keys) == expected
    assert (config["hidden_size"], config["num_hidden_layers"]) == (4096, 32)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"dim": "wide", "n_layers": 2, "n_heads": 2, "norm_eps": 1e-5},
        {**MISTRAL_7B, "vision_encoder": {}},
        {**MISTRAL_7B, "vocab_size": "large"},
    ],
)
def test_other_forms_are_not_guessed(params: dict[str, Any]) -> None:
    assert converted(params) is None


MAMBA_130M = {
    "d_model": 768,
    "n_layer": 24,
    "vocab_size": 50277,
    "ssm_cfg": {},
    "rms_norm": True,
    "pad_vocab_size_multiple": 8,
}


def test_a_configuration_of_mamba_ssm_has_the_sizes_of_the_class() -> None:
    assert converted_mamba(MAMBA_130M) == {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 768,
        "num_hidden_layers": 24,
        # The embeddings have a multiple of eight rows.
        "vocab_size": 50280,
    }


@pytest.mark.parametrize(
    "config",
    [
        {**MAMBA_130M, "ssm_cfg": {"layer": "Mamba2"}},
        {**MAMBA_130M, "model_type": "mamba"},
        {**MAMBA_130M, "d_model": "768"},
        {"d_model": 768, "n_layer": 24, "vocab_size": 9},
        {},
    ],
)
def test_other_configurations_are_not_those_of_mamba_ssm(config: dict[str, Any]) -> None:
    assert converted_mamba(config) is None
