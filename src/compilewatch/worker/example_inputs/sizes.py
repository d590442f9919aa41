"""Example inputs of other sizes: more samples, longer texts, or any dimension of a tensor.

Dimensions have names: `batch` and `sequence` (of a text without what stands for images, in all its
arguments), or the argument and the number of the dimension (`x.0`, `images[1].2`), with Dynamo's
names of arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map_only

from compilewatch.errors import UsageError, did_you_mean
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.subject import ExampleInputs, Subject

BATCH, SEQUENCE = "batch", "sequence"


def inputs_of(subject: Subject, sizes: Mapping[str, int]) -> ExampleInputs:
    """Return inputs of these sizes, the others as in the subject's own inputs.

    The rules for inputs make them where they have made the subject's; otherwise its tensors are
    cut, or repeated, as those of a library are. Raises UsageError for a dimension that the inputs
    do not have.
    """
    own = known_sizes(subject, sizes)
    inputs, left = subject.inputs, dict(sizes)
    if _by_rules(inputs) and not own.keys().isdisjoint({BATCH, SEQUENCE}):
        chosen = {name: left.pop(name, own.get(name)) for name in (BATCH, SEQUENCE)}
        inputs = make_inputs(
            subject.maker or subject.module,
            subject.request,
            subject.fake_mode,
            batch=chosen[BATCH] or own[BATCH],
            length=chosen[SEQUENCE],
        )
        if (batch := chosen[BATCH]) is not None and rows_of(inputs) != batch:
            left[BATCH] = batch  # a library makes inputs of its own batch
    with subject.tensors(), torch.no_grad():
        for name, size in left.items():
            if name == BATCH:
                inputs = with_rows(inputs, rows_of(inputs), size)
            else:
                argument, _, dimension = name.rpartition(".")
                tensor = tensors_of(subject, inputs)[argument]
                inputs = _replaced(inputs, tensor, _sized(tensor, int(dimension), size))
    return inputs


def with_marks(subject: Subject, names: Iterable[str]) -> ExampleInputs:
    """Return the subject's inputs, with copies of tensors whose dimensions torch keeps dynamic.

    Raises UsageError for a dimension that it has not, or of size 0 or 1.
    """
    sizes = sizes_of(subject)
    inputs = inputs_of(subject, {name: sizes.get(name, 0) for name in names})
    for name in names:
        if sizes[name] < 2:
            raise UsageError(
                f"dynamic: {name} is {sizes[name]}, and torch compiles sizes 0 and 1 apart: "
                "pass a tensor in which it is 2 or more"
            )
        argument, _, dimension = name.rpartition(".")
        torch._dynamo.mark_dynamic(tensors_of(subject, inputs)[argument], int(dimension))
    return inputs


def known_sizes(subject: Subject, names: Iterable[str]) -> dict[str, int]:
    """Return all sizes of a subject's inputs.

    Raises UsageError for a name that is none of their dimensions.
    """
    own = sizes_of(subject)
    for name in names:
        if name not in own:
            raise UsageError(
                f"the inputs have no dimension {name!r}, but {', '.join(own)}"
                f"{did_you_mean(name, own)}"
            )
    return own


def sizes_of(subject: Subject) -> dict[str, int]:
    """Return the sizes of a subject's inputs by the names of their dimensions."""
    inputs = subject.inputs
    sizes: dict[str, int] = {}
    if (rows := rows_of(inputs)) is not None:
        sizes[BATCH] = rows
    if _by_rules(inputs) and (tokens := tokens_of(inputs)) is not None:
        sizes[SEQUENCE] = tokens - inputs.placeholders
    for argument, tensor in tensors_of(subject, inputs).items():
        sizes |= {f"{argument}.{dim}": int(size) for dim, size in enumerate(tensor.shape)}
    return sizes


def _by_rules(inputs: ExampleInputs) -> bool:
    return "batch" in {label for dims in inputs.dynamic_shapes.values() for label in dims.values()}


def arguments(subject: Subject, inputs: ExampleInputs) -> dict[str, Any]:
    """Return the arguments of a call by their names in the model's forward."""
    parameters = list(inspect.signature(subject.module.forward).parameters)
    names = (*parameters, *(f"args[{i}]" for i in range(len(parameters), len(inputs.args))))
    return dict(zip(names, inputs.args, strict=False)) | inputs.kwargs


def tensors_of(subject: Subject, inputs: ExampleInputs) -> dict[str, torch.Tensor]:
    """Return all tensors of inputs by Dynamo's names: `x`, `batch['ids']`, `images[0]`."""
    signature = inspect.signature(subject.module.forward)
    try:
        arguments = signature.bind(*inputs.args, **inputs.kwargs).arguments
    except TypeError as error:
        raise UsageError(f"the model does not take these arguments: {error}") from None
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    leaves, _ = tree_flatten_with_path(dict(arguments))
    return {
        f"{argument.key}{keystr(path)}": leaf
        for (argument, *path), leaf in leaves
        if isinstance(leaf, torch.Tensor)
    }


def _replaced(inputs: ExampleInputs, tensor: torch.Tensor, new: torch.Tensor) -> ExampleInputs:
    """The inputs with another tensor wherever they have this one."""
    args, kwargs = tree_map_only(
        torch.Tensor,
        lambda leaf: new if leaf is tensor else leaf,
        (inputs.args, inputs.kwargs),
    )
    return replace(inputs, args=args, kwargs=kwargs)


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
