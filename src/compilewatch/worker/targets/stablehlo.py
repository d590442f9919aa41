"""StableHLO of a model, by `torch.export` and torch_xla's `exported_program_to_stablehlo`."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_xla.stablehlo import exported_program_to_stablehlo

from compilewatch.records import ExportVariant
from compilewatch.worker import numerics
from compilewatch.worker.module_state import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.export import operators, register_containers
from compilewatch.worker.targets.isolation import Enter
from compilewatch.worker.targets.xla import STABLEHLO_ARTIFACT


class _Positional(nn.Module):  # type: ignore[misc]
    """A model as a function of tensors alone: the conversion takes no keywords and no containers.

    Everything else in the arguments is a constant; outputs are those that `numerics.leaves` finds.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.module = subject.module
        leaves, self._structure = tree_flatten((subject.inputs.args, subject.inputs.kwargs))
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = tuple(leaves[place] for place in self._places)
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves: list[Any] = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._structure)
        output = self.module(*args, **kwargs)
        return tuple(v for _, v in numerics.leaves(output) if isinstance(v, Tensor))


def to_stablehlo(subject: Subject, _enter: Enter) -> ExportVariant:
    """Export and convert, forward only; a step for `isolated`, whose process it spoils on failure.

    torch_xla leaves `_set_xla_all_numbers_special_scalars` on where the conversion fails (2.9).
    """
    started = time.perf_counter()
    register_containers(subject.module)
    wrapper = _Positional(subject)
    tensors, wrapper.tensors = wrapper.tensors, ()
    with preserved(subject.module), torch.no_grad():
        program = torch.export.export(wrapper, tensors, strict=False)
        found = exported_program_to_stablehlo(program)
    if subject.request.keep_artifacts:
        text = found.get_stablehlo_text("forward")
        (subject.artifacts / STABLEHLO_ARTIFACT).write_text(text, encoding="utf-8")
    return ExportVariant(
        exported=True,
        duration_seconds=time.perf_counter() - started,
        ops=sum(operators(program).values()),
    )
