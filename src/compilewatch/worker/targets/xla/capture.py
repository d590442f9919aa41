"""Captures the HLO module of one call, and maps its parameters to weights, inputs and constants.

Each capture needs its own process: whatever runs outside XLA leaves its result in the graph as a
parameter or a constant, which is data of these example inputs.

The XLA device of this process: moving a subject there, and the counters of torch_xla.

Importing this module needs torch_xla; only using it creates a device client, whose threads make a
fork impossible. Names of counters and metrics: `torch_xla/debug/metrics.py` (2.9).

Why a lazy graph of XLA ends early: operators that run outside XLA, and values that are read.

An operator without a lowering runs on the CPU: everything pending is compiled and executed, the
operands are copied to the CPU, and the result enters the next graph as data. torch_xla counts these
operators (`aten::…`) but not where they are; a second run, watched operator by operator, shows it.

From `torch.export` to XLA: StableHLO, and HLO modules of models whose own capture breaks.

Lazy tensors run the model's code like eager mode. A model that reads a value (whether its mask is
all ones) therefore reads it there, too, and the graph is only valid for that value. An exported
program is valid for every value, or there is none.
"""

from __future__ import annotations

import copy
import json
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from traceback import FrameSummary
from typing import Any

import msgspec
import torch
import torch._dynamo
import torch_xla
import torch_xla.debug.metrics as met
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_map_only, tree_unflatten
from torch_xla.stablehlo import exported_program_to_stablehlo

from compilewatch.records import (
    ExportVariant,
    GraphBreak,
    HloParameter,
    HloParameters,
    Numerics,
    OpenXla,
    Phase,
    Record,
    StackFrame,
)
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.dynamo.capture import capture, unmeasured_guards
from compilewatch.worker.targets.dynamo.graph_breaks import (
    SKIPPED_FRAME,
    UNATTRIBUTED,
    UNKNOWN,
    BreakCause,
    graph_break,
    merge,
    place_of,
    user_stack,
)
from compilewatch.worker.targets.execution import (
    comparable,
    enlarged,
    forward,
    mapped,
    observed,
    observed_in_float64,
    samples,
)
from compilewatch.worker.targets.export.target import operators, register_containers
from compilewatch.worker.targets.xla.isolation import Enter
from compilewatch.worker.targets.xla.target import STABLEHLO_ARTIFACT

DEVICE_TYPE = "xla"
_OUTSIDE = "aten::"
_LOWERED = "xla::"


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
    placed = replace(subject, module=copy.deepcopy(subject.module, memo))
    return fed(placed, subject)


def fed(placed: Subject, subject: Subject) -> Subject:
    """Return the subject on the device with copies of another's inputs, nothing being pending."""
    device = torch_xla.device()
    inputs = mapped(subject.inputs, lambda tensor: tensor.to(device))
    torch_xla.sync(wait=True)
    return replace(placed, inputs=inputs)


def is_placed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def counter(name: str) -> int:
    return int(met.counter_value(name) or 0)


def compiled_graphs() -> int:
    """Return the number of graphs that XLA compiled since the last `clear_all`."""
    return counter("UncachedCompile")


def executions() -> int:
    """Return the number of graphs that ran since then, including cached ones."""
    return counter("ExecuteComputation")


def compile_seconds() -> float:
    """Return the seconds in XLA's compiler since then (the metric is in nanoseconds)."""
    data = met.metric_data("CompileTime")
    return float(data[1]) / 1e9 if data is not None else 0.0


def fallbacks() -> dict[str, int]:
    """Return how often each operator (`aten::nonzero`) ran outside XLA, on the CPU, since then."""
    return _counted(_OUTSIDE)


def lowered() -> dict[str, int]:
    """Return how often each operator (`aten::sort`) was recorded for XLA since then."""
    counts = _counted(_LOWERED)
    return {_OUTSIDE + name.removeprefix(_LOWERED): count for name, count in counts.items()}


