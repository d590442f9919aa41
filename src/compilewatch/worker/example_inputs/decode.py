"""Example inputs for one step of generation: one token, with the cache of a prefill."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from compilewatch.errors import InputsError
from compilewatch.worker.subject import ExampleInputs, Subject

SPARE_TOKENS = 8
"""Number of tokens that fit into a static cache after the prefill."""


def decode_variants(subject: Subject) -> dict[str, Callable[[Subject], Subject]]:
    """Return how to make the subject of a decoder's step for one token, by variant.

    Only models that generate text with a decoder alone have such variants.
    """
    parameters = inspect.signature(subject.module.forward).parameters
    generates = getattr(subject.module, "can_generate", lambda: False)()
    arguments = subject.inputs.kwargs
    if not generates or "past_key_values" not in parameters or "input_ids" not in arguments:
        return {}
    if "decoder_input_ids" in parameters:
        return {}
    return {
        "decode-dynamic-cache": partial(_decode, static=False),
        "decode-static-cache": partial(_decode, static=True),
    }


def _decode(subject: Subject, *, static: bool) -> Subject:
    """Run the prefill, and return its cache with one more token.

    Raises InputsError if the model returns no cache; errors of the model propagate.
    """
    from transformers.cache_utils import DynamicCache, StaticCache

    config: Any = subject.module.config
    arguments = {k: v for k, v in subject.inputs.kwargs.items() if k != "labels"}
    length = int(arguments["input_ids"].shape[1])
    with torch.no_grad(), subject.tensors():
        cache = (
            StaticCache(config=config, max_cache_len=length + SPARE_TOKENS)
            if static
            else DynamicCache(config=config)
        )
        outputs = subject.module(**arguments, past_key_values=cache, use_cache=True)
        cache = getattr(outputs, "past_key_values", None)
        if cache is None:
            raise InputsError("the model returns no cache")
        kwargs: dict[str, Any] = {
            "input_ids": arguments["input_ids"][:, -1:],
            "past_key_values": cache,
            "use_cache": True,
        }
        mask = arguments.get("attention_mask")
        if mask is not None:
            kwargs["attention_mask"] = torch.cat([mask, mask[:, -1:]], dim=1)
    return replace(subject, inputs=ExampleInputs(strategy="decode", kwargs=kwargs))
