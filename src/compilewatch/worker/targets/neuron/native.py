"""Neuron by TorchNeuron (torch-neuronx 2.13 and later), for Trn2 and Trn3.

`torch.compile(backend="neuron", dynamic=False)` makes a NEFF of each graph. With a device, the
model runs there and is compared with eager mode on the CPU; with the compiler alone, it is compiled
and not run. TorchNeuron's fall-backs are off: what it would run without a NEFF is an error.

Every name of the product that is used is in VARIABLES, FUNCTIONS, FIELDS, FOLDERS or PROFILING,
with its source. None of it has run on a Neuron device yet: what a release lacks is recorded and
done without. `scripts/verify_neuron.sh` compares the lists with an installation.
"""

import contextlib
import importlib
import itertools
import os
import re
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo

from compilewatch import files, records
from compilewatch.contract.failures import one_line
from compilewatch.contract.processes import PeakMemory
from compilewatch.neuron import installed, neuronx_cc
from compilewatch.records import NeuronDetail, NeuronGraph, Phase, Status, TargetOutcome
from compilewatch.worker.device import on_device
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.process.describe import installed_packages
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import FakeUnsupportedError, execution, numerics
from compilewatch.worker.targets.dynamo import capture as captures
from compilewatch.worker.targets.dynamo import failures, graph_breaks
from compilewatch.worker.targets.dynamo.target import LOG_FOLDER, discard, outcome_of
from compilewatch.worker.targets.dynamo.versions import Versions
from compilewatch.worker.targets.neuron import xla

_BETA = "torch_neuronx 0.1.0 (public beta), docs/environment_variables.md"
_CODE = "torch_neuronx 0.1.0 (public beta), source and tests"
_VLLM = "vLLM for Neuron, docs/design/compilation/cpu_compilation"
_EXPLORER = "Neuron SDK 2.33, tools/neuron-explorer/how-to-profile-pytorch"

FOLDER = "TORCH_NEURONX_DEBUG_DIR"
VARIABLES = {
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": ("1", _BETA),
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": ("1", _BETA),
    "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY": ("1", _BETA),
    "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS": ("1", _BETA),
    FOLDER: ("{kept}/torch_neuronx", _BETA),
    "TORCH_NEURONX_NEFF_CACHE_DIR": ("{caches}/neff", _CODE),
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": ("{caches}/local", _CODE),
    "TORCH_NEURONX_HLO_CACHE_DIR": ("{caches}/hlo", _CODE),
    "NEURON_RT_NUM_CORES": ("1", "Neuron SDK 2.32, configuration of the runtime"),
}
"""Environment variables, which count when torch_neuronx is imported: no fall-back, empty caches."""

WITHOUT_DEVICE = {
    "TORCH_NEURONX_COMPILE_ONLY": ("1", _VLLM),
    "NEURON_PLATFORM_TARGET_OVERRIDE": ("{target}", _VLLM),
}

FUNCTIONS = dict.fromkeys(
    (
        *("synchronize", "get_dynamo_metrics", "reset_dynamo_metrics"),
        *("get_fallback_ops", "clear_op_tracking"),
    ),
    _CODE,
)
"""Functions of `torch_neuronx`, or of `torch.neuron`."""

_TIMES = {
    "passes": "torch_neuronx_fx_passes_us",
    "lower": "torch_neuronx_lower_us",
    "compile": "torch_neuronx_compile_us",
}
FIELDS = dict.fromkeys(("graph_name", "graph_node_count", "timestamp", *_TIMES.values()), _CODE)
"""Of a record of `get_dynamo_metrics`: a name ends in `_forward_0`, files have the timestamp."""

FOLDERS = {"stablehlo": _BETA, "neff": _BETA}
"""In FOLDER: a file for each graph."""

PROFILING = dict.fromkeys(("NeuronConfig", "NeuronProfiler", "ProfileMode"), _EXPLORER)
"""Names of `torch_neuronx.profiling`, for `profile neuron capture`."""

FAMILIES = ("trn2", "trn3")

_STAGES = (
    ("neff", r"NEFFCompilationError|NCC_[A-Z]{4}|without a NEFF"),
    ("load", r"nrt_load|NRT_LOAD|nrt_init|[Ff]ailed to load"),
    ("run", r"NEFFExecutionError|NRT Execution|nrt_execute|Failed to execute"),
    ("passes", r"DynamicShapeAnalysis|static shapes|on cpu device"),
    ("lower", r"MLIR|failed to legalize|explicitly marked illegal|StableHLO"),
)
"""Stage -> what a failure or one of its causes says of it; the first match counts."""

