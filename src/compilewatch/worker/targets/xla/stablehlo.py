"""From `torch.export` to XLA: StableHLO, and HLO modules of models whose own capture breaks.

Lazy tensors run the model's code like eager mode. A model that reads a value (whether its mask is
all ones) therefore reads it there, too, and the graph is only valid for that value. An exported
program is valid for every value, or there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch_xla
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_xla.stablehlo import exported_program_to_stablehlo

from compilewatch.records import ExportVariant
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.export.target import operators, register_containers
from compilewatch.worker.targets.xla import device as xla_device
from compilewatch.worker.targets.xla.capture import HloCapture, Names, lower, named_inputs
from compilewatch.worker.targets.xla.isolation import Enter
from compilewatch.worker.targets.xla.target import STABLEHLO_ARTIFACT


class _Positional(nn.Module):  # type: ignore[misc]
    """A model as a function of tensors only: the conversion takes no keywords or containers.

    All other arguments are constants; the outputs are those that `numerics.leaves` yields.
    """

    def __init__(self, subject: Subject, name_outputs: Callable[[Iterable[str]], None]) -> None:
        super().__init__()
        self.module = subject.module
        leaves, self._structure = tree_flatten((subject.inputs.args, subject.inputs.kwargs))
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = tuple(leaves[place] for place in self._places)
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._name_outputs = name_outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves: list[Any] = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._structure)
        outputs = {n: v for n, v in numerics.leaves(self.module(*args, **kwargs)) if _is_tensor(v)}
        self._name_outputs(outputs)
        return tuple(outputs.values())


@dataclass(frozen=True, kw_only=True)
class _Exported:
    """A program of tensors only, its example inputs and the names of its results."""

    program: ExportedProgram
    tensors: tuple[Tensor, ...]
    outputs: list[str]


def to_stablehlo(subject: Subject, _enter: Enter) -> ExportVariant:
    """Export and convert, forward only; a step for `isolated`, as a failure affects its process.

    torch_xla leaves `_set_xla_all_numbers_special_scalars` on if the conversion fails (2.9).
    """
    started = time.perf_counter()
    program = _exported(subject).program
    with torch.no_grad():
        converted = exported_program_to_stablehlo(program)
    if subject.request.keep_artifacts:
        text = converted.get_stablehlo_text("forward")
        (subject.artifacts / STABLEHLO_ARTIFACT).write_text(text, encoding="utf-8")
    return ExportVariant(
        exported=True,
        duration_seconds=time.perf_counter() - started,
        ops=sum(operators(program).values()),
    )


def capture_exported(subject: Subject, _enter: Enter) -> HloCapture:
    """Return `capture.capture_hlo` of the exported program, forward only; for `isolated`."""
    exported = _exported(subject)
    return _lowered(subject, exported, exported.program)


def capture_decomposed(subject: Subject, _enter: Enter) -> HloCapture:
    """Do the same in core ATen operators: XLA lacks some composite operators (2.9).

    This is not tried first, because the decompositions reject some programs that can be lowered.
    """
    exported = _exported(subject)
    with torch.no_grad():
        return _lowered(subject, exported, exported.program.run_decompositions())


def _lowered(subject: Subject, exported: _Exported, program: ExportedProgram) -> HloCapture:
    module = move_to_device_pass(program, str(torch_xla.device())).module()
    inputs = ExampleInputs(strategy=subject.inputs.strategy, args=exported.tensors)
    placed = xla_device.fed(replace(subject, module=module), replace(subject, inputs=inputs))
    names = Names(
        prefix="module.",
        inputs=[name for name, _ in named_inputs(subject.inputs)],
        outputs=exported.outputs,
    )
    return lower(subject, placed, names)


def _exported(subject: Subject) -> _Exported:
    outputs: list[str] = []

    def name_outputs(names: Iterable[str]) -> None:
        outputs[:] = names  # not an attribute: export rejects a module whose attributes change

    register_containers(subject.module)
    wrapper = _Positional(subject, name_outputs)
    with preserved(subject.module), torch.no_grad():
        program = torch.export.export(wrapper, wrapper.tensors, strict=False)
    return _Exported(program=program, tensors=wrapper.tensors, outputs=outputs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
