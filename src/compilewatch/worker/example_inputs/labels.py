"""Labels for training, in the shape of the predictions of a forward without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.files import call
from compilewatch.worker.example_inputs.rules import documented_layout

OBJECTS = 2
"""Annotated objects in each image."""


def add_labels(ctx: Context) -> None:
    """Add the labels that the forward takes, so that it returns a loss; nothing if it takes none.

    The outputs of one forward without labels show what is predicted: a class, a class per token, a
    class per pixel, boxes, masks or a span.
    """
    names = (MAKERS.keys() & ctx.signature.parameters.keys()) - set(ctx.values) - ctx.dropped
    if not names:
        return
    outputs = _predictions(ctx)
    for name in sorted(names):
        label = MAKERS[name](ctx, outputs)
        if label is not None:
            ctx.values[name] = label


def _predictions(ctx: Context) -> Mapping[str, Any]:
    """Return the named outputs of one forward without labels; empty if it returns no mapping."""
    outputs = call(ctx.module, ctx.values, ctx.fake_mode)
    return outputs if isinstance(outputs, Mapping) else {}


def _labels(ctx: Context, outputs: Mapping[str, Any]) -> Any:
    if "pred_boxes" in outputs:
        return _objects(ctx)
    logits = outputs.get("logits", outputs.get("prediction_logits"))
    if isinstance(logits, (list, tuple)):
        logits = logits[0]
    if not isinstance(logits, torch.Tensor):
        return None
    if logits.dim() == 4 and "input_ids" not in ctx.values:
        return _pixels(ctx, logits.shape[1])
    if logits.dim() == 2:
        return _classes(ctx, logits)
    if logits.dim() == 3 and _is_audio(ctx):
        return _audio_labels(ctx, logits)
    return _tokens(ctx, logits)


def _classes(ctx: Context, logits: torch.Tensor) -> torch.Tensor:
    """Return one class per row, or a number if there is only one output (regression)."""
    count = logits.shape[-1]
    if count == 1:
        return ctx.normal("labels", logits.shape[0])
    if ctx.find("problem_type") == "multi_label_classification":
        return ctx.integers("labels", 0, 2, *logits.shape).to(ctx.dtype)
    return ctx.integers("labels", 0, count, logits.shape[0])


def _tokens(ctx: Context, logits: torch.Tensor) -> torch.Tensor:
    """Return one class per token: the ids themselves if they have the shape (language models), and
    one per codebook of each token if the forward documents that."""
    shape = documented_layout(ctx, "labels") or tuple(logits.shape[:-1])
    ids = ctx.values.get("input_ids")
    ids = ctx.values.get("decoder_input_ids", ids)
    if isinstance(ids, torch.Tensor) and tuple(ids.shape) == shape:
        return ids.clamp(max=logits.shape[-1] - 1)
    return ctx.integers("labels", 0, logits.shape[-1], *shape)


def _audio_labels(ctx: Context, logits: torch.Tensor) -> torch.Tensor:
    """Return half as many characters as frames (CTC), or one-hot classes (diarisation)."""
    batch, frames, count = logits.shape
    if count == ctx.number("vocab_size", default=0):
        return ctx.integers("labels", 1, count, batch, max(frames // 2, 1))
    hot = ctx.integers("labels", 0, count, batch, frames)
    return torch.nn.functional.one_hot(hot, count)


def _pixels(ctx: Context, classes: int) -> torch.Tensor:
    """Return one class per pixel of the image: (batch, height, width)."""
    height, width = ctx.values["pixel_values"].shape[-2:]
    return ctx.integers("labels", 0, classes, ctx.batch, height, width)


def _objects(ctx: Context) -> list[dict[str, torch.Tensor]]:
    """Return for each image the class, box (centre and size, as fractions of the image) and mask of
    each object, in the format of DETR and similar models."""
    count = ctx.number("num_labels", default=2)
    height, width = ctx.values["pixel_values"].shape[-2:]
    return [
        {
            "class_labels": ctx.integers(f"classes{i}", 0, count, OBJECTS),
            "boxes": torch.full((OBJECTS, 4), 0.25, dtype=ctx.dtype),
            "masks": torch.ones(OBJECTS, height, width, dtype=ctx.dtype),
        }
        for i in range(ctx.batch)
    ]


def _mask_labels(ctx: Context, outputs: Mapping[str, Any]) -> Any:
    if "masks_queries_logits" not in outputs:
        return None
    height, width = ctx.values["pixel_values"].shape[-2:]
    return [torch.ones(OBJECTS, height, width, dtype=ctx.dtype) for _ in range(ctx.batch)]


def _class_labels(ctx: Context, outputs: Mapping[str, Any]) -> Any:
    if "masks_queries_logits" not in outputs:
        return None
    return [torch.arange(OBJECTS) for _ in range(ctx.batch)]


def _span_start(ctx: Context, outputs: Mapping[str, Any]) -> torch.Tensor | None:
    if "start_logits" not in outputs and "start_top_log_probs" not in outputs:
        return None
    return torch.ones(ctx.batch, dtype=torch.int64)


def _choice(_: Context, outputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the correct choice of each row."""
    if "mc_logits" not in outputs:
        return None
    return torch.zeros(outputs["mc_logits"].shape[:-1], dtype=torch.int64)


def _is_audio(ctx: Context) -> bool:
    heard = any(name in ctx.values for name in ("input_values", "input_features"))
    return heard and not any(n in ctx.values for n in ("input_ids", "decoder_input_ids"))


MAKERS: dict[str, Callable[[Context, Mapping[str, Any]], Any]] = {
    "labels": _labels,
    "start_positions": _span_start,
    "end_positions": _span_start,
    "next_sentence_label": lambda ctx, _: torch.zeros(ctx.batch, dtype=torch.int64),
    "mask_labels": _mask_labels,
    "class_labels": _class_labels,
    "mc_labels": _choice,
    "return_loss": lambda *_: True,
}
