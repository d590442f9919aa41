"""How the weights of a checkpoint are quantised, read from its configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compilewatch.records import Quantization

_METHODS = {
    "awq": Quantization.AWQ,
    "compressed-tensors": Quantization.COMPRESSED_TENSORS,
    "fbgemm_fp8": Quantization.FP8,
    "fp8": Quantization.FP8,
    "gptq": Quantization.GPTQ,
    "torchao": Quantization.TORCHAO,
}
"""`quant_method` as Transformers spells it (`QuantizationMethod`)."""


def quantization_of(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> Quantization | None:
    """Return the quantisation that a configuration says, None for weights as they were trained.

    `beside` is the `quantize_config.json` with which older releases of AutoGPTQ and AutoAWQ
    describe the weights instead of the configuration.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if isinstance(stated, Mapping):
        return _method(stated)
    if beside is not None:
        return Quantization.AWQ if "zero_point" in beside else Quantization.GPTQ
    return None


def _method(stated: Mapping[str, Any]) -> Quantization:
    method = str(stated.get("quant_method", "")).lower()
    eight = stated.get("load_in_8bit") or stated.get("_load_in_8bit")
    four = stated.get("load_in_4bit") or stated.get("_load_in_4bit")
    if method.startswith("bitsandbytes") or (not method and (eight or four)):
        return Quantization.BITSANDBYTES_8BIT if eight else Quantization.BITSANDBYTES_4BIT
    if method == "modelopt" and "FP8" in str(stated.get("quant_algo", "")):
        return Quantization.FP8
    return _METHODS.get(method, Quantization.OTHER)
