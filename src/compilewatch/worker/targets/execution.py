"""Calls of a subject in its mode, and their results for comparison."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from compilewatch.records import Mode
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.dynamo.capture import loss_of

Call = Callable[..., Any]

_BATCH = "batch"
_MOST_SAMPLES = 8


def enlarged(inputs: ExampleInputs) -> ExampleInputs | None:
    """Add one row in every batch dimension; None if the inputs name no batch dimension."""
    batches = {
        name: [dim for dim, label in dims.items() if label == _BATCH]
        for name, dims in inputs.dynamic_shapes.items()
    }
    named = {name: dims for name, dims in batches.items() if dims and name in inputs.kwargs}
    if not named:
        return None
    kwargs = dict(inputs.kwargs)
    for name, dims in named.items():
        for dim in dims:
            kwargs[name] = tree_map_only(
                torch.Tensor,
                lambda t, dim=dim: torch.cat([t, t.narrow(dim, t.shape[dim] - 1, 1)], dim),
                kwargs[name],
            )
    return replace(inputs, kwargs=kwargs)


def forward(subject: Subject, call: Call, inputs: ExampleInputs) -> Any:
    """Make one call in the subject's mode: without gradients, or with backward."""
    if subject.request.target.mode is Mode.EVAL:
        with torch.no_grad():
            return call(*inputs.args, **inputs.kwargs)
    subject.module.zero_grad(set_to_none=True)
    output = call(*inputs.args, **inputs.kwargs)
    loss = loss_of(output)
    if loss is not None:
        loss.backward()
    return output


def observed(subject: Subject, call: Call) -> dict[str, Any]:
    """Return the results of one call by path: outputs, and gradients in train mode.

    `call` runs the subject's module, compiled or not; the module is restored afterwards. Inputs and
    outputs are copied, because a model may write to its inputs and may return its own buffers.
    """
    with preserved(subject.module):
        subject.module.zero_grad(set_to_none=True)
        output = forward(subject, call, mapped(subject.inputs, torch.clone))
        results = comparable(subject, output)
        return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in results.items()}


def samples(subject: Subject) -> list[Subject]:
    """Return the subject with each sample of its batch alone; none where it has no small batch.

    In train mode samples belong together: their gradients add up, and statistics are of a batch.
    """
    leaves = tree_leaves((subject.inputs.args, subject.inputs.kwargs))
    sizes = [len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    count = sizes[0] if sizes else 0
    if subject.request.target.mode is Mode.TRAIN or not 1 < count <= _MOST_SAMPLES:
        return []

    def only(number: int, value: torch.Tensor) -> torch.Tensor:
        return value[number, None] if value.shape[:1] == (count,) else value

    return [
        replace(subject, inputs=mapped(subject.inputs, partial(only, number)))
        for number in range(count)
    ]


def comparable(subject: Subject, output: Any) -> dict[str, Any]:
    """Return outputs by path, and the existing gradients by parameter."""
    results = dict(numerics.leaves(output))
    for name, parameter in subject.module.named_parameters():
        if parameter.grad is not None:
            results[f"gradient of {name}"] = parameter.grad
    return results


def observed_in_float64(subject: Subject) -> dict[str, Any]:
    """Return the results of the subject in float64 (also its inputs), run in eager mode."""
    module = copy.deepcopy(subject.module).double()
    inputs = mapped(subject.inputs, lambda t: t.double() if t.is_floating_point() else t)
    return observed(replace(subject, module=module, inputs=inputs), module)


def mapped(inputs: ExampleInputs, change: Callable[[torch.Tensor], torch.Tensor]) -> ExampleInputs:
    args, kwargs = tree_map_only(torch.Tensor, change, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)
