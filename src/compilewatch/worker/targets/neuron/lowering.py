"""A forecast for Neuron: does the public part of TorchNeuron's compiler lower the model?

`torch.compile(backend="neuron")` is Dynamo, AOTAutograd with decompositions, passes over the
graph, torch-mlir (AWS's fork) to StableHLO, and neuronx-cc. All but what AWS adds to torch-mlir is
public and runs here, on a declared device. What lowers may fail in AWS's own steps; what torch-mlir
rejects, and TorchNeuron is not known to replace, is expected to fail.

Where a graph fails, each distinct operator is lowered alone, and the graph once more without those
that fail: either it lowers, and they are all that it lacks, or the compiler's message is kept.

Pipeline: torch_neuronx 0.1.0 (public beta), `neuron_dynamo_backend/backend.py` and
`fx/fx_transform.py`; its pipeline `torch-raw-to-neuron-backend-pipeline` is not public. Torch-mlir
can use all memory or crash, so it only runs in limited forks, without threads.
"""

import io
import operator
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from compilewatch import records
from compilewatch.contract.failures import RecordedError, one_line
from compilewatch.contract.processes import tail
from compilewatch.records import NeuronDetail, NeuronGraph, NeuronOperator, Status
from compilewatch.worker import forked
from compilewatch.worker.device import torch_device
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo import capture as captures
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo import target as dynamo
from compilewatch.worker.targets.neuron import decompositions

ROUTE = "lowering"
FOLDER = "stablehlo"

PIPELINES = (
    (
        "torch",
        "builtin.module(func.func(torch-match-quantized-custom-ops),"
        "torchdynamo-export-to-torch-backend-pipeline)",
    ),
    ("stablehlo", "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"),
)
"""The stages behind the import, and torch-mlir's pipelines for them, as TorchNeuron runs them."""

LIMIT_SECONDS = 120.0
"""For one graph, and for all of its operators alone."""

CRASH = "crash"
MEMORY = "memory"
"""Stages of what ended torch-mlir's process, which says nothing about the model."""

_INT64_MAX = 2**63 - 1
_SLICES = (torch.ops.aten.slice.Tensor, torch.ops.aten.slice_scatter.default)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_Value = TypeVar("_Value")
_Rejection = tuple[str, str]
"""The stage that rejects something, and the compiler's message; both "" if none does."""