_ENDED = re.compile(r"return code (?P<status>-?\d+)(?:.*?, Error:(?P<log>.*))?", re.S)
_ILLEGAL = re.compile(
    r'error: "(?P<file>[^"]+)":(?P<line>\d+).*?name = "torch\.(?P<name>[\w.]+)"[^:]*: '
    r"(?P<types>[^\n]+)",
    re.S,
)


class Product:
    """The TorchNeuron of this process. `missing` are the documented names that it lacks."""

    def __init__(self) -> None:
        self.module = importlib.import_module("torch_neuronx")
        self.missing: dict[str, None] = {}

    def call(self, name: str, default: Any = None) -> Any:
        """Call one of `FUNCTIONS`; `default` if there is none of that name."""
        for place in (self.module, getattr(torch, "neuron", None)):
            if callable(function := getattr(place, name, None)):
                return function()
        self.missing[name] = None
        return default

    def graphs(self) -> tuple[NeuronGraph, ...]:
        """Return the graphs that were compiled since `reset_dynamo_metrics`."""
        return tuple(map(self._graph, self.call("get_dynamo_metrics", ())))

    def _graph(self, metrics: Any) -> NeuronGraph:
        values = {name: getattr(metrics, name, None) for name in FIELDS}
        self.missing |= {name: None for name, value in values.items() if value is None}
        times = {stage: values[name] for stage, name in _TIMES.items()}
        seconds = {stage: us / 1e6 for stage, us in times.items() if us is not None}
        stablehlo, neff = (_size(folder, values["timestamp"]) for folder in FOLDERS)
        unmeasured = not seconds.get("compile", 1)
        direction = re.search(r"_(inference|forward|backward)_\d+$", values["graph_name"] or "")
        return NeuronGraph(
            direction=direction[1] if direction else "",
            nodes=values["graph_node_count"] or 0,
            seconds=seconds,
            stablehlo_bytes=stablehlo,
            neff_bytes=neff,
            cached=unmeasured and neff is not None,
            failed_stage="neff" if unmeasured and neff is None else None,
        )


def _size(kind: str, timestamp: str | None) -> int | None:
    paths = Path(os.environ[FOLDER], kind).rglob(f"*{timestamp}*")
    return next((path.stat().st_size for path in paths), None)


def prepare(request: records.Request, folder: Path) -> str | None:
    """Import TorchNeuron, before a model is built; return what prevents it.

    Models ask whether there is such a device. `folder` is that of the request.
    """
    cores, compiler = _cores(), neuronx_cc.find()
    if not cores and compiler is None:
        return "no Neuron device, and no neuronx-cc to compile for one: see compilewatch doctor"
    if compiler is not None:
        neuronx_cc.prepare_process(compiler)
    places = {
        "kept": folder / "artifacts" if request.keep_artifacts else folder,
        "caches": folder / "caches",
        "target": neuronx_cc.family_of(request.target.backend, FAMILIES),
    }
    for name, (value, _) in (VARIABLES | ({} if cores else WITHOUT_DEVICE)).items():
        os.environ[name] = value.format_map(places)
    try:
        importlib.import_module("torch_neuronx")
    except Exception as error:  # noqa: BLE001  (any error of a broken installation)
        return f"torch_neuronx cannot be imported: {one_line(error)}"
    if "neuron" not in torch._dynamo.list_backends(exclude_tags=()):
        return "torch_neuronx registers no backend `neuron`: TorchNeuron is 2.13 and later"
    return None


def _cores() -> int:
    """How many cores this machine has; in a container, the tool that says it may be missing."""
    return neuronx_cc.core_count() or installed.machine().devices


