"""The other calls of a model: without one of its media, and one step of generation.

A model takes another path through its forward when it gets an image, so a model that compiles on
text alone can break with an image."""

import re
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


NEW_TOKENS = 8
"""How many tokens are asked for, which is what a static cache has room for after the prompt."""

_NOT_GENERATED_FROM = re.compile("labels|use_cache|past_key_values|cache_params|decoder_")
"""The beginning of arguments that `generate` makes by itself, and what is for training."""


class GenerationStep(BaseException):
    """Ends `generate` at a call of `module`; no Exception, which models catch.

    `attempt` is the index of the one of `attempts` that has come so far.
    """

    def __init__(self, module: nn.Module, inputs: ExampleInputs, attempt: int = 0) -> None:
        super().__init__("a step of generation")
        self.module, self.inputs, self.attempt = module, inputs, attempt


def decode_variants(subject: Subject) -> dict[str, Callable[[Subject], Subject]]:
    """Return how to make the subject of the first decode step of `generate`, by variant."""
    if not getattr(subject.module, "can_generate", lambda: False)():
        return {}

    def decode(inside: Subject, cache: str) -> Subject:
        step = decode_step(inside, cache=cache)
        return replace(inside, module=step.module, inputs=step.inputs)

    return {
        f"decode-{cache}-cache": partial(decode, cache=cache) for cache in ("dynamic", "static")
    }


def decode_step(subject: Subject, *, cache: str) -> GenerationStep:
    """Call `generate`, and return its first call of the model after the prefill.

    The module is the model itself, or the part that generates if `generate` never calls the model
    (the language model of BLIP-2).
    Raises InputsError if there is no such call or no static cache; the model's errors propagate.
    """
    from transformers import StaticCache

    called: set[nn.Module] = set()
    failures: list[Exception] = []

    def second_call_stops(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module in called and (module is subject.module or subject.module not in called):
            inputs = ExampleInputs(strategy="generate", args=args, kwargs=kwargs)
            raise GenerationStep(module, inputs, len(failures))
        called.add(module)

    hooks = [
        part.register_forward_pre_hook(second_call_stops, with_kwargs=True)
        for part in generating_parts(subject.module)
    ]
    try:
        for function, inputs in attempts(subject):
            called.clear()
            try:
                generate(subject, function, inputs, cache=cache, disable_compile=True)
                failures.append(InputsError("generate() makes no call after the prefill"))
            except Exception as error:  # noqa: BLE001  (model code)
                failures.append(error)
    except GenerationStep as step:
        own = step.inputs.kwargs.get("past_key_values", step.inputs.kwargs.get("cache_params"))
        if cache == "static" and not isinstance(
            getattr(own, "self_attention_cache", own), StaticCache
        ):
            raise InputsError("generate() makes no static cache for this model") from None
        return step
    finally:
        for hook in hooks:
            hook.remove()
    raise failures[0]


def generating_parts(module: nn.Module) -> list[Any]:
    """Return the model itself and its parts, such as a language model, that can generate."""
    from transformers import GenerationMixin

    return [part for part in module.modules() if isinstance(part, GenerationMixin)]


def attempts(subject: Subject) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """Return ways to generate: a function, and its arguments.

    A model's own `generate` may need what only a checkpoint has, such as codes of languages, and
    its media more than `forward` does; all that is gone after the prefill. Audio with some frames
    for each token ends the text with the prompt, which then is half as long.
    """
    from transformers import GenerationMixin

    module: Any = subject.module
    own, kwargs = subject.inputs.generation, subject.inputs.kwargs
    given = own or {k: v for k, v in kwargs.items() if not _NOT_GENERATED_FROM.match(k)}
    text = {k: v for k, v in given.items() if k in ("input_ids", "attention_mask")}
    half = {name: value[:, : value.shape[1] // 2] for name, value in text.items()}
    functions = dict.fromkeys((type(module).generate, GenerationMixin.generate))
    return [
        (function, arguments)
        for arguments in ((given, text, given | half) if "input_ids" in text else (given,))
        for function in functions
    ]


def generate(
    subject: Subject,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    cache: str,
    tokens: int = NEW_TOKENS,
    **settings: Any,
) -> None:
    """Let a model generate, exactly `tokens` new tokens.

    `cache` is its `cache_implementation`, and `settings` are further ones of its configuration. No
    token ends the text, and where the configuration has no first token, that is 0.
    """
    for part in generating_parts(subject.module):
        defaults = part.generation_config
        defaults.eos_token_id = None
        defaults.bos_token_id = defaults.bos_token_id or 0
        defaults.decoder_start_token_id = defaults.decoder_start_token_id or defaults.bos_token_id
    settings |= {"cache_implementation": cache, "max_new_tokens": tokens, "do_sample": False}
    with torch.no_grad(), subject.tensors():
        function(subject.module, **arguments, **settings, num_beams=1, num_return_sequences=1)
