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
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from compilewatch import records
from compilewatch.contract.failures import RecordedError, one_line
from compilewatch.contract.processes import tail
from compilewatch.neuron import neuronx_cc
from compilewatch.records import NeuronDetail, NeuronFailure, NeuronGraph, NeuronOperator, Status
from compilewatch.worker import forked
from compilewatch.worker.device import torch_device
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo import capture as captures
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo import target as dynamo
from compilewatch.worker.targets.neuron import decompositions

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

KEPT_BYTES = 16 * 2**20
"""StableHLO that is larger is not kept: it consists of constants."""

TORCH_NEURON_FLAGS = ("--model-type", "transformer", "--auto-cast=none", "-O1")
"""What TorchNeuron passes to neuronx-cc (its beta; docs of SDK 2.33: -O1 is its default)."""

_INT64_MAX = 2**63 - 1
_SLICES = (torch.ops.aten.slice.Tensor, torch.ops.aten.slice_scatter.default)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_LOCATION = re.compile(r'"(?P<file>[^"]+\.py)":(?P<line>\d+)')
_Identity = tuple[str, str]
"""The name of an operator and its types: equal ones lower alike."""
_Lowered = tuple[str, str, int | None, float | None]
"""The stage that rejects a graph and the compiler's message, both "" if none does; the bytes of its
StableHLO; and the seconds that it took, if that did not end the process."""


class _Known(msgspec.Struct):
    """What is known of all graphs so far: operators that were lowered alone, and what went wrong.

    Of problems, and of failures of neuronx-cc, only the first is kept.
    """

    graphs: list[NeuronGraph] = []
    operators: dict[_Identity, NeuronOperator] = {}
    problem: str = ""
    failure: NeuronFailure | None = None


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
    static = msgspec.structs.replace(subject.request.target, dynamic=False)
    request = msgspec.structs.replace(subject.request, target=static)
    subject = replace(subject, request=request)
    subject.enter(records.Phase.COMPILE)
    outcome = subject.in_fork(_forecast, records.TargetOutcome)
    if outcome.error is not None:
        dynamo.after_failure(subject, outcome, by_compiler=False)
    return outcome


def _forecast(subject: Subject) -> records.TargetOutcome:
    forecast = _Forecast(subject)
    values = subject.fake_mode is None
    captured, _ = dynamo.captured_breaks(subject, brief=values, backend=forecast.backend)
    return forecast.outcome(captured)