def evaluate(subject: Subject) -> TargetOutcome:
    """Compile for a NeuronCore; with a device, also run there, compare with the CPU, and measure.

    This process is not forked any more. Raises FakeUnsupportedError for a subject of fake tensors;
    out-of-memory errors propagate.
    """
    if subject.fake_mode is not None:
        raise FakeUnsupportedError("TorchNeuron runs the compiled code: it needs real tensors")
    family, cores = neuronx_cc.family_of(subject.request.target.backend, FAMILIES), _cores()
    problem = ""
    if family not in FAMILIES:
        problem = f"TorchNeuron is for trn2 and trn3, {family} needs torch-neuronx 2.9"
    subject.enter(Phase.COMPILE)
    product = Product()
    try:
        # Two processes that take a core at once may both fail.
        with Path(tempfile.gettempdir(), "neuron.lock").open("w") as lock:
            files.lock(lock.fileno(), seconds=subject.request.deadlines.compile_seconds / 2)
            torch.zeros(1, device="neuron")
            product.call("synchronize")
    except Exception as error:  # noqa: BLE001  (the edge to Neuron's runtime)
        problem = problem or f"the Neuron device does not start: {one_line(error)}"
    if problem:
        return TargetOutcome(status=Status.UNSUPPORTED, detail=problem)
    packages = installed_packages()
    detail = NeuronDetail(
        target=family,
        route="native",
        sdk_version=packages.get("torch-neuronx"),
        compiler_version=packages.get("neuronx-cc"),
        device_cores=cores or None,
        compile_only=not cores,
    )
    return _Evaluation(subject, product, detail).run()


