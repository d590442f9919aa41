"""What runs in the forks of the XLA target: captures, executions and conversions of one call.

Each capture needs its own process: whatever runs outside XLA leaves its result in the graph as a
parameter or a constant, which is data of these example inputs.

Importing this module needs torch_xla; only using it creates a device client, whose threads make a
fork impossible. Names of counters and metrics: `torch_xla/debug/metrics.py` (2.9).

An operator without a lowering runs on the CPU: everything pending is compiled and executed, the
operands are copied to the CPU, and the result enters the next graph as data. torch_xla counts these
operators (`aten::…`) but not where they are; a second run, watched operator by operator, shows it.

Lazy tensors run the model's code like eager mode. A model that reads a value (whether its mask is
all ones) therefore reads it there, too, and the graph is only valid for that value. An exported
program is valid for every value, or there is none.
"""

import copy
import json
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from traceback import FrameSummary
from typing import Any

import msgspec
import torch
import torch_xla
import torch_xla.debug.metrics as met
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path, tree_map_only

from compilewatch import records
from compilewatch.data import NEURON_OPERATORS
from compilewatch.files import read_toml
from compilewatch.records import GraphBreak, HloParameter, StackFrame, XlaDetail
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import execution, numerics
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo.capture import call_once
from compilewatch.worker.targets.export import register_containers
from compilewatch.worker.targets.xla.target import NeuronOperators

HLO_ARTIFACT = "graph.hlo_module.pb"
PARAMETERS_ARTIFACT = "graph.parameters.json"
CONSTANTS_ARTIFACT = "graph.constants.safetensors"

_OUTSIDE = "aten::"
_LOWERED = "xla::"
_PLUMBING = ("parameter", "constant", "tuple", "get-tuple-element")


# --- the device and its counters -----------------------------------------------------------------


def on_device(subject: Subject) -> Subject:
    """Return a copy on the XLA device.

    Not by `module.to`, which makes a separate tensor there for each name of a tied weight (torch
    2.9): instead, `deepcopy` gets the device's tensors for the module's.
    """
    device = torch_xla.device()
    memo: dict[int, Any] = {}
    for parameter in subject.module.parameters():
        moved = parameter.detach().to(device)
        memo[id(parameter)] = nn.Parameter(moved, requires_grad=parameter.requires_grad)
    for buffer in subject.module.buffers():
        memo[id(buffer)] = buffer.detach().to(device)
    return fed(replace(subject, module=copy.deepcopy(subject.module, memo)), subject)


def fed(placed: Subject, subject: Subject) -> Subject:
    """Return the subject on the device with copies of another's inputs, nothing being pending."""
    device = torch_xla.device()
    inputs = execution.mapped(subject.inputs, lambda tensor: tensor.to(device))
    torch_xla.sync(wait=True)
    return replace(placed, inputs=inputs)


def compiled_graphs() -> int:
    """Return the number of graphs that XLA compiled since the last `clear_all`."""
    return int(met.counter_value("UncachedCompile") or 0)


def executions() -> int:
    """Return the number of graphs that ran since then, including cached ones."""
    return int(met.counter_value("ExecuteComputation") or 0)


def fallbacks(prefix: str = _OUTSIDE) -> dict[str, int]:
    """Return how often each operator (`aten::nonzero`) ran outside XLA, on the CPU, since then."""
    names = (name for name in met.counter_names() if name.startswith(prefix))
    return {name: int(met.counter_value(name) or 0) for name in names}


