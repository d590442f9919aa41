"""The input variants of a model of several media: text alone, and text with one medium.

A model takes another path through its forward when it gets an image, so a model that compiles on
text alone can break with an image.
"""

from __future__ import annotations

from torch import nn

from compilewatch.worker.example_inputs.multimodal import MEDIA
from compilewatch.worker.example_inputs.signature import read_signature
from compilewatch.worker.subject import ExampleInputs

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
