"""Labels for training, in the shape of the predictions of a forward without labels."""

from collections.abc import Mapping
from typing import Any

import torch

from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.files import call
from compilewatch.worker.example_inputs.rules import documented_layout

OBJECTS = 2
"""Annotated objects in each image."""

NAMES = (
    *("class_labels", "end_positions", "labels", "mask_labels", "mc_labels"),
    *("next_sentence_label", "return_loss", "start_positions"),
)
"""Arguments that are labels."""


def add_labels(ctx: Context) -> None:
    """Add the labels that the forward takes, so that it returns a loss; nothing if it takes none.

    The named outputs of one forward without labels show what is predicted: a class, a class per
    token, a class per pixel, boxes, masks or a span.
    """
    takes = ctx.signature.parameters.keys() - set(ctx.values) - ctx.dropped
    names = [name for name in NAMES if name in takes]
    if not names:
        return
    outputs = call(ctx.module, ctx.values, ctx.fake_mode)
    for name in names:
        label = _label(ctx, name, outputs if isinstance(outputs, Mapping) else {})
        if label is not None:
            ctx.values[name] = label


def _label(ctx: Context, name: str, outputs: Mapping[str, Any]) -> Any:
    match name:
        case "labels":
            return _labels(ctx, outputs)
        case "start_positions" | "end_positions":
            if "start_logits" in outputs or "start_top_log_probs" in outputs:
                return torch.ones(ctx.batch, dtype=torch.int64)
        case "next_sentence_label":
            return torch.zeros(ctx.batch, dtype=torch.int64)
        case "mask_labels" if "masks_queries_logits" in outputs:
            height, width = ctx.values["pixel_values"].shape[-2:]
            return [torch.ones(OBJECTS, height, width, dtype=ctx.dtype) for _ in range(ctx.batch)]
        case "class_labels" if "masks_queries_logits" in outputs:
            return [torch.arange(OBJECTS) for _ in range(ctx.batch)]
        case "mc_labels" if "mc_logits" in outputs:  # the correct choice of each row
            return torch.zeros(outputs["mc_logits"].shape[:-1], dtype=torch.int64)
        case "return_loss":
            return True
    return None


def _labels(ctx: Context, outputs: Mapping[str, Any]) -> Any:
    if "pred_boxes" in outputs:
        return _objects(ctx)
    logits = outputs.get("logits", outputs.get("prediction_logits"))
    if isinstance(logits, (list, tuple)):
        logits = logits[0]
    if not isinstance(logits, torch.Tensor):
        return None
    count = logits.shape[-1]
    if logits.dim() == 4 and "input_ids" not in ctx.values:  # one class per pixel of the image
        height, width = ctx.values["pixel_values"].shape[-2:]
        return ctx.integers("labels", 0, logits.shape[1], ctx.batch, height, width)
    if logits.dim() == 2:
        # One class per row, or a number if there is only one output (regression).
        if count == 1:
            return ctx.normal("labels", logits.shape[0])
        if ctx.find("problem_type") == "multi_label_classification":
            return ctx.integers("labels", 0, 2, *logits.shape).to(ctx.dtype)
        return ctx.integers("labels", 0, count, logits.shape[0])
    heard = {"input_values", "input_features"} & ctx.values.keys()
    if logits.dim() == 3 and heard and not {"input_ids", "decoder_input_ids"} & ctx.values.keys():
        # Half as many characters as frames (CTC), or one-hot classes (diarisation).
        batch, frames, _ = logits.shape
        if count == ctx.number("vocab_size", default=0):
            return ctx.integers("labels", 1, count, batch, max(frames // 2, 1))
        return torch.nn.functional.one_hot(ctx.integers("labels", 0, count, batch, frames), count)
    # One class per token: the ids themselves if they have the shape (language models), and one per
    # codebook of each token if the forward documents that.
    shape = documented_layout(ctx, "labels") or tuple(logits.shape[:-1])
    ids = ctx.values.get("decoder_input_ids", ctx.values.get("input_ids"))
    if isinstance(ids, torch.Tensor) and tuple(ids.shape) == shape:
        return ids.clamp(max=count - 1)
    return ctx.integers("labels", 0, count, *shape)


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