class _Evaluation:
    """One evaluation. The model of `subject` stays on the CPU, another one like it is compiled."""

    def __init__(self, subject: Subject, product: Product, detail: NeuronDetail) -> None:
        self.subject = subject
        self.product = product
        self.detail = detail
        self.call: Any = None
        self.seeds = itertools.count()

    def know(self, **facts: Any) -> None:
        self.detail = msgspec.structs.replace(self.detail, **facts)

    def run(self) -> TargetOutcome:
        """Compile and call once; then compare, call with a second shape, and measure."""
        outcome = TargetOutcome(status=Status.ERROR)
        try:
            kept = [numerics.seeded(self._compile)]
            outcome = outcome_of(self.subject, self.captured)
            self._check_compiled()
            if self.detail.compile_only:
                return self._told(outcome, f"compiles for {self.detail.target}, and did not run")
            self.subject.enter(Phase.COMPARE)
            comparison = numerics.assess(
                self._eager,
                lambda: kept.pop() if kept else self._observed(),
                lambda: execution.observed_in_float64(self.subject),
            )
            self._call_with_second_shape()
        except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
            return self._failed(outcome, error)
        self.know(failed_stage="numerics" if comparison.differs else None)
        outcome, latencies = xla.measured(
            self.subject, outcome, comparison, self.subject.module, self._step
        )
        self.know(**latencies)
        return self._told(outcome)

    def _compile(self) -> dict[str, Any]:
        """Call once and, where that is possible, once more with equal inputs."""
        assert self.subject.rebuilt is not None
        another = replace(self.subject, module=self.subject.rebuilt())
        self.device = on_device(another, torch.device("neuron"))
        results: dict[str, Any] = {}

        def first(compiled: Any) -> None:
            self.call = compiled
            results.update(self._observed())
            fallbacks = Counter(self.product.call("get_fallback_ops", ()))  # one entry a call
            self.know(fallback_operators=dict(fallbacks.most_common()))
            self._note_graphs()

        def second(compiled: Any, versions: Versions) -> None:
            with preserved(self.device.module):
                again(compiled, versions)  # type: ignore[misc]
            self.product.call("synchronize")

        again = captures.second_call(self.device)
        keep = self.subject.request.keep_artifacts
        self.product.call("reset_dynamo_metrics")
        self.product.call("clear_op_tracking")
        with PeakMemory() as peak:
            self.captured = captures.capture(
                first,
                self.device.module,
                backend=torch._dynamo.lookup_backend("neuron"),
                dynamic=False,
                trace_folder=self.subject.artifacts / LOG_FOLDER if keep else None,
                again=second if again is not None else None,
            )
        self.know(compiler_peak_memory_bytes=peak.bytes)
        return results

    def _note_graphs(self) -> None:
        graphs = self.product.graphs()
        seconds = sum(graph.seconds.get("compile", 0) for graph in graphs)
        size = sum(graph.neff_bytes or 0 for graph in graphs)
        self.know(graphs=graphs, compile_seconds=seconds or None, neff_bytes=size or None)

    def _check_compiled(self) -> None:
        """Raise if a graph has run without a NEFF, although fall-backs are off."""
        graphs = self.detail.graphs
        without = sum(graph.failed_stage is not None for graph in graphs)
        if "get_dynamo_metrics" not in self.product.missing:
            forward = sum(graph.direction != "backward" for graph in graphs)
            without = max(without, self.captured.graphs - forward)
        if without:
            raise RuntimeError(f"graphs that ran in eager mode, without a NEFF: {without}")
        self.know(compiled=True)

    def _observed(self) -> dict[str, Any]:
        """Call on the device, wait for what fails late, and return the results on the CPU."""
        results = execution.observed(self.device, self.call)
        self.product.call("synchronize")
        return numerics.from_bytes(numerics.to_bytes(results))

    def _eager(self) -> dict[str, Any]:
        """Call on the CPU. A device draws other random numbers, whatever the seed.

        So each run has another seed, and a model that depends on it counts as not deterministic.
        """
        torch.manual_seed(next(self.seeds))
        return execution.observed(self.subject, self.subject.module)

    def _call_with_second_shape(self) -> None:
        """Count the graphs compiled for a batch larger by one, unless eager mode rejects it."""
        larger = execution.enlarged(self.subject)
        if larger is None:
            return
        inputs = on_device(larger, torch.device("neuron"), inputs_only=True).inputs
        counted = self.captured.second or self.captured
        before = counted.graphs
        with preserved(self.device.module):
            captures.call_once(replace(self.device, inputs=inputs), self.call)
            self.product.call("synchronize")
        self.know(recompiles=counted.graphs - before)

    def _step(self, *_: Any, **__: Any) -> None:
        captures.call_once(self.device, self.call)
        self.product.call("synchronize")

    def _told(self, outcome: TargetOutcome, *remarks: str) -> TargetOutcome:
        """Return the outcome with all that is known."""
        self.know(missing_names=tuple(self.product.missing))
        fallbacks, missing = self.detail.fallback_operators, ", ".join(self.product.missing)
        names = ", ".join(f"{name} ({count})" for name, count in [*fallbacks.items()][:5])
        neffs = [*Path(os.environ[FOLDER], "neff").rglob("*.neff")]
        size = sum(path.stat().st_size for path in neffs) / 2**20
        phrases = (
            *remarks,
            outcome.detail,
            f"NEFFs: {len(neffs)}, {size:.1f} MiB" if neffs else "",
            f"ran on the CPU: {names}" if fallbacks else "",
            f"this TorchNeuron has no {missing}" if missing else "",
        )
        return msgspec.structs.replace(
            outcome,
            detail="; ".join(filter(None, phrases)),
            details=self.detail,
            artifacts=xla.kept_files(self.subject) if self.subject.request.keep_artifacts else (),
        )

    def _failed(self, outcome: TargetOutcome, error: Exception) -> TargetOutcome:
        """Return the outcome of a failure, with its stage and what the compiler says of it."""
        text = "\n".join(f"{type(cause).__name__}: {cause}" for cause in failures.chain_of(error))
        known = (name for name, pattern in _STAGES if re.search(pattern, text))
        by_dynamo = "dynamo" if failures.is_by_compiler(error) else "run"
        stage = next(known, "aot" if "BackendCompilerFailed" in text else by_dynamo)
        outcome = failures.failed(outcome, error, ())
        assert outcome.error is not None
        words, status, code = outcome.detail, outcome.status, outcome.error.code
        if stage in dict(_STAGES) and stage != "run":
            code = f"neuron_{stage}"
        place: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # late errors, once more
            self._note_graphs()
        if stage == "neff":
            ended = _ENDED.search(text)
            exit_status = int(ended["status"]) if ended else None
            problem = neuronx_cc.failure((ended and ended["log"]) or text, exit_status)
            if problem.kind != neuronx_cc.UNKNOWN:
                self.know(failure=problem)
                code = problem.code or f"neuronx_cc_{problem.kind}"
                words = neuronx_cc.described(self.detail)
            status = Status.OOM if problem.kind == neuronx_cc.HOST_MEMORY else status
        elif stage == "lower" and (mlir := _ILLEGAL.search(text)) is not None:
            place = {"file": graph_breaks.package_path(mlir["file"]), "line": int(mlir["line"])}
            operator = records.NeuronOperator(
                name=mlir["name"], occurrences=1, stage=stage, types=mlir["types"], **place
            )
            self.know(operators=(operator,))
            words = f"no lowering: {operator.name} ({operator.file}:{operator.line})"
        elif stage == "run" and self.detail.compile_only:
            status = Status.UNSUPPORTED  # without a device, no value can be read
        when = "compiled once, then " if self.detail.compiled else ""
        self.know(failed_stage=stage)
        record = msgspec.structs.replace(outcome.error, code=code, **place)
        discard(self.subject.artifacts)
        outcome = msgspec.structs.replace(outcome, status=status, error=record, detail="")
        return self._told(outcome, f"{when}{stage}: {words}")
