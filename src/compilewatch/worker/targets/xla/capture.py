"""Captures the HLO module of one call, and maps its parameters to weights, inputs and constants.

Each capture needs its own process: whatever runs outside XLA leaves its result in the graph as a
parameter or a constant, which is data of these example inputs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch_xla
import torch_xla.debug.metrics as met
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from compilewatch.records import HloParameter, HloParameters, Record
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.execution import forward
from compilewatch.worker.targets.xla import device as xla_device
from compilewatch.worker.targets.xla.isolation import Enter

HLO_ARTIFACT = "graph.hlo_module.pb"
PARAMETERS_ARTIFACT = "graph.parameters.json"
CONSTANTS_ARTIFACT = "graph.constants.safetensors"

_PLUMBING = ("parameter", "constant", "tuple", "get-tuple-element")


class HloCapture(Record, frozen=True, kw_only=True):
    """The result of a capture.

    `operators` counts HLO instructions by opcode in all computations, without those that only pass
    on values; `element_types` counts them by the type of their result (`F32`, `C64`). `lowered` and
    `fallbacks` count torch operators (`aten::sort`), and `executions` the graphs that ran before
    the call ended; a fallback causes one or none.
    """

    operators: dict[str, int]
    element_types: dict[str, int]
    lowered: dict[str, int]
    fallbacks: dict[str, int]
    executions: int
    parameters: HloParameters
    artifacts: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether the module may be compiled ahead of time: nothing ran before the call ended."""
        return not self.fallbacks and not self.executions


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One recorded call: the subject on the device and its unevaluated results by path."""

    placed: Subject
    results: dict[str, Tensor]
    lowered: dict[str, int]
    fallbacks: dict[str, int]
    executions: int


def capture_hlo(subject: Subject, _enter: Enter) -> HloCapture:
    """Record one call (in train mode with loss and gradients) and lower it; a step for `isolated`.

    If artifacts are kept and the module is `ready`, so that it is valid for other inputs too, this
    writes `HLO_ARTIFACT`, `PARAMETERS_ARTIFACT` and, if there are constants, `CONSTANTS_ARTIFACT`.
    """
    return lower(subject, xla_device.on_device(subject), Names())


@dataclass(frozen=True, kw_only=True)
class Names:
    """The subject's own names, for a rewritten module on the device.

    `prefix` precedes the names of weights there; `inputs` and `outputs` replace all other names.
    """

    prefix: str = ""
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None


def lower(subject: Subject, placed: Subject, names: Names) -> HloCapture:
    """Do the same for a subject that is already on the device."""
    call = _record(placed)
    context = torch_xla._XLAC.lowering.LoweringContext("graph")
    context.build(list(call.results.values()))
    module = json.loads(context.hlo_json())
    parameters, constants = _parameters(context, module, call, names)
    instructions = list(_instructions(module))
    opcodes = (instruction["opcode"] for instruction in instructions)
    captured = HloCapture(
        operators=_most_frequent(opcode for opcode in opcodes if opcode not in _PLUMBING),
        element_types=_most_frequent(_element_types(instructions)),
        lowered=call.lowered,
        fallbacks=call.fallbacks,
        executions=call.executions,
        parameters=parameters,
    )
    if not subject.request.keep_artifacts or not captured.ready:
        return captured
    return msgspec.structs.replace(
        captured, artifacts=_keep(subject, context, parameters, constants)
    )


def _record(placed: Subject) -> _Call:
    met.clear_all()
    # Python numbers become constants of the module instead of parameters without a name.
    torch_xla._XLAC._set_xla_all_numbers_special_scalars(True)
    output = forward(placed, placed.module, placed.inputs)
    results = {
        name: value for name, value in numerics.leaves(output) if xla_device.is_placed(value)
    }
    for name, parameter in placed.module.named_parameters():
        if parameter.grad is not None:
            results[f"gradient of {name}"] = parameter.grad
    for name, buffer in placed.module.named_buffers():
        if _is_pending(buffer):
            results[f"buffer {name}"] = buffer
    if not results:
        raise ValueError("the model returns no tensor on the XLA device")
    return _Call(
        placed=placed,
        results=results,
        lowered=xla_device.lowered(),
        fallbacks=xla_device.fallbacks(),
        executions=xla_device.executions(),
    )


def _is_pending(tensor: Tensor) -> bool:
    """Whether a result must still be computed: written buffers keep their version (2.9)."""
    if not xla_device.is_placed(tensor):
        return False
    text = torch_xla._XLAC._get_xla_tensors_text([tensor])
    return not re.fullmatch(r"IR \{\n  %0 = \S+ xla::device_data\(\).*\n\}\n*", text)


def _parameters(
    context: Any, module: dict[str, Any], call: _Call, names: Names
) -> tuple[HloParameters, dict[str, Tensor]]:
    """Return the map, and the values of parameters that are neither weights nor inputs."""
    known: dict[int, HloParameter] = {}
    unused: list[str] = []
    for kind, name, tensor in _named(call.placed, names):
        number = context.tensor_parameter_id(tensor)
        if number < 0:
            if kind == "input":
                unused.append(name)
            continue
        if number in known:
            aliases = (*known[number].aliases, name)
            known[number] = msgspec.structs.replace(known[number], aliases=aliases)
        else:
            known[number] = _parameter(number, kind, name, tensor)
    constants: dict[str, Tensor] = {}
    count = len(module.get("hostProgramShape", {}).get("parameters", ()))
    if count > len(known):
        for number, value in sorted(context.parameter_id_tensor_mapping().items()):
            if number not in known:
                name = f"constant.{number}"
                constants[name] = value.contiguous()
                known[number] = _parameter(number, "constant", name, value)
    parameters = HloParameters(
        parameters=tuple(known[number] for number in sorted(known)),
        unused_inputs=tuple(unused),
        outputs=tuple(names.outputs or call.results),
    )
    return parameters, constants


def _parameter(number: int, kind: str, name: str, tensor: Tensor) -> HloParameter:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return HloParameter(id=number, kind=kind, name=name, shape=tuple(tensor.shape), dtype=dtype)


def _named(placed: Subject, names: Names) -> Iterator[tuple[str, str, Tensor]]:
    """Yield kind, name and tensor of everything with a name; tied weights have several."""
    for name, parameter in placed.module.named_parameters(remove_duplicate=False):
        yield "parameter", name.removeprefix(names.prefix), parameter
    for name, buffer in placed.module.named_buffers(remove_duplicate=False):
        yield "buffer", name.removeprefix(names.prefix), buffer
    for index, (name, tensor) in enumerate(named_inputs(placed.inputs)):
        yield "input", names.inputs[index] if names.inputs is not None else name, tensor


def named_inputs(inputs: ExampleInputs) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor of the arguments with its path: `input_ids`, `args[0]`, `images[1]`."""
    for path, leaf in tree_flatten_with_path((inputs.args, inputs.kwargs))[0]:
        if isinstance(leaf, Tensor):
            first, *inner = path[1:]
            positional = path[0].idx == 0
            name = f"args{first}" if positional else str(getattr(first, "key", first))
            yield name + "".join(str(key) for key in inner), leaf


def _instructions(module: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for computation in module["computations"]:
        yield from computation["instructions"]


def _element_types(instructions: Iterable[dict[str, Any]]) -> Iterator[str]:
    for instruction in instructions:
        if instruction["opcode"] not in _PLUMBING:
            yield instruction["shape"].get("elementType", "")


def _most_frequent(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _keep(
    subject: Subject, context: Any, parameters: HloParameters, constants: dict[str, Tensor]
) -> tuple[str, ...]:
    folder = subject.artifacts
    (folder / HLO_ARTIFACT).write_bytes(context.hlo())
    text = msgspec.json.format(msgspec.json.encode(parameters), indent=1)
    (folder / PARAMETERS_ARTIFACT).write_bytes(text + b"\n")
    kept = [HLO_ARTIFACT, PARAMETERS_ARTIFACT]
    if constants:
        with torch.no_grad():
            save_file(constants, folder / CONSTANTS_ARTIFACT)
        kept.append(CONSTANTS_ARTIFACT)
    return tuple(kept)
