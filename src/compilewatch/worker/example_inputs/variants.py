"""The other calls of a model: without one of its media, and one step of generation.

A model takes another path through its forward when it gets an image, so a model that compiles on
text alone can break with an image."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from compilewatch.errors import InputsError
from compilewatch.worker.example_inputs.context import read_signature
from compilewatch.worker.example_inputs.rules import MEDIA
from compilewatch.worker.subject import ExampleInputs, Subject

_WORDS: dict[str, tuple[str, ...]] = {
    "video": ("video", "second_per_grid"),
    "audio": ("audio", "speech", "input_features", "input_values", "feature_attention_mask"),
    "image": (
        "image",
        "pixel",
        "vision",
        "visual",
        "patch",
        "aspect_ratio",
        "cross_attention_mask",
    ),
}
"""Words in the names of the arguments of a medium; the first medium that matches counts."""


def medium_of(argument: str) -> str | None:
    """Return the medium that an argument belongs to, None for text and everything else."""
    return next((m for m, words in _WORDS.items() if any(w in argument for w in words)), None)


def main_variant(inputs: ExampleInputs) -> str:
    """Return the name of the variant of all media, such as `text+image`; "" without several."""
    media = [m for m, names in MEDIA.items() if any(name in inputs.kwargs for name in names)]
    return "+".join(("text", *media)) if media and "input_ids" in inputs.kwargs else ""


def other_variants(module: nn.Module, inputs: ExampleInputs) -> dict[str, frozenset[str]]:
    """Return the other variants, each with the arguments that it does without.

    A model that requires a medium has none: CLIP always gets text and an image.
    """
    main = main_variant(inputs)
    if not main or inputs.strategy in ("file", "factory"):
        return {}
    signature = read_signature(module)
    if any(medium_of(name) for name in signature.required):
        return {}
    media = main.split("+")[1:]
    of_medium = {name: medium_of(name) for name in signature.parameters}
    variants = {"text": frozenset(name for name, medium in of_medium.items() if medium)}
    if len(media) > 1:
        for kept in media:
            variants[f"text+{kept}"] = frozenset(n for n, m in of_medium.items() if m and m != kept)
    return variants


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