def _is_placed(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "xla"


# --- the HLO module of a call --------------------------------------------------------------------


Captured = tuple[XlaDetail, int, tuple[str, ...]]
"""What a capture says of the module (its `hlo` is None where graphs ran before the call ended), the
number of these graphs (a fallback causes one or none), and the stored artifacts."""


def capture_hlo(subject: Subject) -> Captured:
    """Record one call (in train mode with loss and gradients) and lower it.

    If artifacts are kept and the module is valid for other inputs too, this
    writes `HLO_ARTIFACT`, `PARAMETERS_ARTIFACT` and, if there are constants, `CONSTANTS_ARTIFACT`.
    """
    return _lower(subject, on_device(subject), "lazy")


def _lower(
    subject: Subject,
    placed: Subject,
    source: str,
    inputs: list[str] | None = None,
    outputs: list[str] | None = None,
) -> Captured:
    """Lower a subject on the device, whose module may be that of an exported program.

    `source` is the `hlo` of the detail; `inputs` and `outputs` replace the names of an export.
    """
    met.clear_all()
    # Python numbers become constants of the module instead of parameters without a name.
    torch_xla._XLAC._set_xla_all_numbers_special_scalars(True)
    results = _results(placed)
    lowered = fallbacks(_LOWERED)
    outside, ran = fallbacks(), executions()
    context = torch_xla._XLAC.lowering.LoweringContext("graph")
    context.build(list(results.values()))
    module = json.loads(context.hlo_json())
    counted = [
        (instruction["opcode"], instruction["shape"].get("elementType", ""))
        for computation in module["computations"]
        for instruction in computation["instructions"]
        if instruction["opcode"] not in _PLUMBING
    ]
    operators = _most_frequent(opcode for opcode, _ in counted)
    kinds = _most_frequent(kind for _, kind in counted)
    named_torch = {_OUTSIDE + name.removeprefix(_LOWERED): n for name, n in lowered.items()}
    is_valid = not outside and not ran
    counts = named_torch | operators | kinds
    rejected = read_toml(NEURON_OPERATORS, NeuronOperators).rejected
    detail = XlaDetail(
        operators=operators,
        fallbacks=outside,
        hlo=source if is_valid else None,
        expected_to_fail_on_neuron=tuple(
            msgspec.structs.replace(row, count=counts[row.operator])
            for row in rejected
            if row.operator in counts
        ),
    )
    artifacts: tuple[str, ...] = ()
    if subject.request.keep_artifacts and is_valid:
        named = _named(placed, inputs)
        artifacts = _keep(subject, context, module, named, outputs or list(results))
    return detail, ran, artifacts


def _results(placed: Subject) -> dict[str, Tensor]:
    """Call the subject, and return its unevaluated results by path."""
    output = call_once(placed, placed.module)
    results = {name: value for name, value in numerics.leaves(output) if _is_placed(value)}
    for name, parameter in placed.module.named_parameters():
        if parameter.grad is not None:
            results[f"gradient of {name}"] = parameter.grad
    for name, buffer in placed.module.named_buffers():
        if _is_placed(buffer):
            # A buffer that was written must still be computed, and keeps its version (2.9).
            text = torch_xla._XLAC._get_xla_tensors_text([buffer])
            if not re.fullmatch(r"IR \{\n  %0 = \S+ xla::device_data\(\).*\n\}\n*", text):
                results[f"buffer {name}"] = buffer
    if not results:
        raise ValueError("the model returns no tensor on the XLA device")
    return results


def _named(placed: Subject, inputs: list[str] | None) -> Iterator[tuple[str, str, Tensor]]:
    """Yield kind, name and tensor of everything with a name; tied weights have several.

    With the names of `inputs`, the module is an exported one, which has the model's inside.
    """
    prefix = "" if inputs is None else "module."
    for name, parameter in placed.module.named_parameters(remove_duplicate=False):
        yield "parameter", name.removeprefix(prefix), parameter
    for name, buffer in placed.module.named_buffers(remove_duplicate=False):
        yield "buffer", name.removeprefix(prefix), buffer
    for index, (name, tensor) in enumerate(_named_inputs(placed.inputs)):
        yield "input", name if inputs is None else inputs[index], tensor


def _named_inputs(inputs: ExampleInputs) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor of the arguments with its path: `input_ids`, `args[0]`, `images[1]`."""
    for path, leaf in tree_flatten_with_path((inputs.args, inputs.kwargs))[0]:
        if isinstance(leaf, Tensor):
            first, *inner = path[1:]
            name = f"args{first}" if path[0].idx == 0 else str(getattr(first, "key", first))
            yield name + "".join(str(key) for key in inner), leaf


def _keep(
    subject: Subject,
    context: Any,
    module: dict[str, Any],
    named: Iterable[tuple[str, str, Tensor]],
    outputs: list[str],
) -> tuple[str, ...]:
    """Write the module, the map of its parameters, and the values of those without a name."""
    parameters: dict[int, HloParameter] = {}
    constants: dict[str, Tensor] = {}
    unused: list[str] = []

    def add(number: int, kind: str, name: str, tensor: Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        parameters[number] = HloParameter(
            id=number, kind=kind, name=name, shape=tuple(tensor.shape), dtype=dtype
        )

    for kind, name, tensor in named:
        number = context.tensor_parameter_id(tensor)
        if number < 0:
            unused += [name] if kind == "input" else []
        elif (known := parameters.get(number)) is not None:
            parameters[number] = msgspec.structs.replace(known, aliases=(*known.aliases, name))
        else:
            add(number, kind, name, tensor)
    if len(module.get("hostProgramShape", {}).get("parameters", ())) > len(parameters):
        for number, value in sorted(context.parameter_id_tensor_mapping().items()):
            if number not in parameters:
                constants[f"constant.{number}"] = value.contiguous()
                add(number, "constant", f"constant.{number}", value)
    listed = records.HloParameters(
        parameters=tuple(parameters[number] for number in sorted(parameters)),
        unused_inputs=tuple(unused),
        outputs=tuple(outputs),
    )
    folder = subject.artifacts
    (folder / HLO_ARTIFACT).write_bytes(context.hlo())
    text = msgspec.json.format(msgspec.json.encode(listed), indent=1)
    (folder / PARAMETERS_ARTIFACT).write_bytes(text + b"\n")
    if not constants:
        return HLO_ARTIFACT, PARAMETERS_ARTIFACT
    with torch.no_grad():
        save_file(constants, folder / CONSTANTS_ARTIFACT)
    return HLO_ARTIFACT, PARAMETERS_ARTIFACT, CONSTANTS_ARTIFACT


def _most_frequent(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


# --- execution -----------------------------------------------------------------------------------


Execution = tuple[int, bool, records.Numerics, dict[str, int | float | None]]
"""The graphs that the first call compiled, whether the model draws random numbers, the comparison,
and the fields of `XlaDetail` about compilation. XLA's generator returns other numbers than the
CPU's for the same seed, so those are drawn on the CPU, only for the comparison."""


def execute(subject: Subject) -> Execution:
    """Make two identical calls and one with a larger batch, and compare."""
    placed = on_device(subject)
    graphs, seconds = _compiled(placed)
    again, _ = _compiled(fed(placed, subject))
    subject.enter(records.Phase.COMPARE)
    larger = execution.enlarged(subject)
    recompiles = _compiled(fed(placed, larger))[0] if larger is not None else None
    before = torch.get_rng_state()
    with preserved(subject.module):
        call_once(subject, subject.module)
    draws = not torch.equal(before, torch.get_rng_state())

    def on_xla() -> dict[str, Any]:
        # The same call as before, and so the same graph: copies on the device would be another one.
        with _DrawnOnCpu() if draws else nullcontext(), _ran(fed(placed, subject)) as y:
            results = execution.comparable(placed, y)
            return {n: v.cpu() if isinstance(v, Tensor) else v for n, v in results.items()}

    observed, module = execution.observed, subject.module
    comparison = numerics.assess(
        lambda: observed(subject, module),
        on_xla,
        lambda: execution.observed_in_float64(subject),
        {"": [partial(observed, single, module) for single in execution.samples(subject)]},
    )
    compilation = {"recompiles_same_inputs": again, "recompiles": recompiles}
    return graphs, draws, comparison, {"compile_seconds": seconds, **compilation}


def _compiled(placed: Subject) -> tuple[int, float]:
    """Return graphs and seconds that one call compiled; nothing is pending before or after it."""
    with _ran(placed):
        data = met.metric_data("CompileTime")  # in nanoseconds
        return compiled_graphs(), float(data[1]) / 1e9 if data is not None else 0.0


@contextmanager
def _ran(placed: Subject) -> Iterator[Any]:
    """Yield the output of one call that has run; afterwards the module is restored."""
    with preserved(placed.module):
        placed.module.zero_grad(set_to_none=True)
        torch_xla.sync(wait=True)
        met.clear_all()
        output = call_once(placed, placed.module)
        torch_xla.sync(wait=True)
        yield output
    torch_xla.sync(wait=True)


class _DrawnOnCpu(TorchDispatchMode):  # type: ignore[misc]
    """Makes every operator that draws random numbers use the CPU's generator."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func._schema.name.endswith("_"):
            # In place: the old content is irrelevant, so it need not be copied from the device.
            drawn = func(torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:], **kwargs)
            args[0].copy_(drawn)
            return args[0]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        args, kwargs = tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
        return tree_map_only(Tensor, lambda t: t.to(torch_xla.device()), func(*args, **kwargs))


# --- why a graph ends early ----------------------------------------------------------------------

VALUE_READS = frozenset({"aten::_local_scalar_dense", "aten::equal"})
"""Operators that return a Python value: it is not a tensor, so no graph can contain it."""

_TRACEBACK = "traceback_"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)


def watch(subject: Subject) -> tuple[GraphBreak, ...]:
    """Run one call and return a graph break for each fallback and cut, with its line.

    In the backward pass, the line is that of the forward operator.
    """
    placed = on_device(subject)
    watcher = _Watcher()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), watcher:
        call_once(placed, placed.module)
    return graph_breaks.merge(watcher.breaks)


def settle(
    watched: Iterable[GraphBreak], fallbacks: dict[str, int], executions: int
) -> tuple[GraphBreak, ...]:
    """Return the graph breaks that the counts of the unwatched call prove.

    Fallbacks are as watched; those that the watched run did not show have no place. Cuts have no
    counter of their own: they are as watched, and if graphs ran for no known reason, that is one.
    """
    left = Counter(fallbacks)
    settled = []
    for seen in watched:
        count = seen.occurrences
        if seen.gb_type is not None:
            count = min(count, left[seen.gb_type])
            left[seen.gb_type] -= count
        if count:
            settled.append(msgspec.structs.replace(seen, occurrences=count))
    settled += [unattributed(name, count) for name, count in left.items() if count > 0]
    if executions and not settled:
        settled.append(unattributed(None, executions))
    return tuple(settled)


class _Watcher(TorchDispatchMode):  # type: ignore[misc]
    """Compares torch_xla's counters before and after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks: list[GraphBreak] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before, ran = fallbacks(), executions()
        result = func(*args, **(kwargs or {}))
        outside = Counter(fallbacks()) - Counter(before)
        stack = _stack() if outside or executions() > ran else ()
        for name, count in outside.items():
            self.breaks += [_break(name, stack)] * count
        if stack and not outside:
            reason = f"{func} needed values, for example on the CPU: everything pending ran first."
            self.breaks.append(_at(stack, "xla_graph_cut", None, reason))
        return result


def _break(name: str, stack: tuple[StackFrame, ...]) -> GraphBreak:
    if name in VALUE_READS:
        reason = (
            f"{name} returns a value to Python (.item(), a condition, a comparison): the graph "
            "ends there, and what follows is valid for these inputs only."
        )
        return _at(stack, "xla_value_read", name, reason)
    reason = (
        f"{name} has no lowering to XLA: it ran on the CPU, which ends the graph there and "
        "makes its result data of these inputs."
    )
    return _at(stack, "xla_fallback", name, reason)


def _at(stack: tuple[StackFrame, ...], code: str, name: str | None, reason: str) -> GraphBreak:
    """Return a break at the model's innermost line: its author cannot change torch below it."""
    own = [frame for frame in stack if not frame.file.startswith(("torch/", "torch_xla/"))]
    place = graph_breaks.place_of(own or stack)
    return graph_breaks.graph_break(code, reason, place, stack, gb_type=name)


def unattributed(name: str | None, count: int) -> GraphBreak:
    """Return graph breaks that torch_xla's counters prove without a place, for one operator."""
    what = name or "graphs besides the expected one"
    reason = f"torch_xla counted this break ({what}), but a second run did not show where."
    one = _at((), records.UNATTRIBUTED, name, reason)
    return msgspec.structs.replace(one, occurrences=count)


def _stack() -> tuple[StackFrame, ...]:
    """Return the model's stack, outermost first; in backward that of the forward operator."""
    node = torch._C._current_autograd_node()
    recorded = node.metadata.get(_TRACEBACK) if node is not None else None
    frames: Iterable[FrameSummary] = traceback.extract_stack()[:-2]
    if recorded:
        text = "".join(recorded)
        frames = [FrameSummary(f["file"], int(f["line"]), f["name"]) for f in _FRAME.finditer(text)]
    return tuple(frame for frame in graph_breaks.user_stack(frames) if frame.line)


# --- torch.export --------------------------------------------------------------------------------


def capture_exported(subject: Subject, *, decomposed: bool = False) -> Captured:
    """Do what `capture_hlo` does with the exported program, forward only.

    `decomposed`, in core ATen operators: XLA lacks some composite operators (2.9), and the
    decompositions reject some programs that can be lowered.
    """
    program, outputs = _exported(subject)
    with torch.no_grad():
        program = program.run_decompositions() if decomposed else program
        module = move_to_device_pass(program, str(torch_xla.device())).module()
        named = list(_named_inputs(subject.inputs))
        tensors = tuple(tensor for _, tensor in named)
        inputs = ExampleInputs(strategy=subject.inputs.strategy, args=tensors)
        placed = fed(replace(subject, module=module), replace(subject, inputs=inputs))
        names = [name for name, _ in named]
        return _lower(subject, placed, "export", names, outputs)


def _exported(subject: Subject) -> tuple[ExportedProgram, list[str]]:
    """Return the program of tensors only, and the names of its results."""
    outputs: list[str] = []
    register_containers(subject.module)
    flat = execution.Flat(subject, outputs)
    tensors = flat.tensors(*subject.inputs.args, **subject.inputs.kwargs)
    with preserved(subject.module), torch.no_grad():
        program = torch.export.export(flat, tensors, strict=False)
    return program, outputs
