"""Configurations of original checkpoints, as those of the classes of Transformers.

Llama's, Mistral's and Mamba's own code stores sizes under other names than Transformers does. The
conversions are those of `convert_llama_weights_to_hf.py`, `convert_mistral_weights_to_hf.py` and
`convert_mamba_ssm_checkpoint_to_pytorch.py` of Transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ORIGINAL_CONFIG = "original/config.json"
"""Where the converted configuration is stored in the folder of a repository."""

_MADE_OF = ("dim", "n_layers", "n_heads", "norm_eps")


def converted(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration with the sizes of a `params.json`; None for one of another form."""
    sizes = [params.get(name) for name in _MADE_OF]
    if not all(isinstance(size, int | float) and size > 0 for size in sizes):
        return None
    vocabulary = params.get("vocab_size", 0)
    if not isinstance(vocabulary, int) or "vision_encoder" in params:
        return None
    config: dict[str, Any] = {
        "hidden_size": params["dim"],
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params.get("n_kv_heads", params["n_heads"]),
        "rms_norm_eps": params["norm_eps"],
        # Llama 1 and 2 store -1, and leave the size to their tokenizer.
        "vocab_size": vocabulary if vocabulary > 0 else 32000,
        "rope_theta": params.get("rope_theta", 10000.0),
    }
    if "hidden_dim" not in params:
        config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        return config | {"intermediate_size": _intermediate_size(params)}
    if "head_dim" in params:
        config["head_dim"] = params["head_dim"]
    config["intermediate_size"] = params["hidden_dim"]
    experts = params.get("moe")
    if isinstance(experts, Mapping):
        config |= {
            "num_local_experts": experts.get("num_experts", 8),
            "num_experts_per_tok": experts.get("num_experts_per_tok", 2),
        }
        return config | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    return config | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}


def converted_mamba(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration with the sizes of the package mamba-ssm; None for another one.

    Its second generation names a layer in `ssm_cfg` and is another class.
    """
    sizes = [config.get(name) for name in ("d_model", "n_layer", "vocab_size")]
    layer = config.get("ssm_cfg")
    if "model_type" in config or not isinstance(layer, Mapping) or "layer" in layer:
        return None
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    multiple = int(config.get("pad_vocab_size_multiple", 8))
    return {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layer"],
        "vocab_size": multiple * -(-config["vocab_size"] // multiple),
    }


def _intermediate_size(params: Mapping[str, Any]) -> int:
    multiple = int(params.get("multiple_of", 256))
    size = int(float(params.get("ffn_dim_multiplier") or 1) * int(8 * int(params["dim"]) / 3))
    return multiple * -(-size // multiple)
