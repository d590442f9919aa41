"""The dimensions of inputs that may vary, by the names of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ALONG_SEQUENCE: dict[str, str] = {
    "input_ids": "sequence",
    "attention_mask": "sequence",
    "mm_token_type_ids": "sequence",
    "bbox": "sequence",
    "inputs_embeds": "sequence",
    "labels": "sequence",
    "decoder_input_ids": "decoder_sequence",
}
"""Arguments whose dimension 1 counts tokens, with the name of that dimension."""

PACKED = frozenset({"pixel_values", "image_grid_thw", "grid_thw"})
"""Arguments that contain all images of a batch in sequence: no dimension is the batch."""


def dynamic_shapes(values: Mapping[str, Any], batch: int) -> dict[str, dict[int, str]]:
    """Return `{argument: {dimension: name}}` for tensors whose first dimension is the batch.

    Labels only vary along the sequence if they have the shape of the ids.
    """
    shapes: dict[str, dict[int, str]] = {}
    packed = PACKED if {"image_grid_thw", "grid_thw"} & set(values) else frozenset()
    ids = values.get("input_ids")
    for name, value in values.items():
        if not isinstance(value, torch.Tensor) or name in packed or value.dim() == 0:
            continue
        if value.shape[0] != batch:
            continue
        shapes[name] = {0: "batch"}
        if value.dim() < 2 or name not in ALONG_SEQUENCE:
            continue
        if name == "labels" and (ids is None or value.shape[1] != ids.shape[1]):
            continue
        shapes[name][1] = ALONG_SEQUENCE[name]
    return shapes
