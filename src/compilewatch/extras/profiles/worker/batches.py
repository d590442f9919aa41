"""Example inputs of a wanted batch size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from compilewatch.records import FactoryBuild, Request
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.model.overrides import Overrides
from compilewatch.worker.model.resolve import BuiltModel
from compilewatch.worker.subject import ExampleInputs

BATCH = "batch"


def make_batch(
    built: BuiltModel, request: Request, overrides: Overrides, batch: int, length: int | None
) -> tuple[ExampleInputs, int | None]:
    """Return inputs of `batch` rows, and how many rows they have.

    Inputs without a batch dimension are returned as they are, with None. Rules make what
    they derive in the wanted size; the rows of a person's own inputs are repeated.
    """
    inputs = make_inputs(
        built.module, built.config, request, overrides, None, batch=batch, length=length
    )
    rows = rows_of(inputs)
    if rows is None:
        return inputs, None
    build = request.model.build
    own = isinstance(build, FactoryBuild) and build.inputs is not None
    if rows != batch and (own or request.inputs_file is not None):
        return with_rows(inputs, rows, batch), batch
    return inputs, rows


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
        named = {tensor.shape[0] if tensor.dim() else -1 for tensor in _tensors(inputs)}
    return int(named.pop()) if len(named) == 1 and -1 not in named else None


def tokens_of(inputs: ExampleInputs) -> int | None:
    """Return the number of tokens of a sample; None for inputs without tokens."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids"):
        value = inputs.kwargs.get(name)
        if isinstance(value, torch.Tensor) and value.dim() >= 2:
            return int(value.shape[1])
    return None


def with_rows(inputs: ExampleInputs, rows: int, batch: int) -> ExampleInputs:
    """Return inputs of `batch` rows: the first ones of `rows`, repeated where there are too few."""
    picks = torch.arange(batch) % rows

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != rows:
            return tensor
        return tensor.index_select(0, picks.to(tensor.device))

    args, kwargs = tree_map_only(torch.Tensor, repeated, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)


def _tensors(inputs: ExampleInputs) -> Iterator[torch.Tensor]:
    leaves: list[Any] = tree_leaves((inputs.args, inputs.kwargs))
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