class LoweringError(Exception):
    """Torch-mlir rejects a graph in a stage."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def evaluate(subject: Subject) -> records.TargetOutcome:
    """Forecast the subject, whose fake tensors are on the declared device of its request.

    A subject with real tensors on the CPU runs in eager mode on them; its graphs are moved to the
    declared device. Raises FakeUnsupportedError if fake tensors cannot lead to a forecast.
    """
    target = subject.request.target
    if target.dynamic:
        return records.TargetOutcome(
            status=Status.UNSUPPORTED,
            detail="TorchNeuron compiles static shapes only (NCC_EMOD025): leave out dynamic",
        )
    static = msgspec.structs.replace(target, dynamic=False)
    request = msgspec.structs.replace(subject.request, target=static)
    subject = replace(subject, request=request)
    subject.enter(records.Phase.COMPILE)
    outcome = subject.in_fork(_forecast, records.TargetOutcome)
    if outcome.error is not None:
        dynamo.after_failure(subject, outcome, by_compiler=False)
    return outcome


def _forecast(subject: Subject) -> records.TargetOutcome:
    forecast = _Forecast(subject)
    captured, _ = dynamo.captured_breaks(subject, backend=forecast.backend)
    return forecast.outcome(captured)


class _Forecast:
    """The lowering of a model's graphs, in the order in which Dynamo captures them."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._folder = subject.artifacts / FOLDER
        self._folder.mkdir(exist_ok=True)
        self._graphs: list[NeuronGraph] = []
        self._operators: dict[tuple[str, str], NeuronOperator] = {}
        self._alone: dict[tuple[str, str], _Rejection] = {}
        self._taken_out: Counter[str] = Counter()
        self._unexplained: list[str] = []

    def backend(self, graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Lower a graph of Dynamo, and return what runs it without a device."""
        eager = captures.eager_backend(self._subject)
        moved, moved_inputs = graph, inputs
        if self._subject.fake_mode is None:
            moved, moved_inputs = _on_device(graph, inputs, self._device)
        compiled = captures.unexecuted_backend(
            moved, moved_inputs, decompositions=decompositions.table(), see=self._lower
        )
        training = self._subject.request.target.mode is records.Mode.TRAIN
        return compiled if training and moved is graph else eager(graph, inputs)

    @property
    def _device(self) -> torch.device:
        return torch_device(self._subject.request.device)

    def _lower(self, direction: str, module: GraphModule) -> None:
        """Lower one graph, and find the operators for which it fails."""
        began = time.monotonic()
        module = GraphModule(module, _prepared(module))
        calls = [node for node in module.graph.nodes if _is_operator(node)]
        found = NeuronGraph(direction=direction, nodes=len(calls))
        path = self._folder / f"graph_{len(self._graphs):03}_{direction}.mlir"
        passes = time.monotonic() - began
        found, message = self._attempt(found, module, path)
        if found.failed_stage is not None:
            self._look_at_each(calls)
            rejected = [node for node in calls if self._alone[_identity(node)][0]]
            self._count(rejected)
            if rejected:
                again, message = self._attempt(found, module, path, rejected)
                found = msgspec.structs.replace(found, stablehlo_bytes=again.stablehlo_bytes)
                if all(map(decompositions.handled_by, rejected)):
                    found = again
            if message:
                self._unexplained.append(f"{direction} graph: {message}")
        seconds = {"passes": round(passes, 3), **found.seconds}
        self._graphs.append(msgspec.structs.replace(found, seconds=seconds))

    def _attempt(
        self, found: NeuronGraph, module: GraphModule, path: Path, without: Sequence[Node] = ()
    ) -> tuple[NeuronGraph, str]:
        """Lower a graph without some operators; return it with its result, and a message or ""."""

        def lower() -> tuple[NeuronGraph, str]:
            began = time.monotonic()
            _take_out(module.graph, without)
            result, message = msgspec.structs.replace(found, failed_stage=None), ""
            try:
                written = to_stablehlo(module)
                path.write_bytes(written)
                result = msgspec.structs.replace(result, stablehlo_bytes=len(written))
            except LoweringError as error:
                result = msgspec.structs.replace(result, failed_stage=error.stage)
                message = str(error)
            seconds = {"lower": round(time.monotonic() - began, 3)}
            return msgspec.structs.replace(result, seconds=seconds), message

        try:
            return self._limited(lower, tuple[NeuronGraph, str])
        except LoweringError as ended:
            return msgspec.structs.replace(found, failed_stage=ended.stage), str(ended)

    def _look_at_each(self, nodes: Iterable[Node]) -> None:
        """Lower each operator alone that has not been lowered alone yet."""
        new = {_identity(node): node for node in nodes if _identity(node) not in self._alone}
        self._alone |= zip(new, self._rejections(list(new.values())), strict=True)

    def _rejections(self, nodes: list[Node]) -> list[_Rejection]:
        """Lower operators alone, each in its own module; where that ends the process, fewer."""
        try:
            return self._limited(lambda: [_rejection(node) for node in nodes], list[_Rejection])
        except LoweringError as ended:
            if len(nodes) == 1:
                return [(ended.stage, str(ended))]
            half = len(nodes) // 2
            return [*self._rejections(nodes[:half]), *self._rejections(nodes[half:])]

    def _count(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            key = _identity(node)
            stage, message = self._alone[key]
            file, line = _place(node)
            known = self._operators.get(key) or NeuronOperator(
                name=key[0],
                types=key[1],
                occurrences=0,
                stage=stage,
                message=message,
                file=file,
                line=line,
                handled_by=decompositions.handled_by(node),
            )
            more = known.occurrences + 1
            self._operators[key] = msgspec.structs.replace(known, occurrences=more)

    def _limited(self, function: Callable[[], _Value], kind: Any) -> _Value:
        """Call a function in a limited fork. Raises LoweringError if that ends it."""
        log = self._folder / "stderr.txt"

        def inside() -> _Value:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 2)  # what ends a process of C++ says why there
            limit = _mapped_bytes() + self._subject.request.memory_limit_bytes // 2
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
            with _disable_current_modes():
                return function()

        try:
            return forked.in_fork(inside, kind, limit_seconds=LIMIT_SECONDS)
        except forked.ForkEndedError as error:
            stage = MEMORY if "std::bad_alloc" in tail(log, 4096) else CRASH
            raise LoweringError(stage, f"torch-mlir: {error}") from None
        except RecordedError as error:
            if error.record.code != "out_of_memory":
                raise
            raise LoweringError(MEMORY, error.line) from None

    def outcome(self, captured: records.TargetOutcome) -> records.TargetOutcome:
        """Return the forecast, given what Dynamo captured."""
        lacking = [entry for entry in self._operators.values() if not entry.handled_by]
        failed = next((graph.failed_stage for graph in self._graphs if graph.failed_stage), None)
        stage = "lower" if failed else None
        if captured.status is Status.ERROR:
            assert captured.error is not None
            in_aot = captured.error.code in (graph_breaks.AOT_AUTOGRAD, "backend_error")
            stage = "aot" if in_aot else "dynamo"
        ends = {graph.failed_stage for graph in self._graphs} | {entry.stage for entry in lacking}
        status = Status.FORECAST_FAIL if stage else Status.FORECAST_PASS
        if stage == "lower" and ends <= {None, CRASH, MEMORY}:
            status = Status.OOM if MEMORY in ends else Status.CRASHED
        kept = sorted(path.name for path in self._folder.glob("*.mlir"))
        return msgspec.structs.replace(
            captured,
            status=status,
            detail=self._words(captured, lacking, stage),
            details=NeuronDetail(
                target=self._family(),
                route=ROUTE,
                graphs=tuple(self._graphs),
                operators=tuple(self._operators.values()),
                failed_stage=stage,
                lowering_version=metadata.version("torch-mlir"),
            ),
            artifacts=(*captured.artifacts, *(f"{FOLDER}/{name}" for name in kept)),
        )

    def _family(self) -> str:
        device = self._subject.request.device
        return self._subject.request.target.backend or (device.name if device else "")

    def _words(
        self, captured: records.TargetOutcome, lacking: list[NeuronOperator], stage: str | None
    ) -> str:
        if stage in ("aot", "dynamo"):
            return captured.detail
        number = len(self._graphs)
        size = sum(graph.stablehlo_bytes or 0 for graph in self._graphs) / 1024
        words = [f"{number} graph{'s' * (number != 1)} to {size:.0f} KiB of StableHLO"]
        if lacking:
            places = (
                f"{entry.name} ({entry.file}:{entry.line})" if entry.file else entry.name
                for entry in {entry.name: entry for entry in reversed(lacking)}.values()
            )
            words = [f"no lowering: {', '.join(places)}"]
        if self._unexplained:
            words.append(
                f"and otherwise: {self._unexplained[0]}" if lacking else self._unexplained[0]
            )
        handled = dict.fromkeys(e.name for e in self._operators.values() if e.handled_by)
        if handled:
            words.append(f"without {', '.join(handled)}, which TorchNeuron replaces itself")
        if captured.graph_breaks:
            words.append(f"graph breaks {captured.graph_breaks}")
        if self._subject.fake_mode is None:
            words.append("captured on the CPU with values, and moved to the declared device")
        return "; ".join(words)


def to_stablehlo(module: GraphModule) -> bytes:
    """Return the StableHLO of a graph as MLIR's bytecode. Raises LoweringError."""
    from torch_mlir import fx, ir
    from torch_mlir.passmanager import PassManager

    try:
        lowered = fx.stateless_fx_import(module, output_type="raw")
    except Exception as error:
        raise LoweringError("import", one_line(error, limit=500)) from error
    with lowered.context as context:
        context.enable_multithreading(False)
        for stage, pipeline in PIPELINES:
            try:
                PassManager.parse(pipeline).run(lowered.operation)
            except ir.MLIRError as error:
                raise LoweringError(stage, _message(error)) from None
    written = io.BytesIO()
    lowered.operation.write_bytecode(written)
    return written.getvalue()


def _message(error: Any) -> str:
    """Return the first message of the compiler with the operation that it is about."""
    for diagnostic in error.error_diagnostics:
        notes = (note.message for note in diagnostic.notes)
        about = next((note for note in notes if note.startswith("see current operation")), "")
        return " ".join(f"{diagnostic.message} {about}".split())[:500]
    return one_line(error, limit=500)


def _rejection(node: Node) -> _Rejection:
    """Lower the operator of a node alone: a graph with its inputs as arguments."""
    try:
        to_stablehlo(alone(node))
    except LoweringError as error:
        return error.stage, str(error)
    return "", ""


def alone(node: Node) -> GraphModule:
    """Return a graph of one operator, with each tensor that it gets as an argument."""
    graph, arguments = Graph(), {}
    for source in node.all_input_nodes:
        if isinstance(source.meta.get("val"), Tensor):
            arguments[source] = graph.placeholder(source.name)
        else:  # a graph of a higher-order operator
            arguments[source] = graph.get_attr(str(source.target))
        arguments[source].meta = dict(source.meta)
    copied = graph.node_copy(node, arguments.__getitem__)
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        parts = []
        for index, part in enumerate(value):
            if isinstance(part, Tensor):
                parts.append(graph.call_function(operator.getitem, (copied, index)))
                parts[-1].meta = {"val": part}
        graph.output(tuple(parts))
    else:
        graph.output((copied,))
    return GraphModule(node.graph.owning_module, graph)


def _prepared(module: GraphModule) -> Graph:
    """Return a copy of a graph after the passes that TorchNeuron runs behind AOTAutograd.

    They drop outputs that are no tensors and put random numbers outside: dropout becomes an
    argument. The ends of slices are their sizes, since torch-mlir lowers a `slice_scatter` up to
    2^63 - 1 by a tensor of that length. A constant that cannot be written is an argument.
    """
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.find_nodes(op="get_attr"):
        constant = operator.attrgetter(str(node.target))(module)
        if isinstance(constant, Tensor):
            node.meta.setdefault("val", constant)
            if type(constant) is not Tensor or constant.dtype is torch.bfloat16:
                _replace_by_argument(graph, node, node.meta["val"])
    for node in graph.nodes:
        if node.target in _SLICES and _INT64_MAX in node.args:
            dim = node.args[1 + (node.target is _SLICES[1])] if len(node.args) > 1 else 0
            end = node.args[0].meta["val"].shape[dim]
            node.args = tuple(end if value == _INT64_MAX else value for value in node.args)
    (output,) = graph.find_nodes(op="output")
    flat = output.args[0] if isinstance(output.args[0], list | tuple) else (output.args[0],)
    output.args = (tuple(node for node in flat if _is_tensor(node)),)
    dropout = torch.ops.aten.native_dropout.default
    _take_out(graph, graph.find_nodes(op="call_function", target=dropout))
    graph.eliminate_dead_code()
    return graph


def _take_out(graph: Graph, nodes: Iterable[Node]) -> None:
    """Make the results of operators arguments of a graph, and what they get results of it."""
    (output,) = graph.find_nodes(op="output")
    for node in nodes:
        sources = [source for source in node.all_input_nodes if _is_tensor(source)]
        output.args = ((*output.args[0], *sources),)
        parts = [user for user in node.users if user.target is operator.getitem]
        for part in parts or [node]:
            _replace_by_argument(graph, part, part.meta["val"])
        if parts:
            graph.erase_node(node)


def _replace_by_argument(graph: Graph, node: Node, value: Any) -> None:
    last = [*graph.find_nodes(op="placeholder")][-1:]
    with graph.inserting_after(last[0]) if last else graph.inserting_before():
        argument = graph.placeholder(f"without_{node.name}")
    argument.meta = {"val": value}
    node.replace_all_uses_with(argument)
    graph.erase_node(node)


def _on_device(
    graph: GraphModule, inputs: list[Any], device: torch.device
) -> tuple[GraphModule, list[Any]]:
    """Return a graph of Dynamo, captured on the CPU, with its tensors as fake ones of a device."""
    mode = TracingContext.get().fake_mode
    assert mode is not None

    def fake(tensor: Tensor) -> Tensor:
        with mode, torch.no_grad():
            moved = mode.from_tensor(tensor) if not mode.is_our_fake(tensor) else tensor
            moved = moved.detach().to(device)
        return moved.requires_grad_(tensor.requires_grad)

    moved = Graph()
    moved.output(moved.graph_copy(graph.graph, {}))
    moved_inputs = tree_map_only(Tensor, fake, list(inputs))
    for node in moved.find_nodes(op="get_attr"):
        constant = operator.attrgetter(str(node.target))(graph)
        if isinstance(constant, Tensor):
            moved_inputs.append(fake(constant))
            _replace_by_argument(moved, node, moved_inputs[-1])
    cpu = torch.device("cpu")
    for node in moved.nodes:
        node.args, node.kwargs = tree_map_only(
            torch.device, lambda named: device if named == cpu else named, (node.args, node.kwargs)
        )
    return GraphModule(graph, moved), moved_inputs


def _is_operator(node: Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), Tensor)


def _identity(node: Node) -> tuple[str, str]:
    """Return the name of a node's operator and its types; equal ones lower alike."""

    def typed(value: Any) -> str:
        if isinstance(value, Node):
            return typed(value.meta.get("val"))
        if isinstance(value, Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(typed, value))}]"
        return str(value)

    named = (f"{name}={typed(value)}" for name, value in node.kwargs.items() if value is not None)
    arguments = ", ".join((*map(typed, node.args), *named))
    return str(node.target), f"({arguments}) -> {typed(node.meta.get('val'))}"


def _place(node: Node) -> tuple[str, int]:
    """Return file and line of the innermost frame of the model, "" and 0 without a stack."""
    frames = [
        (graph_breaks.package_path(frame["file"]), int(frame["line"]))
        for frame in _FRAME.finditer(node.stack_trace or "")
    ]
    own = [frame for frame in frames if not frame[0].startswith("torch/")]
    return (own or frames or [("", 0)])[-1]


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")
