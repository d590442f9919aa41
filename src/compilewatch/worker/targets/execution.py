"""Calls of a subject in its mode, and their results for comparison."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from compilewatch.records import Mode, Numerics
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.dynamo.capture import call_once

Call = Callable[..., Any]

_BATCH = "batch"
_MOST_SAMPLES = 8


def enlarged(subject: Subject) -> Subject | None:
    """Return the subject with one more row in every batch dimension.

    None if the inputs name no batch dimension, or if eager mode rejects the larger ones.
    """
    kwargs = dict(subject.inputs.kwargs)
    changed = False
    for name, dims in subject.inputs.dynamic_shapes.items():
        for dim in [dim for dim, label in dims.items() if label == _BATCH and name in kwargs]:
            changed = True
            kwargs[name] = tree_map_only(
                torch.Tensor,
                lambda t, dim=dim: torch.cat([t, t.narrow(dim, t.shape[dim] - 1, 1)], dim),
                kwargs[name],
            )
    if not changed:
        return None
    larger = replace(subject, inputs=replace(subject.inputs, kwargs=kwargs))
    with preserved(subject.module):
        try:
            call_once(larger, subject.module)
        except Exception:  # noqa: BLE001  (model code, with inputs that may not fit)
            return None
    return larger


def observed(subject: Subject, call: Call) -> dict[str, Any]:
    """Return the results of one call by path: outputs, and gradients in train mode.

    `call` runs the subject's module, compiled or not; the module is restored afterwards. Inputs and
    outputs are copied, because a model may write to its inputs and may return its own buffers.
    """
    with preserved(subject.module):
        subject.module.zero_grad(set_to_none=True)
        inputs = mapped(subject.inputs, torch.clone)
        output = call_once(replace(subject, inputs=inputs), call)
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


def compared(
    subject: Subject, compile_model: Callable[[Subject], Call], first: bytes = b""
) -> Numerics:
    """Compare the results of all calls with eager mode; each run has a fork, as a model's first.

    `compile_model` compiles the model of a subject; `first` are the encoded results of a run of it
    that has taken place. What the compiler or the model raises propagates.
    """
    kept = [first] if first else []

    def run(call: Callable[[Subject], dict[str, Any]], inside: Subject = subject) -> dict[str, Any]:
        def encoded(subject: Subject) -> bytes:
            return numerics.to_bytes(_of_all_calls(replace(subject, inputs=inside.inputs), call))

        return numerics.from_bytes(subject.in_fork(encoded, bytes))

    def compiled() -> dict[str, Any]:
        if kept:
            return numerics.from_bytes(kept.pop())
        return run(lambda inside: observed(inside, compile_model(inside)))

    def eager(inside: Subject) -> dict[str, Any]:
        return observed(inside, inside.module)

    alone = [] if subject.later else [partial(run, eager, single) for single in samples(subject)]
    return numerics.assess(partial(run, eager), compiled, partial(run, observed_in_float64), alone)


def _of_all_calls(subject: Subject, results: Callable[[Subject], dict[str, Any]]) -> dict[str, Any]:
    """The results of each call by path; each starts from the state in which the model was given."""
    if subject.later is None:
        return results(subject)
    return {
        f"call {number}: {path}": value
        for number, inputs in enumerate((subject.inputs, *subject.later), start=1)
        for path, value in results(replace(subject, inputs=inputs)).items()
    }


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


class Flat(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A model as a function of tensors only: tensors in, in order; a tuple of tensors out.

    All other arguments are constants. Each call sets `outputs` to the paths of its results as in
    `numerics.leaves`.
    """

    def __init__(self, subject: Subject, outputs: list[str]) -> None:
        super().__init__()
        self.module = subject.module
        leaves, self._spec = tree_flatten((subject.inputs.args, subject.inputs.kwargs))
        self._constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def name_outputs(names: Iterable[str]) -> None:
            outputs[:] = names  # not an attribute: export rejects a module whose attributes change

        self._name_outputs = name_outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves: list[Any] = list(self._constants)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        results = numerics.leaves(self.module(*args, **kwargs))
        named = {name: value for name, value in results if isinstance(value, Tensor)}
        self._name_outputs(named)
        return tuple(named.values())

    def tensors(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Return the arguments of the model as arguments of `forward`."""
        leaves, _ = tree_flatten((args, kwargs))
        return tuple(leaves[place] for place in self._places)


def mapped(inputs: ExampleInputs, change: Callable[[torch.Tensor], torch.Tensor]) -> ExampleInputs:
    args, kwargs = tree_map_only(torch.Tensor, change, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)
