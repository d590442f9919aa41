"""Example inputs of other sizes: more samples, longer texts, or any dimension of a tensor.

Dimensions have names: `batch` and `sequence` (of a text, in all its arguments), or the argument
and the number of the dimension (`x.0`, `images.2`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from compilewatch.errors import UsageError, did_you_mean
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.subject import ExampleInputs, Subject

BATCH, SEQUENCE = "batch", "sequence"


def inputs_of(subject: Subject, sizes: Mapping[str, int]) -> ExampleInputs:
    """Return inputs of these sizes, the others as in the subject's own inputs.

    The rules for inputs make them where they have made the subject's; otherwise its tensors are
    cut, or repeated. Raises UsageError for a dimension that the inputs do not have.
    """
    own = sizes_of(subject)
    for name in sizes:
        if name not in own:
            raise UsageError(
                f"the inputs have no dimension {name!r}{did_you_mean(name, own)}; "
                f"they have {', '.join(own)}"
            )
    inputs, left = subject.inputs, dict(sizes)
    if _by_rules(inputs) and not own.keys().isdisjoint({BATCH, SEQUENCE}):
        chosen = {name: left.pop(name, own.get(name)) for name in (BATCH, SEQUENCE)}
        inputs = make_inputs(
            subject.module,
            subject.request,
            subject.fake_mode,
            batch=chosen[BATCH] or own[BATCH],
            length=chosen[SEQUENCE],
        )
    with subject.tensors(), torch.no_grad():
        for name, size in left.items():
            if name == BATCH:
                inputs = with_rows(inputs, rows_of(inputs), size)
            else:
                argument, _, dimension = name.rpartition(".")
                inputs = _with_size(subject, inputs, argument, int(dimension), size)
    return inputs


def sizes_of(subject: Subject) -> dict[str, int]:
    """Return the sizes of a subject's inputs by the names of their dimensions."""
    inputs = subject.inputs
    sizes: dict[str, int] = {}
    if (rows := rows_of(inputs)) is not None:
        sizes[BATCH] = rows
    if _by_rules(inputs) and (tokens := tokens_of(inputs)) is not None:
        sizes[SEQUENCE] = tokens
    for argument, value in arguments(subject, inputs).items():
        if isinstance(value, torch.Tensor):
            sizes |= {f"{argument}.{dim}": int(size) for dim, size in enumerate(value.shape)}
    return sizes


def _by_rules(inputs: ExampleInputs) -> bool:
    return "batch" in {label for dims in inputs.dynamic_shapes.values() for label in dims.values()}


def arguments(subject: Subject, inputs: ExampleInputs) -> dict[str, Any]:
    """Return the arguments of a call by their names in the model's forward."""
    parameters = list(inspect.signature(subject.module.forward).parameters)
    names = (*parameters, *(f"args[{i}]" for i in range(len(parameters), len(inputs.args))))
    return dict(zip(names, inputs.args, strict=False)) | inputs.kwargs


def _with_size(
    subject: Subject, inputs: ExampleInputs, argument: str, dimension: int, size: int
) -> ExampleInputs:
    tensor = arguments(subject, inputs)[argument]
    changed = _sized(tensor, dimension, size)
    if argument in inputs.kwargs:
        return replace(inputs, kwargs=inputs.kwargs | {argument: changed})
    args = tuple(changed if value is tensor else value for value in inputs.args)
    return replace(inputs, args=args)


def _sized(tensor: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """The tensor with its first `size` entries along a dimension, repeated if there are fewer."""
    picks = torch.arange(size, device=tensor.device) % max(tensor.shape[dimension], 1)
    return tensor.detach().index_select(dimension, picks).requires_grad_(tensor.requires_grad)


def rows_of(inputs: ExampleInputs) -> int | None:
    """Return the size of the batch dimension; None if the inputs have none.

    Inputs of a factory do not name their dimensions: if the first dimensions of all tensors are
    equal, they are the batch.
    """
    named = {
        inputs.kwargs[name].shape[dim]
        for name, dims in inputs.dynamic_shapes.items()
        for dim, label in dims.items()
        if label == BATCH and isinstance(inputs.kwargs.get(name), torch.Tensor)
    }
    if not named and not inputs.dynamic_shapes:
        leaves = tree_leaves((inputs.args, inputs.kwargs))
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        named = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
    return int(named.pop()) if len(named) == 1 and -1 not in named else None


def tokens_of(inputs: ExampleInputs) -> int | None:
    """Return the number of tokens of a sample; None for inputs without tokens."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids"):
        value = inputs.kwargs.get(name)
        if isinstance(value, torch.Tensor) and value.dim() >= 2:
            return int(value.shape[1])
    return None


def with_rows(inputs: ExampleInputs, rows: int | None, batch: int) -> ExampleInputs:
    """Return inputs of `batch` rows: the first ones of `rows`, repeated where there are too few."""

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        return _sized(tensor, 0, batch) if tensor.dim() and tensor.shape[0] == rows else tensor

    args, kwargs = tree_map_only(torch.Tensor, repeated, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)