def _counted(prefix: str) -> dict[str, int]:
    return {name: counter(name) for name in met.counter_names() if name.startswith(prefix)}


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
    return lower(subject, on_device(subject), Names())


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
    results = {name: value for name, value in numerics.leaves(output) if is_placed(value)}
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
        lowered=lowered(),
        fallbacks=fallbacks(),
        executions=executions(),
    )


def _is_pending(tensor: Tensor) -> bool:
    """Whether a result must still be computed: written buffers keep their version (2.9)."""
    if not is_placed(tensor):
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


class Execution(Record, frozen=True, kw_only=True):
    """The result of running. Counts are of compiled graphs; `compile_seconds` of the first call.

    `draws`: the model draws random numbers. XLA's generator returns other numbers than the CPU's
    for the same seed, so they were drawn on the CPU, only for the comparison.
    """

    graphs: int
    compile_seconds: float
    recompiles_same_inputs: int
    recompiles: int | None
    draws: bool
    numerics: Numerics


def execute(subject: Subject, enter: Enter) -> Execution:
    """Make two identical calls and one with a larger batch, and compare; a step for `isolated`."""
    placed = on_device(subject)
    graphs, seconds = _call(placed)
    again, _ = _call(fed(placed, subject))
    enter(Phase.COMPARE)
    larger = _larger(subject)
    recompiles = _call(fed(placed, larger))[0] if larger is not None else None
    draws = _draws(subject)
    return Execution(
        graphs=graphs,
        compile_seconds=seconds,
        recompiles_same_inputs=again,
        recompiles=recompiles,
        draws=draws,
        numerics=_numerics(subject, placed, draws),
    )


def _call(placed: Subject) -> tuple[int, float]:
    """Return graphs and seconds that one call compiled; nothing is pending before or after it."""
    with _ran(placed):
        return compiled_graphs(), compile_seconds()


@contextmanager
def _ran(placed: Subject) -> Iterator[Any]:
    """Yield the output of one call that has run; afterwards the module is restored."""
    with preserved(placed.module):
        placed.module.zero_grad(set_to_none=True)
        torch_xla.sync(wait=True)
        met.clear_all()
        output = forward(placed, placed.module, placed.inputs)
        torch_xla.sync(wait=True)
        yield output
    torch_xla.sync(wait=True)


def _larger(subject: Subject) -> Subject | None:
    """Return the subject with a batch larger by one, None if eager mode rejects it."""
    inputs = enlarged(subject.inputs)
    if inputs is None:
        return None
    with preserved(subject.module):
        try:
            forward(subject, subject.module, inputs)
        except Exception:  # noqa: BLE001  (model code, with inputs that may not fit)
            return None
    return replace(subject, inputs=inputs)


def _draws(subject: Subject) -> bool:
    before = torch.get_rng_state()
    with preserved(subject.module):
        forward(subject, subject.module, subject.inputs)
    return not torch.equal(before, torch.get_rng_state())


def _numerics(subject: Subject, placed: Subject, draws: bool) -> Numerics:
    def on_xla() -> dict[str, Any]:
        # The same call as before, and so the same graph: copies on the device would be another one.
        with _DrawnOnCpu() if draws else nullcontext(), _ran(fed(placed, subject)) as y:
            results = comparable(placed, y)
            return {n: v.cpu() if isinstance(v, Tensor) else v for n, v in results.items()}

    return numerics.assess(
        lambda: observed(subject, subject.module),
        on_xla,
        lambda: observed_in_float64(subject),
        [partial(observed, single, subject.module) for single in samples(subject)],
    )


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


FALLBACK = "xla_fallback"
VALUE_READ = "xla_value_read"
GRAPH_CUT = "xla_graph_cut"

VALUE_READS = frozenset({"aten::_local_scalar_dense", "aten::equal"})
"""Operators that return a Python value: it is not a tensor, so no graph can contain it."""

_TORCH = ("torch/", "torch_xla/")
_TRACEBACK = "traceback_"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)


class Watched(Record, frozen=True, kw_only=True):
    """The graph breaks of one watched call, each with its place."""

    breaks: tuple[GraphBreak, ...]