class _Forecast:
    """The lowering of a model's graphs, in the order in which Dynamo captures them."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        assert subject.request.device is not None
        self._family = subject.request.target.backend or subject.request.device.name
        self._folder = subject.artifacts / FOLDER
        self._folder.mkdir(exist_ok=True)
        self._known = _Known()
        compiler = neuronx_cc.find()
        self._compiler = compiler and neuronx_cc.describe(compiler)

    def backend(self, graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Lower a graph of Dynamo, and return what runs it without a device."""
        if self._subject.fake_mode is None:
            self._lower_elsewhere(graph, inputs)
        else:
            compiled = self._traced(graph, inputs)
            if self._subject.request.target.mode is records.Mode.TRAIN:
                return compiled
        return captures.eager_backend(self._subject)(graph, inputs)

    def _traced(self, graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Trace a graph by AOTAutograd, and lower what comes of it."""
        return captures.unexecuted_backend(
            graph, inputs, decompositions=decompositions.table(), see=self._lower
        )

    def _lower_elsewhere(self, graph: GraphModule, inputs: list[Any]) -> None:
        """Lower a graph that was captured on the CPU, where it runs on in eager mode.

        In a fork, because autograd starts a thread for a device where it traces a backward.
        """

        def traced() -> _Known:
            self._traced(*_moved(graph, inputs, self._subject))
            return self._known

        try:
            self._known = forked.in_fork(traced, _Known, limit_seconds=2 * LIMIT_SECONDS)
        except forked.ForkEndedError as error:
            self._known.graphs.append(NeuronGraph(direction="?", nodes=0, failed_stage=CRASH))
            self._note_problem(f"AOTAutograd crashed: {error}")

    def _note_problem(self, problem: str) -> None:
        self._known.problem = self._known.problem or problem

    def _lower(self, direction: str, module: GraphModule) -> None:
        """Lower one graph; then compile it, or find the operators for which it fails."""
        began = time.monotonic()
        module = GraphModule(module, _prepared(module))
        calls = [node for node in module.graph.nodes if _is_operator(node)]
        seconds: dict[str, float | None] = {"passes": round(time.monotonic() - began, 3)}
        file = self._folder / f"graph_{len(self._known.graphs):03}_{direction}.mlir"
        most_bytes = KEPT_BYTES * self._subject.request.keep_artifacts
        if self._compiler:
            most_bytes = sys.maxsize
        (lowered,) = self._in_forks(lambda module: _lowered(module, file, most_bytes), [module])
        stage, message, size, seconds["lower"] = lowered
        neff_bytes = None
        if stage:
            self._look_at_each(calls)
            without = [node for node in calls if self._known.operators[_identity(node)].stage]
            if without:
                all_handled = all(map(decompositions.handled_by, without))
                _take_out(module.graph, without)
                (rest,) = self._in_forks(_lowered, [module])
                message = rest[1]
                if all_handled:
                    stage, _, size, seconds["lower"] = rest
            if message:
                self._note_problem(f"the {direction} graph does not lower: {message}")
        elif self._compiler:
            detail = self._compiled(file, self._compiler)
            seconds["compile"] = round(detail.compile_seconds or 0.0, 3)
            neff_bytes = detail.neff_bytes
            if detail.failure is not None:
                stage = "neff"
                self._known.failure = self._known.failure or detail.failure
                self._note_problem(neuronx_cc.described(detail))
        self._known.graphs.append(
            NeuronGraph(
                direction=direction,
                nodes=len(calls),
                seconds={name: taken for name, taken in seconds.items() if taken is not None},
                stablehlo_bytes=size,
                neff_bytes=neff_bytes,
                failed_stage=stage or None,
            )
        )

    def _compiled(self, module: Path, compiler: neuronx_cc.Compiler) -> NeuronDetail:
        """Compile a lowered graph with the flags of TorchNeuron."""
        flags = ("--framework", "XLA", "--target", self._family, *TORCH_NEURON_FLAGS)
        folder = module.with_suffix("")
        return neuronx_cc.compile_module(compiler, module, folder, target=self._family, flags=flags)

    def _look_at_each(self, nodes: list[Node]) -> None:
        """Lower each operator alone that was not yet, and count the calls of all."""
        operators, counts = self._known.operators, Counter(map(_identity, nodes))
        firsts = {_identity(node): node for node in reversed(nodes)}
        new = {identity: firsts[identity] for identity in counts if identity not in operators}
        results = self._in_forks(lambda node: _lowered(alone(node)), list(new.values()))
        for ((name, types), node), (stage, message, *_) in zip(new.items(), results, strict=True):
            file, line = _place(node)
            operators[name, types] = NeuronOperator(
                name=name,
                types=types,
                occurrences=0,
                stage=stage,
                message=message,
                file=file,
                line=line,
                handled_by=decompositions.handled_by(node),
            )
        for identity, count in counts.items():
            known = operators[identity]
            more = msgspec.structs.replace(known, occurrences=known.occurrences + count)
            operators[identity] = more

    def _in_forks(self, lower: Callable[[Any], _Lowered], values: Sequence[Any]) -> list[_Lowered]:
        """Lower each value in limited forks; what ends a fork is the result of the value."""
        results: list[_Lowered] = []
        lines, log = self._folder / "lowered.jsonl", self._folder / "stderr.txt"

        def lower_the_rest() -> None:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 2)  # what ends a process of C++ says why there
            most = forked.mapped_bytes() + self._subject.request.memory_limit_bytes // 2
            forked.limit(resource.RLIMIT_DATA, most)
            with _disable_current_modes(), lines.open("wb", buffering=0) as stream:
                for value in values[len(results) :]:
                    stream.write(msgspec.json.encode(lower(value)) + b"\n")

        while len(results) < len(values):
            stage, reason = "", ""
            try:
                forked.in_fork(lower_the_rest, type(None), limit_seconds=LIMIT_SECONDS)
            except forked.ForkEndedError as error:
                stage, reason = CRASH, str(error)
                if "std::bad_alloc" in tail(log, 4096):
                    stage = MEMORY
            except RecordedError as error:
                if error.record.code != "out_of_memory":
                    raise
                stage, reason = MEMORY, error.line
            results += msgspec.json.Decoder(_Lowered).decode_lines(lines.read_bytes())
            if stage:
                results.append((stage, f"lowering crashed: {reason}", None, None))
        log.unlink()
        lines.unlink()
        return results

    def outcome(self, captured: records.TargetOutcome) -> records.TargetOutcome:
        """Return the forecast, given what Dynamo captured."""
        known = self._known
        rejected = tuple(entry for entry in known.operators.values() if entry.stage)
        lacking = [entry for entry in rejected if not entry.handled_by]
        ends = {graph.failed_stage for graph in known.graphs} - {None}
        stage = ("neff" if ends == {"neff"} else "lower") if ends else None
        if captured.error is not None:
            by_aot = captured.error.code in (graph_breaks.AOT_AUTOGRAD, "backend_error")
            stage = "aot" if by_aot else "dynamo"
        status = Status.FORECAST_FAIL if stage else Status.FORECAST_PASS
        ends |= {entry.stage for entry in lacking}
        if stage == "lower" and ends <= {CRASH, MEMORY}:
            status = Status.OOM if MEMORY in ends else Status.CRASHED
        places = {
            entry.name: f"{entry.name} ({entry.file}:{entry.line})" if entry.file else entry.name
            for entry in reversed(lacking)
        }
        handled = dict.fromkeys(entry.name for entry in rejected if entry.handled_by)
        size = sum(graph.stablehlo_bytes or 0 for graph in known.graphs) / 1024
        lowered = f"graphs {len(known.graphs)}, StableHLO {size:,.0f} KiB"
        words = (
            f"no lowering: {', '.join(places.values())}" if lacking else lowered,
            known.problem,
            f"without {', '.join(handled)}, which TorchNeuron replaces itself" if handled else "",
            f"breaks {captured.graph_breaks}" if captured.graph_breaks else "",
            "captured with values on the CPU, then moved to the device"
            if self._subject.fake_mode is None
            else "",
        )
        kept = sorted(path.name for path in self._folder.glob("*.mlir"))
        return msgspec.structs.replace(
            captured,
            status=status,
            detail=captured.detail if captured.error else "; ".join(filter(None, words)),
            details=NeuronDetail(
                target=self._family,
                route="lowering",
                compiler_version=self._compiler.version if self._compiler else None,
                flags=TORCH_NEURON_FLAGS if self._compiler else (),
                failure=known.failure,
                compiled=self._compiler is not None and stage is None,
                graphs=tuple(known.graphs),
                operators=rejected,
                failed_stage=stage,
                lowering_version=metadata.version("torch-mlir"),
            ),
            artifacts=(*captured.artifacts, *(f"{FOLDER}/{name}" for name in kept)),
        )


def _lowered(module: GraphModule, file: Path | None = None, most_bytes: int = 0) -> _Lowered:
    """Lower a graph; its StableHLO is kept in a file unless it is larger than that."""
    began = time.monotonic()
    stage, message, size = "", "", None
    try:
        written = to_stablehlo(module)
        size = len(written)
        if file is not None and size <= most_bytes:
            file.write_bytes(written)
    except LoweringError as error:
        stage, message = error.stage, str(error)
    return stage, message, size, round(time.monotonic() - began, 3)


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
        place = _LOCATION.search(str(diagnostic.location))
        where = f" ({graph_breaks.package_path(place['file'])}:{place['line']})" if place else ""
        return " ".join(f"{diagnostic.message}{where} {about}".split())[:500]
    return one_line(error, limit=500)


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
    results, value = [copied], node.meta.get("val")
    if isinstance(value, list | tuple):
        results = []
        for index, part in enumerate(value):
            if isinstance(part, Tensor):
                results.append(graph.call_function(operator.getitem, (copied, index)))
                results[-1].meta = {"val": part}
    graph.output(tuple(results))
    return GraphModule(node.graph.owning_module, graph)


def _prepared(module: GraphModule) -> Graph:
    """Return a copy of a graph after the passes that TorchNeuron runs behind AOTAutograd.

    They drop outputs that are no tensors and put random numbers outside: dropout becomes an
    argument. The ends of slices are their sizes, since torch-mlir lowers a `slice_scatter` up to
    2^63 - 1 by a tensor of that length. A constant that cannot be written is an argument.
    """
    graph = _copied(module)
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


def _moved(
    graph: GraphModule, inputs: list[Any], subject: Subject
) -> tuple[GraphModule, list[Any]]:
    """Return a graph of Dynamo, captured on the CPU, with its tensors as fake ones of the device.

    Its constants become arguments, since a device that is only declared cannot hold them.
    """
    device, cpu = torch_device(subject.request.device), torch.device("cpu")
    mode = TracingContext.get().fake_mode
    assert mode is not None

    def fake(tensor: Tensor) -> Tensor:
        with mode, torch.no_grad():
            mine = tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor)
            moved = mine.detach().to(device)
        if (value := mine.item_memo) is not None:  # known to Dynamo, as of a padding
            moved.constant = torch.tensor(value.node.hint, dtype=tensor.dtype)
        return moved.requires_grad_(tensor.requires_grad)

    moved, moved_inputs = _copied(graph), tree_map_only(Tensor, fake, list(inputs))
    for node in moved.find_nodes(op="get_attr"):
        constant = operator.attrgetter(str(node.target))(graph)
        if isinstance(constant, Tensor):
            moved_inputs.append(fake(constant))
            _replace_by_argument(moved, node, moved_inputs[-1])
    for node in moved.nodes:
        node.args, node.kwargs = tree_map_only(
            torch.device, lambda named: device if named == cpu else named, (node.args, node.kwargs)
        )
    return GraphModule(graph, moved), moved_inputs


def _copied(module: GraphModule) -> Graph:
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return graph


def _is_operator(node: Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), Tensor)


def _identity(node: Node) -> _Identity:
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