def watch(subject: Subject, _enter: Enter) -> Watched:
    """Run one call and record the line of each fallback and cut; a step for `isolated`.

    In the backward pass, the line is that of the forward operator.
    """
    placed = on_device(subject)
    watcher = _Watcher()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), watcher:
        forward(placed, placed.module, placed.inputs)
    return Watched(breaks=merge(watcher.breaks))


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
        after = Counter(fallbacks())
        outside = after - Counter(before)
        stack = _stack() if outside or executions() > ran else ()
        for name, count in outside.items():
            self.breaks += [_break(name, stack)] * count
        if stack and not outside:
            self.breaks.append(_cut(str(func), stack))
        return result


def _break(name: str, stack: tuple[StackFrame, ...]) -> GraphBreak:
    code, reason = (
        FALLBACK,
        (
            f"{name} has no lowering to XLA: it ran on the CPU, which ends the graph there and "
            "makes its result data of these inputs."
        ),
    )
    if name in VALUE_READS:
        code, reason = (
            VALUE_READ,
            (
                f"{name} returns a value to Python (.item(), a condition, a comparison): the graph "
                "ends there, and what follows is valid for these inputs only."
            ),
        )
    return graph_break(BreakCause(code=code, gb_type=name), reason, _place(stack), stack)


def _cut(name: str, stack: tuple[StackFrame, ...]) -> GraphBreak:
    reason = f"{name} needed values, for example on the CPU: everything pending ran first."
    return graph_break(BreakCause(code=GRAPH_CUT), reason, _place(stack), stack)


def unattributed(name: str | None, count: int) -> GraphBreak:
    """Return graph breaks that torch_xla's counters prove without a place, for one operator."""
    place = StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)
    what = name or "graphs besides the expected one"
    reason = f"torch_xla counted this break ({what}), but a second run did not show where."
    one = graph_break(BreakCause(code=UNATTRIBUTED, gb_type=name), reason, place)
    return msgspec.structs.replace(one, occurrences=count)


def _place(stack: tuple[StackFrame, ...]) -> StackFrame:
    """Return the model's innermost line, because its author cannot change torch below it."""
    return place_of([frame for frame in stack if not frame.file.startswith(_TORCH)] or stack)


def _stack() -> tuple[StackFrame, ...]:
    """Return the model's stack, outermost first; in backward that of the forward operator."""
    node = torch._C._current_autograd_node()
    recorded = node.metadata.get(_TRACEBACK) if node is not None else None
    frames: Iterable[FrameSummary] = traceback.extract_stack()[:-2]
    if recorded:
        text = "".join(recorded)
        frames = [FrameSummary(f["file"], int(f["line"]), f["name"]) for f in _FRAME.finditer(text)]
    return tuple(frame for frame in user_stack(frames) if frame.line)


BACKEND = "openxla"


def capture_for_xla(subject: Subject, _enter: Enter) -> OpenXla:
    """Compile and run one call; a step for `isolated`."""
    placed = on_device(subject)
    met.clear_all()
    with unmeasured_guards():
        captured = capture(
            lambda module: _call_openxla(placed, module),
            placed.module,
            backend=torch._dynamo.lookup_backend(BACKEND),
            dynamic=subject.request.target.dynamic,
        )
    breaks = captured.log.breaks()
    first = breaks[0] if breaks else None
    code = first.code if first else None
    return OpenXla(
        accepted=captured.is_single_graph,
        graphs=captured.graphs,
        graph_breaks=sum(graph_break.occurrences for graph_break in breaks),
        breaks=breaks,
        fallbacks=fallbacks(),
        code=code if captured.is_single_graph or code else SKIPPED_FRAME,
        reason=first.reason if first else None,
    )


def _call_openxla(placed: Subject, module: object) -> None:
    forward(placed, module, placed.inputs)  # type: ignore[arg-type]
    torch_xla.sync(wait=True)


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
    placed = fed(replace(subject, module=module), replace(subject, inputs=inputs))
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
