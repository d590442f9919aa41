"""The data types of compilewatch. They are immutable and versioned.

Everything that is stored, sent to a worker or published is one of these structs. They are
`msgspec.Struct`s because msgspec has no dependencies of its own (a worker must fit into foreign
environments) and validates types on decoding. Durations are seconds, memory is bytes, times are
RFC 3339 strings in UTC.

This module imports nothing of compilewatch, because the worker and the parent share it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import msgspec

SCHEMA_VERSION = 1
"""Version of the files that have no version of their own below; see docs/formats.md."""

RESULT_VERSION = 2
"""Version of the lines of `results.jsonl`."""

RUN_VERSION = 2
"""Version of `run.json`."""

HARNESS_VERSION = 1
"""Raised by hand when a change of compilewatch can change a result; it is part of every key."""


class Status(StrEnum):
    """What happened to a request; `Phase` says where."""

    PASS = "pass"
    GRAPH_BREAK = "graph_break"
    MISMATCH = "mismatch"
    ERROR = "error"
    TIMEOUT = "timeout"
    OOM = "oom"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    UNSUPPORTED = "unsupported"
    FORECAST_PASS = "forecast_pass"
    FORECAST_FAIL = "forecast_fail"


class Phase(StrEnum):
    """The phases of a child, in order. A child writes the phase before it starts it."""

    SETUP = "setup"
    CREATE = "create"
    INPUTS = "inputs"
    EAGER = "eager"
    COMPILE = "compile"
    COMPARE = "compare"
    PROFILE = "profile"
    DONE = "done"


NOT_RUN = frozenset({Status.SKIPPED, Status.UNSUPPORTED})
"""Statuses of requests that neither passed nor failed."""

FORECASTS = frozenset({Status.FORECAST_PASS, Status.FORECAST_FAIL})
"""What a part of a compiler says beforehand: no verdict, and in no share with verdicts."""


class Mode(StrEnum):
    EVAL = "eval"
    TRAIN = "train"


class Tier(StrEnum):
    """`fake`: fake tensors, no weights, any size. `real`: real tensors at reduced size."""

    AUTO = "auto"
    FAKE = "fake"
    REAL = "real"


class Depth(StrEnum):
    """`full`: the configuration's own depth. `reduced`: one of each kind of layer."""

    FULL = "full"
    REDUCED = "reduced"


class Dtype(StrEnum):
    """The type of weights and inputs; `config` is what the model's configuration says."""

    CONFIG = "config"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Variants(StrEnum):
    """Which of a model's input variants are evaluated.

    `main`: all media at once. `all`: also text alone, and text with one medium. `all+decode`: also
    the step of `generate` after the prefill, with a dynamic and with a static cache.
    """

    MAIN = "main"
    ALL = "all"
    ALL_DECODE = "all+decode"


class Part(StrEnum):
    """What part of a Hub repository a model is.

    `whole`: what its users run. `component`: one model of a pipeline. `transformers`: the model of
    Transformers without what another library adds to it. `base`: the base model of an adapter,
    without the adapter. `base_component`: one model of the pipeline that an adapter of diffusers is
    for, without the adapter. `original`: the class of Transformers with the sizes that an original
    `params.json` gives. `port`: the same architecture in a library that is built here, where the
    repository has code of its own or files for another library.
    """

    WHOLE = "whole"
    COMPONENT = "component"
    TRANSFORMERS = "transformers"
    BASE = "base"
    BASE_COMPONENT = "base_component"
    ORIGINAL = "original"
    PORT = "port"


class Quantization(StrEnum):
    """How the weights of a checkpoint are quantised, as its configuration says."""

    GPTQ = "gptq"
    AWQ = "awq"
    BITSANDBYTES_4BIT = "bitsandbytes-4bit"
    BITSANDBYTES_8BIT = "bitsandbytes-8bit"
    FP8 = "fp8"
    COMPRESSED_TENSORS = "compressed-tensors"
    TORCHAO = "torchao"
    OTHER = "other"


class AttemptCode(StrEnum):
    """Why a request ran again.

    `fake_unsupported`: the model reads values, which fake tensors do not have. `transient`: its
    process or server ended for an unknown reason. `resumed`: it timed out, crashed or ran out of
    memory in an earlier part of the run. The other codes are failures of a cluster.
    """

    FAKE_UNSUPPORTED = "fake_unsupported"
    TRANSIENT = "transient"
    RESUMED = "resumed"
    NODE_LOST = "node_lost"
    WORKER_LOST = "worker_lost"
    CONNECTION_LOST = "connection_lost"
    NODE_OUT_OF_MEMORY = "node_out_of_memory"


class ChangeKind(StrEnum):
    REGRESSION = "regression"
    FIXED = "fixed"
    FORECAST_CHANGED = "forecast_changed"
    MORE_COMPILATIONS = "more_compilations"
    NEW = "new"
    NOT_SELECTED = "not_selected"
    PENDING = "pending"
    MISSING = "missing"
    GONE = "gone"
    NEWLY_TESTED = "newly_tested"
    NO_LONGER_TESTED = "no_longer_tested"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base class of all records: immutable, with keyword-only arguments."""


class Versioned(Record, frozen=True, kw_only=True):
    """A record that is a file or a line of its own."""

    schema_version: int = SCHEMA_VERSION


class DeclaredDevice(Record, frozen=True, kw_only=True):
    """A device as models see it, without its presence on this machine.

    `kind` is torch's (`cuda`, `neuron`). `product` is the name that `torch.cuda.get_device_name`
    returns, `capability` the compute capability (major, minor), and `bfloat16` whether its tensor
    cores have that type. What only GPUs have is None for others.
    """

    kind: str = "cuda"
    name: str
    product: str
    memory_bytes: int
    bfloat16: bool
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None


class CodePlace(Record, frozen=True, kw_only=True):
    """A line of code. `file` is relative to its package (`transformers/models/…`)."""

    file: str
    line: int
    function: str


class StackFrame(CodePlace, frozen=True, kw_only=True):
    """One frame of a user stack."""

    text: str = ""


class GraphBreak(CodePlace, frozen=True, kw_only=True):
    """One distinct graph break: a cause at a place.

    `reason` is the complete text of torch, except for tracebacks through torch's own frames, which
    are in the structured trace. `code` is one of a limited set and never free text: the id in
    torch's registry (`GB0170`) or a short code of compilewatch (`unbacked_symint`). `gb_type` is
    torch's name of the type, or None if torch has none. `fingerprint` is 12 hexadecimal digits of a
    hash of (code or type, file, function), which does not depend on the line number. `occurrences`
    counts how often this break was hit while the example inputs ran. `source` has the lines of code
    around `line`, starting with line `source_start`, as they were when the code ran; it is empty if
    they could not be read.
    """

    code: str
    reason: str
    fingerprint: str
    gb_id: str | None = None
    gb_type: str | None = None
    explanation: str = ""
    hints: tuple[str, ...] = ()
    user_stack: tuple[StackFrame, ...] = ()
    occurrences: int = 1
    source_start: int = 0
    source: tuple[str, ...] = ()


class WhyRejected(Record, frozen=True, kw_only=True):
    """Why something is rejected, None where it is not: a bounded code, and the complete reason."""

    code: str | None = None
    reason: str | None = None


class FullgraphVerdict(WhyRejected, frozen=True, kw_only=True):
    """Whether `torch.compile(fullgraph=True, backend="eager")` accepts the model, and if not, why.

    `derived` is True if this follows from a capture as a single graph without breaks and without
    skipped frames, so that the second compilation was not run.
    """

    accepted: bool
    derived: bool = False


class Located(Record, frozen=True, kw_only=True):
    """Something at a line of code, as in `CodePlace`, or at none that is known."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


class ErrorRecord(Located, frozen=True, kw_only=True):
    """A failure. `head` and `tail` have at least 8 KiB each of the traceback.

    `file` is None if compilewatch itself raised the error, with a type of `compilewatch.errors`.
    Then `message` is all that users need, and the traceback is for the developers of compilewatch.
    """

    type: str
    message: str
    code: str
    head: str = ""
    tail: str = ""


class ClassBuild(Record, frozen=True, kw_only=True, tag="class"):
    """A class of Transformers, built from the defaults of its configuration class."""

    class_name: str


class ConfigBuild(Record, frozen=True, kw_only=True, tag="config"):
    """A class of Transformers built from a `config.json`.

    `config_file` is absolute; `config_sha256` is the digest of the canonical configuration (see
    `canonical_config`). `weights` loads the real weights of `repo` at the model's revision;
    `trust_remote_code` is set only if a person listed the repository and revision. `adapter_file`,
    if given, is the absolute path of the `adapter_config.json` of a PEFT adapter that is put on the
    model, and `adapter_sha256` digests its content. `packages` are the distributions besides
    Transformers without which the model cannot be built. `class_module` is the module of one of
    them that has the class, None for a class of Transformers.
    """

    config_file: str
    config_sha256: str
    class_name: str | None = None
    repo: str | None = None
    weights: bool = False
    trust_remote_code: bool = False
    adapter_file: str | None = None
    adapter_sha256: str = ""
    packages: tuple[str, ...] = ()
    class_module: str | None = None


class FactoryBuild(Record, frozen=True, kw_only=True, tag="factory"):
    """`package.module:factory`, called without arguments, returns an `nn.Module`.

    `path` (absolute folders, joined by `os.pathsep`) is put on `sys.path`; `inputs` names a
    callable that returns a tuple of args, a dict of kwargs, or `(args, kwargs)`; `source_sha256`
    digests the factory's module file.
    """

    factory: str
    path: str | None = None
    inputs: str | None = None
    source_sha256: str = ""

    @property
    def python_path(self) -> tuple[str, ...]:
        """The folders of `path`."""
        return tuple(self.path.split(os.pathsep)) if self.path else ()


class LibraryBuild(Record, frozen=True, kw_only=True, tag="library"):
    """A model of another library than Transformers, by the name that the library gives it.

    `library` is a row of `sources.libraries` (`timm`, `diffusers`, …) and `name` an architecture,
    class or configuration there. `configuration`, if given, is the absolute path of the file or
    folder that a repository configures the model with, and `configuration_sha256` digests its
    content; otherwise the library's own configuration of that name is used.
    """

    library: str
    name: str
    configuration: str | None = None
    configuration_sha256: str = ""


class CallerBuild(Record, frozen=True, kw_only=True, tag="caller"):
    """An object of the process that called `compilewatch.check`; no other process can build it."""


Build = ClassBuild | ConfigBuild | FactoryBuild | LibraryBuild | CallerBuild


class ModelSpec(Record, frozen=True, kw_only=True):
    """One model. `name` is `org/model` or the name of a class, and is unique in a plan.

    `inputs_file` is the absolute path of the model's saved inputs (`.toml` or `.safetensors`). A
    model with a `skip_reason` is not evaluated. A model with an `error` cannot be evaluated,
    because its entry in a list is wrong. `part` is the part of a Hub repository (`checkpoint`) that
    the model is, None for a model of another source; `component` names a component of a pipeline.
    `quantization` is that of the checkpoint's weights; its class is built unquantised without them.
    """

    source: str
    name: str
    build: Build
    architecture: str | None = None
    family: str = "unknown"
    task: str = "unknown"
    revision: str | None = None
    downloads: int | None = None
    license: str | None = None
    gated: bool = False
    checkpoint: str | None = None
    skip_reason: str | None = None
    error: str | None = None
    inputs_file: str | None = None
    provenance: dict[str, str] = {}
    part: Part | None = None
    component: str = ""
    quantization: Quantization | None = None

    @property
    def repository(self) -> str | None:
        """The Hub repository that the model is a part of, or that could not be resolved."""
        return self.checkpoint if self.part is not None or self.source == "hub" else None

    @property
    def is_dequantized(self) -> bool:
        """Whether the checkpoint is quantised, and the class is built without that."""
        loads = isinstance(self.build, ConfigBuild) and self.build.weights
        return self.quantization is not None and not loads


DEFAULT_ENVIRONMENT = "default"
"""The name of the interpreter that runs compilewatch itself."""


class Target(Record, frozen=True, kw_only=True):
    """A compile target with its options and the environment in which it runs.

    `backend` None means the default backend of the target. `environment` is part of what a result
    is about: one run may evaluate a model on the same target in two environments. `dynamic` is that
    of `torch.compile`: with None, a size becomes dynamic when it changes.
    `nested_graph_breaks` sets torch's configuration of that name, whether Dynamo compiles functions
    that a graph break interrupts; None leaves torch's default. `device` is the device that the
    model's tensors are on: `cpu`, `cuda`, or `cuda:NAME` (`contract.targets`).
    """

    name: str = "dynamo"
    mode: Mode = Mode.EVAL
    dynamic: bool | None = None
    backend: str | None = None
    environment: str = DEFAULT_ENVIRONMENT
    nested_graph_breaks: bool | None = None
    device: str = "cpu"
    dtype: Dtype = Dtype.FLOAT32

    @property
    def mode_label(self) -> str:
        """The mode, and the shapes if they are chosen: `eval`, `train/dynamic`, `eval/static`."""
        shapes = {None: "", True: "/dynamic", False: "/static"}[self.dynamic]
        return f"{self.mode.value}{shapes}"


class Deadlines(Record, frozen=True, kw_only=True):
    """Wall-clock limits of a child by phase, in seconds; `total` limits all phases together."""

    setup_seconds: float = 60.0
    create_seconds: float = 180.0
    inputs_seconds: float = 60.0
    eager_seconds: float = 180.0
    compile_seconds: float = 600.0
    compare_seconds: float = 180.0
    profile_seconds: float = 300.0
    total_seconds: float = 1200.0
    neuron_compile_seconds: float = 7200.0

    def of(self, phase: Phase) -> float:
        """Return the limit of a phase in seconds; `done` (tear-down) has the limit of `setup`."""
        if phase is Phase.DONE:
            return self.setup_seconds
        return float(getattr(self, f"{phase.value}_seconds"))


class Work(Record, frozen=True, kw_only=True):
    """What an extra does with a model instead of the target: a name in its row, and options."""

    name: str
    options: dict[str, Any]


class Request(Record, frozen=True, kw_only=True):
    """Evaluate this model on this target, in the target's environment, with these options.

    `key` is a hash of everything that can change the result, empty where nothing is stored.
    Deadlines and the memory limit are not part of it, because they can only prevent a result.
    `device` describes the declared device of the target; None for the CPU. With `shapes`, the
    standard trace is called as well; see `Shapes`. With `work`, an extra does something else with
    the model, and the result only says whether that worked.

    `inputs_file` is the model's file of saved inputs (`.toml` or `.safetensors`) and
    `overrides_dir` the folder of a project's own overrides. Paths are absolute.
    """

    model: ModelSpec
    target: Target
    key: str
    tier: Tier = Tier.AUTO
    depth: Depth = Depth.FULL
    variants: Variants = Variants.MAIN
    deadlines: Deadlines = Deadlines()
    memory_limit_bytes: int = 8 * 2**30
    inputs_file: str | None = None
    overrides_dir: str | None = None
    keep_artifacts: bool = True
    device: DeclaredDevice | None = None
    shapes: bool = False
    work: Work | None = None


class Numerics(Record, frozen=True, kw_only=True):
    """A comparison with eager mode: tolerances as used and errors as measured.

    Relative errors are relative to the largest magnitude in the same output. `reference` is what
    errors were compared with: `float64` where the tolerances alone do not decide and the model can
    run in it, otherwise `eager`. `mismatches` names the first few outputs that differ; `alone` says
    then which of the two differs from each sample of the batch computed alone, in eager mode, and
    `depends_on_batch` whether eager mode does. Otherwise `first_layer` may be the first of the
    innermost modules that differ when they alone are compiled, with its error. `sizes` are those of
    each call, and `backend` is what compiled the model, where the target `numerics` chose them.
    """

    deterministic: bool
    matches: bool
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    atol: float | None = None
    rtol: float | None = None
    reference: str | None = None
    mismatches: tuple[str, ...] = ()
    alone: str = ""
    depends_on_batch: bool = False
    first_layer: str = ""
    sizes: tuple[dict[str, int], ...] = ()
    backend: str = ""

    @property
    def calls(self) -> str:
        """`batch 2, sequence 32; batch 4, sequence 17; …`, the sizes of each call."""
        return "; ".join(
            ", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in self.sizes
        )

    @property
    def difference(self) -> str:
        """The first output that differs, and where that begins, or that eager mode does, too."""
        layer = f"first in {self.first_layer}" if self.first_layer else ""
        return "; ".join(filter(None, (*self.mismatches[:1], self.alone, layer)))

    @property
    def differs(self) -> bool:
        """Whether it is a mismatch: without determinism, there is nothing to compare with."""
        return self.deterministic and not self.matches

    @property
    def remark(self) -> str:
        """What a result says of the comparison; "" where both agree."""
        if not self.deterministic:
            return "not deterministic: two eager runs differ, so numerics are not compared"
        return "" if self.matches else f"differs from eager in {self.difference}"


class ExportVariant(WhyRejected, frozen=True, kw_only=True):
    """The result of `torch.export.export`. `ops` counts ATen and higher-order operators."""

    exported: bool
    duration_seconds: float
    ops: int | None = None


class DraftFailure(Located, frozen=True, kw_only=True):
    """One finding of draft export, at the innermost line of the model.

    `kind` is PyTorch's (`data_dependent_error`, `guard_added`, …), and `what` the expression or
    the operator concerned.
    """

    kind: str
    what: str
    occurrences: int = 1


class DraftExport(Record, frozen=True, kw_only=True):
    """The result of `torch.export.draft_export`, which traces with the example values."""

    exported: bool
    failures: tuple[DraftFailure, ...] = ()
    reason: str | None = None


class ExportDetail(Record, frozen=True, kw_only=True, tag="export"):
    """What the export target found besides its verdict, which is that of the non-strict variant.

    A variant that did not run is None. With dynamic shapes, `dynamic_dimensions` are the input
    dimensions that stayed symbolic (`input_ids[0]`), and `specialized_dimensions` those that were
    requested as dynamic but became constants.
    """

    non_strict: ExportVariant | None = None
    strict: ExportVariant | None = None
    draft: DraftExport | None = None
    dynamic_dimensions: tuple[str, ...] = ()
    specialized_dimensions: tuple[str, ...] = ()

    @property
    def disagrees(self) -> bool:
        """Whether both variants ran and one exports what the other does not."""
        if self.non_strict is None or self.strict is None:
            return False
        return self.non_strict.exported is not self.strict.exported


class Performance(Record, frozen=True, kw_only=True, tag="performance"):
    """Times of compiled code and of eager mode, in seconds, on one thread.

    Compile times are those of the first call, including one run: `cold` with empty caches, `warm`
    with the on-disk caches that the cold compile filled. Latencies are medians over
    `latency_samples` runs after warm-up; in train mode, of forward and backward. `speedup` is eager
    latency divided by compiled latency. `recompiles` counts the graphs that were recompiled for
    inputs whose batch is larger by one. `compiler_peak_memory_bytes` is the peak memory of the
    largest process of the C++ compiler, None if the system does not report it.
    """

    cold_compile_seconds: float
    warm_compile_seconds: float | None = None
    eager_latency_seconds: float | None = None
    compiled_latency_seconds: float | None = None
    latency_samples: int | None = None
    speedup: float | None = None
    recompiles: int | None = None
    compiler_peak_memory_bytes: int | None = None


class NamedTensor(Record, frozen=True, kw_only=True):
    """A tensor as in PyTorch. Without shape and dtype it is another value."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class HloParameter(NamedTensor, frozen=True, kw_only=True):
    """One parameter of a captured HLO module.

    `kind`: `parameter` and `buffer` (`name` is the model's own, `aliases` are the names of tied
    weights), `input` (`name` is its path in the arguments), `constant` (a tensor made by the
    model's code, or the seed of random numbers; its value is stored as `name` in
    `graph.constants.safetensors`).
    """

    id: int
    kind: str
    aliases: tuple[str, ...] = ()


class HloParameters(Versioned, frozen=True, kw_only=True):
    """`graph.parameters.json`: the inputs and outputs of a captured HLO module.

    The parameters are in the order of the capture, not of the arguments. `outputs` are paths in
    the return value of the model, in the order of the module's result tuple; in train mode they are
    followed by gradients and then by the buffers that were written. A module is kept only if it is
    valid for inputs other than the example.
    """

    parameters: tuple[HloParameter, ...]
    unused_inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class NeuronConcern(Record, frozen=True, kw_only=True):
    """An operator of a captured graph that neuronx-cc is documented to reject.

    A prediction from `data/neuron_operators.toml`, never a verdict: no Neuron compiler ran.
    `operator` is torch's (`aten::sort`), an opcode of HLO or an element type (`C64`). `source` is
    the URL that gave the reason at the `date`, for the SDK `sdk`.
    """

    operator: str
    count: int = 0
    reason: str
    source: str
    sdk: str
    date: str = ""


class XlaDetail(Record, frozen=True, kw_only=True, tag="xla"):
    """What the xla target found besides its verdict.

    `operators` counts the HLO instructions of the captured module by opcode, `fallbacks` the
    operators that ran outside XLA (`aten::nonzero`) in one call. `hlo` says where the module comes
    from, and that it may be compiled ahead of time: `lazy` from the model's own call, or `export`
    from its exported program if the call has graph breaks; None if both fail, and then no module is
    kept. `compile_seconds` is the time in XLA's compiler for the first call.
    `recompiles_same_inputs` and `recompiles` count the graphs that were compiled again for a second
    identical call and for a batch that is larger by one.
    """

    operators: dict[str, int] = {}
    fallbacks: dict[str, int] = {}
    hlo: str | None = None
    compile_seconds: float | None = None
    recompiles_same_inputs: int | None = None
    recompiles: int | None = None
    expected_to_fail_on_neuron: tuple[NeuronConcern, ...] = ()


class NeuronFailure(Record, frozen=True, kw_only=True):
    """Why neuronx-cc produced no NEFF.

    `kind` is a class from `neuron.neuronx_cc`; `code` is the compiler's own (`NCC_…`, or an
    older `XTP002`, `F137`), None if it printed none. `message` and `advice` are quoted from its
    log. `signal` is the signal that ended it.
    """

    kind: str
    code: str | None = None
    message: str = ""
    advice: str = ""
    exit_status: int | None = None
    signal: str | None = None


class NeuronOperator(Record, frozen=True, kw_only=True):
    """An operator without a lowering, found by lowering it alone, and one place that calls it.

    `name` is torch's (`aten.histc.default`), `types` the signature that the compiler names, and
    `stage` the step that rejects it (`import`, `torch`, `stablehlo`). `handled_by` is the source
    that says that TorchNeuron replaces the operator itself, "" if none is known: only then it is a
    failure. `file` is relative to its package; it is "" where torch kept no line.
    """

    name: str
    occurrences: int
    stage: str
    types: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    handled_by: str = ""


class NeuronGraph(Record, frozen=True, kw_only=True):
    """One graph that was lowered or compiled for Neuron.

    `direction` is `inference`, `forward` or `backward`; `nodes` counts the calls of operators.
    `seconds` has the time of each stage that ran (`passes`, `lower`, `compile`). Sizes are None
    where the stage did not come to that. `failed_stage` is the stage that rejected the graph.
    """

    direction: str
    nodes: int
    seconds: dict[str, float] = {}
    stablehlo_bytes: int | None = None
    neff_bytes: int | None = None
    cached: bool = False
    failed_stage: str | None = None


class NeuronDetail(Versioned, frozen=True, kw_only=True, tag="neuron"):
    """Details of compiling for Neuron; also the file `neuron.json` of `neuron compile`.

    `target` is the instance family. `route` is the row of the catalogue that gave the result
    (`native`, `lowering`) or, for XLA, `torch_neuronx.trace` or `neuronx-cc`. `flags` are all
    compiler flags that can change its result. `compile_seconds` is the wall-clock time of the
    compiler, including the lowering for the route `torch_neuronx.trace`.
    `compiler_peak_memory_bytes` is the peak memory of its largest process on the host. Latencies
    are medians over `latency_samples` runs, of eager mode on the host's CPU and of the NEFF on a
    NeuronCore; they are None without a device.

    `graphs` are the graphs of the routes `native` and `lowering`, `operators` the operators without
    a lowering, and `fallback_operators` counts the operators that ran on the CPU (`aten::normal_`).
    `failed_stage` is where the first failure was: dynamo, aot, passes, lower, neff, load, run or
    numerics. `compile_only` says that there was no device. `lowering_version` is that of
    torch-mlir. `recompiles` counts the graphs compiled for a batch larger by one, and
    `missing_names` are the documented names that this TorchNeuron lacks.
    """

    target: str
    route: str
    flags: tuple[str, ...] = ()
    sdk_version: str | None = None
    compiler_version: str | None = None
    hlo_sha256: str | None = None
    compiled: bool = False
    compile_seconds: float | None = None
    compiler_peak_memory_bytes: int | None = None
    neff_bytes: int | None = None
    failure: NeuronFailure | None = None
    graphs: tuple[NeuronGraph, ...] = ()
    operators: tuple[NeuronOperator, ...] = ()
    fallback_operators: dict[str, int] = {}
    failed_stage: str | None = None
    compile_only: bool = False
    lowering_version: str | None = None
    recompiles: int | None = None
    missing_names: tuple[str, ...] = ()
    device_cores: int | None = None
    eager_latency_seconds: float | None = None
    latency_seconds: float | None = None
    latency_samples: int | None = None


Details = ExportDetail | Performance | XlaDetail | NeuronDetail


class Accuracy(Record, frozen=True, kw_only=True):
    """Scores of a text classifier over a labelled file, by scikit-learn.

    `disagreements` counts the samples for which this target and eager mode predict another class.
    """

    samples: int
    labels: int
    accuracy: float
    f1_macro: float
    f1_weighted: float
    disagreements: int | None = None
    seconds: float | None = None


class CaptureFigures(Record, frozen=True, kw_only=True):
    """What became of one forward call's operators and frames when Dynamo compiled it.

    Operators are what PyTorch dispatches (`aten.linear.default`), each call counted: those inside
    captured graphs, and those that ran eagerly outside of them. None where they were not counted.
    A frame is a function, or the rest of one after a graph break. `frames_compiled` are those with
    a graph, `frames_skipped` those that Dynamo gave up, so that Python ran them.
    `eager_operators` has the most frequent operators that ran eagerly. `nested_graph_breaks` is
    torch's setting of that name while the model was captured, None if torch has none.
    """

    operators_captured: int | None = None
    operators_eager: int | None = None
    frames_compiled: int = 0
    frames_skipped: int = 0
    eager_operators: dict[str, int] = {}
    nested_graph_breaks: bool | None = None

    @property
    def share(self) -> float | None:
        """Operators in graphs, divided by all operators; None without any."""
        if self.operators_captured is None or self.operators_eager is None:
            return None
        every = self.operators_captured + self.operators_eager
        return self.operators_captured / every if every else None


class Captured(Record, frozen=True, kw_only=True):
    """What Dynamo captured of a call; None where it was not counted, never zero.

    `graph_breaks` is the total number of occurrences and equals the sum over `breaks`.
    """

    graphs: int | None = None
    graph_breaks: int | None = None
    breaks: tuple[GraphBreak, ...] = ()


class SecondCall(Captured, frozen=True, kw_only=True):
    """What the second call of a compiled model met, where it differs from the first.

    It counts the graphs compiled now, and graph breaks in their frames; `recompilations` of the
    result says why. `error` is the exception that ended the call, "" if none.
    """

    error: str = ""


class RecompilationKind(StrEnum):
    """Why Dynamo compiled a frame again.

    `size_0_or_1`: a size is 0 or 1, for which torch always compiles apart. `first_static`: a size
    that was taken as fixed, since it had not changed before. `constant`, `modulo`, `branch`: the
    code needs a certain size, a multiple, or a range. `equal_sizes`: two sizes were equal.
    `value`: a value that eager code handed over between two graphs. `argument`: another type, rank,
    dtype or number. `attribute`: an attribute of an object. At the limit of recompilations, a frame
    is not compiled again, but has a graph break (GB0039).
    """

    SIZE_0_OR_1 = "size_0_or_1"
    FIRST_STATIC = "first_static"
    CONSTANT = "constant"
    MODULO = "modulo"
    BRANCH = "branch"
    EQUAL_SIZES = "equal_sizes"
    VALUE = "value"
    ARGUMENT = "argument"
    ATTRIBUTE = "attribute"
    OTHER = "other"


class Recompilation(CodePlace, frozen=True, kw_only=True):
    """A frame that Dynamo compiled again, because guards of what it had compiled did not hold.

    `call` is the number of the call that caused it, from 1. `guards` are Dynamo's own descriptions
    of the guard that failed, one for each version of the frame. The first is that of the version
    which fixes the fewest sizes that differ, of those the last: without it, the call would not have
    compiled. `kind` and the rest are about it: `subject` is what it is about (`input_ids.0`,
    dimension 0 of an argument; `self.step`), and `needed_by` the line of the model that needs it,
    None where torch alone does.
    """

    call: int
    guards: tuple[str, ...]
    kind: RecompilationKind = RecompilationKind.OTHER
    subject: str = ""
    needed_by: StackFrame | None = None


class DynamicDimension(Record, frozen=True, kw_only=True):
    """A dimension that may differ, such as `input_ids.0`, within bounds; None without an upper."""

    name: str
    lower: int
    upper: int | None


class CompiledGraph(CodePlace, frozen=True, kw_only=True):
    """A graph that a call compiled, of the frame at this place.

    `sizes` are those of its tensors that it is for alone, `dynamic` those that may differ.
    """

    call: int
    sizes: dict[str, int] = {}
    dynamic: tuple[DynamicDimension, ...] = ()


class ShapeCall(Record, frozen=True, kw_only=True):
    """One call of a series: its sizes (`batch`, `sequence`, `x.0`), and what it met.

    `served_by` are the indices of the graphs that ran, in order. `error` is that of the compiled
    model, or of eager mode if `rejected`: then the call says nothing of the compiler.
    """

    sizes: dict[str, int]
    compiled: int = 0
    served_by: tuple[int, ...] = ()
    error: str = ""
    rejected: bool = False


class ShapeSeries(Record, frozen=True, kw_only=True):
    """What several calls of one model compile, in this order, beginning with nothing compiled.

    `dynamic` is the argument of `torch.compile`. `limit` is the frame that has reached the limit of
    recompilations, so that it runs in eager mode.
    """

    dynamic: bool | None
    calls: tuple[ShapeCall, ...]
    graphs: tuple[CompiledGraph, ...]
    recompilations: tuple[Recompilation, ...] = ()
    graph_breaks: int = 0
    limit: CodePlace | None = None

    @property
    def compilations(self) -> int:
        return len(self.graphs)


class TraceFigures(Record, frozen=True, kw_only=True):
    """What a sweep keeps of a `ShapeSeries`.

    `compiled` counts the graphs that each call compiled. Of the first `recompilations`, the guards
    are left out. `dynamic` are the dimensions that may differ in some graph. `rejected` counts the
    calls that the model itself cannot make, and `error` is the first of the compiled model alone.
    """

    compiled: tuple[int, ...]
    recompilations: tuple[Recompilation, ...] = ()
    dynamic: tuple[str, ...] = ()
    graph_breaks: int = 0
    limit: CodePlace | None = None
    rejected: int = 0
    error: str = ""

    @property
    def compilations(self) -> int:
        return sum(self.compiled)


class Shapes(Record, frozen=True, kw_only=True):
    """What the calls of the standard trace compile: as called, and with `dynamic=True`.

    The standard trace is `STANDARD_TRACE`, at reduced depth. Without figures, `problem` says why.
    """

    as_called: TraceFigures | None = None
    dynamic: TraceFigures | None = None
    problem: str = ""


# fmt: off
STANDARD_TRACE = (
    (1, 16), (2, 16), (2, 17), (8, 17), (3, 128), (1, 128), (64, 32), (5, 100), (1, 1), (7, 512),
)
# fmt: on
"""Batch and sequence of ten calls. A model without a sequence gets each batch once."""


class TensorSummary(NamedTensor, frozen=True, kw_only=True):
    """One example input, with its `value` if it is not a tensor."""

    value: str | None = None


class Attempt(Record, frozen=True, kw_only=True):
    """One child that ran for a request before the one that gave the result, and why it ended.

    `reason` is one sentence for users. If a cluster lost the attempt, its phase is unknown, and
    `phase` is `setup`.
    """

    tier: Tier
    status: Status
    phase: Phase
    code: AttemptCode
    reason: str
    durations: dict[str, float] = {}


class Outcome(Captured, frozen=True, kw_only=True):
    """What became of a model, or of one of its input variants. `detail` is one line for users."""

    status: Status
    detail: str = ""
    fullgraph: FullgraphVerdict | None = None


class VariantResult(Outcome, frozen=True, kw_only=True):
    """What one input variant of a model gave, such as `text` or `text+image`.

    A variant that could not be built or run without the compiler has the status `unsupported`.
    `inputs` are its example inputs, empty if they could not be made.
    """

    name: str
    ops: int | None = None
    inputs: tuple[TensorSummary, ...] = ()

    @property
    def is_verdict(self) -> bool:
        """Whether it is a verdict of the compiler."""
        return self.status in (Status.PASS, Status.GRAPH_BREAK, Status.ERROR)


class TargetOutcome(Outcome, frozen=True, kw_only=True):
    """What a target found.

    `unattributed` is how many graph breaks have no reason from torch (they are also in `breaks`,
    with the code `unattributed`). `graph_ops` is the number of operations of each captured graph,
    in order, and `graph_ends` is the index in `breaks` of the break that ended each graph (-1 for
    none). Both cover only the first graphs, and are empty where none were counted.
    `artifacts` are paths relative to the folder of the run. `probed` means that only the first
    graph break was looked for, because the model cannot run without values on a device that is only
    declared. `variants` are the results of all input variants if there is more than one; `variant`
    is the worst of them, which everything else is about. Everything is about the first call of a
    model that nothing has called; `second_call` is set if the next one, with equal inputs, differs.
    `recompilations` are those of both. `shapes` is set where the request asks for it.
    """

    distinct_breaks: int | None = None
    unattributed: int | None = None
    ops: int | None = None
    guards: int | None = None
    graph_ops: tuple[int, ...] = ()
    graph_ends: tuple[int, ...] = ()
    capture: CaptureFigures | None = None
    second_call: SecondCall | None = None
    recompilations: tuple[Recompilation, ...] = ()
    shapes: Shapes | None = None
    numerics: Numerics | None = None
    details: Details | None = None
    error: ErrorRecord | None = None
    artifacts: tuple[str, ...] = ()
    probed: bool = False
    variant: str = ""
    variants: tuple[VariantResult, ...] = ()


class Result(TargetOutcome, frozen=True, kw_only=True):
    """The outcome of a request.

    `durations` maps phases to seconds. `reused_from` is the run from which this result was taken.
    `dtype` is the type of the model's weights, None where none was built.
    """

    request: Request
    phase: Phase
    tier: Tier
    depth: Depth
    schema_version: int = RESULT_VERSION
    harness_version: int = HARNESS_VERSION
    durations: dict[str, float] = {}
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    inputs: tuple[TensorSummary, ...] = ()
    inputs_strategy: str = ""
    attempts: tuple[Attempt, ...] = ()
    started_at: str = ""
    environment_digest: str = ""
    dtype: str | None = None
    reused_from: str | None = None
    expectation: str | None = None

    @property
    def is_forecast(self) -> bool:
        """Whether the request is for a forecast: its device is not one that the target names."""
        declared = self.request.device is not None and self.request.target.device == "cpu"
        return declared or self.status in FORECASTS

    @property
    def is_verdict(self) -> bool:
        """True for a pass, a graph break, a mismatch, or an error of the compiler."""
        return not self.is_forecast and is_verdict(self.status, self.phase)

    @property
    def is_conclusive(self) -> bool:
        """True for a verdict or a forecast: the evaluation came to its end."""
        return self.is_verdict or self.status in FORECASTS

    @property
    def missing_lowerings(self) -> tuple[GraphBreak, ...]:
        """The operators without a lowering that TorchNeuron is not known to handle itself.

        Each stands as a break of the graph whose code is its name, to be ranked as such.
        """
        operators = self.details.operators if isinstance(self.details, NeuronDetail) else ()
        return tuple(
            GraphBreak(
                code=operator.name,
                gb_type=operator.name,
                reason=operator.message,
                fingerprint=f"{operator.name} {operator.file}",
                file=operator.file,
                line=operator.line,
                function="",
                occurrences=operator.occurrences,
            )
            for operator in operators
            if not operator.handled_by
        )

    @property
    def traces(self) -> dict[str, TraceFigures]:
        """The figures of the standard trace by the argument `dynamic`; empty without any."""
        shapes = self.shapes or Shapes()
        both = {"default": shapes.as_called, "true": shapes.dynamic}
        return {name: figures for name, figures in both.items() if figures is not None}

    def recompilations_by(self, key: Callable[[Recompilation], Any]) -> Counter[Any]:
        """What the standard trace compiles again by a key, None left out.

        Those as called or with `dynamic=True`, whichever are more.
        """
        counts: Counter[Any] = Counter()
        for figures in self.traces.values():
            counts |= Counter(map(key, figures.recompilations))
        del counts[None]
        return counts

    @property
    def specialising_lines(self) -> tuple[GraphBreak, ...]:
        """The lines of the model because of which the standard trace compiled it again.

        Each stands as a break of the graph whose code is the kind, to be ranked as such;
        `occurrences` are the compilations.
        """
        counts = self.recompilations_by(lambda one: one.needed_by and (one.kind, one.needed_by))
        return tuple(
            GraphBreak(
                code=kind,
                gb_type=kind.replace("_", " "),
                reason=line.text,
                fingerprint=f"{kind} {line.file}:{line.line}",
                file=line.file,
                line=line.line,
                function=line.function,
                occurrences=count,
                source_start=line.line,
                source=(line.text,),
            )
            for (kind, line), count in counts.items()
        )

    @property
    def duration_seconds(self) -> float:
        return sum(self.durations.values())


def is_verdict(status: Status, phase: Phase) -> bool:
    """Whether a result with this status and phase is a verdict; see `Result.is_verdict`."""
    if status is Status.ERROR:
        return phase in (Phase.COMPILE, Phase.COMPARE)
    return status in (Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH)


def spent(result: Result) -> float:
    """Seconds in all phases of all attempts."""
    return result.duration_seconds + sum(sum(a.durations.values()) for a in result.attempts)


class Environment(Record, frozen=True, kw_only=True):
    """A Python interpreter in which a worker can run, as it described itself.

    `cuda` is the release of CUDA that its torch was built for, None for a CPU build. `placeholders`
    are packages of PyPI that stand for AWS's and cannot be imported (name -> version).
    """

    name: str
    python_executable: str
    python: str
    torch: str
    torch_git: str
    transformers: str | None
    device: str
    packages: dict[str, str]
    harness_version: int = HARNESS_VERSION
    digest: str = ""
    cuda: str | None = None
    placeholders: dict[str, str] = {}


class Run(Record, frozen=True, kw_only=True):
    """One sweep: `outputs/<id>/run.json`.

    `settings` are the arguments of the run; `planned` counts every request, and `targets` are
    those that each model is evaluated on; `plan_digest` lets `merge` check that shards belong
    to one plan, and `plan_total` counts the requests of all shards together (None where no plan
    was made). `missing_shards` names the shards that a merged run lacks. `state` is running,
    interrupted, finished, or incomplete: a merged run of which shards are missing.
    """

    id: str
    started_at: str
    source: str
    environments: tuple[Environment, ...]
    planned: int
    plan_digest: str
    schema_version: int = RUN_VERSION
    harness_version: int = HARNESS_VERSION
    finished_at: str | None = None
    state: str = "running"
    settings: dict[str, Any] = {}
    shard: str | None = None
    baseline: str | None = None
    jobs: int = 1
    wall_seconds: float | None = None
    merged_from: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    plan_total: int | None = None


class Change(Record, frozen=True, kw_only=True):
    """One difference between a baseline and a run, for one model and target."""

    kind: ChangeKind
    model: str
    target: Target
    before: Status | None
    after: Status | None
    reason: str
    family: str = "unknown"
    downloads: int | None = None
    causes: tuple[str, ...] = ()


def changed(name: str, old: object, new: object) -> list[str]:
    """Return no line if two values are equal, else one: `torch 2.12.0 -> 2.13.0`."""
    if old == new:
        return []
    return [f"{name} {'none' if old is None else old} -> {'none' if new is None else new}"]


def environment_differences(old: Environment, new: Environment) -> list[str]:
    """What differs between two environments, a line each: `torch 2.12.0 -> 2.13.0`."""
    if old.digest == new.digest and old.digest:
        return []
    lines = changed("torch", old.torch, new.torch)
    if old.torch_git != new.torch_git:
        # A nightly build may keep its version.
        lines += changed("torch git", old.torch_git[:10], new.torch_git[:10])
    lines += changed("transformers", old.transformers, new.transformers)
    lines += changed("python", old.python, new.python)
    lines += changed("device", old.device, new.device)
    named = {"torch", "transformers"}
    for package in sorted((old.packages.keys() | new.packages.keys()) - named):
        lines += changed(package, old.packages.get(package), new.packages.get(package))
    return lines


class Shard(Record, frozen=True, kw_only=True):
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, names: Iterable[str]) -> frozenset[str]:
        """Return this shard's part of a plan's models: the same on every machine, in any order.

        A model is assigned to the first shard in the order given by its hash that is not full.
        Sizes therefore differ by at most one, and a small change of the plan moves few models to
        another machine, which has no stored results of them.
        """
        ordered = sorted(set(names), key=_hash)
        least, more = divmod(len(ordered), self.count)
        parts: list[set[str]] = [set() for _ in range(self.count)]
        for name in ordered:
            preferred = sorted(range(self.count), key=lambda n: _hash(f"{n} {name}"))
            for number in preferred:
                size = len(parts[number])
                if size < least or (size == least and more):
                    more -= size == least
                    parts[number].add(name)
                    break
        return frozenset(parts[self.index - 1])


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Plan(Versioned, frozen=True, kw_only=True):
    """What a sweep evaluates: `requests`, and `skipped` with the reasons why they do not run.

    Every model and target of the shard is in exactly one of the two. `digest` is equal for all
    shards of one plan and depends on every request in it.
    """

    requests: tuple[Request, ...]
    skipped: tuple[Result, ...]
    digest: str

    @property
    def total(self) -> int:
        return len(self.requests) + len(self.skipped)

    @property
    def duplicates(self) -> int:
        """Number of requests that share the result of another request of this plan."""
        return len(self.requests) - len({request.key for request in self.requests})


class Earlier(NamedTuple):
    """What an earlier run found for one model on one target."""

    run: str
    status: Status
    phase: Phase


class TrendPoint(NamedTuple):
    """One run of a trend: `passed` of `planned` requests for a verdict have no graph breaks."""

    run: str
    passed: int
    planned: int


class Link(NamedTuple):
    """A link of the report: a path from the folder of the run, its text, and what is there."""

    path: str
    label: str
    meaning: str


class RunPart(Protocol):
    """What an extra stored in the folder of a run, as the report and the sinks see it."""

    def links(self, model: str) -> Iterable[Link]:
        """Yield the links of a model's page."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelFix:
    """What was found against the graph breaks of one model on one target, as the report shows it.

    `changes` are the names of the changes of a fix that is `verified`: with `single_graph` the
    model has no graph break any more, else fewer. They are for the model's main inputs. `removed`
    are the fingerprints of the graph breaks that go. `code` is the fix to paste, `verification`
    what was tried of it, one line each, and `script` the path of the script from the folder of the
    run. `tried` maps a hint of PyTorch's, as its text is, to what became of the model under it,
    where that was no fix. `detail` is the outcome in a few words. `run` is the one that has it.
    """

    model: str
    target: Target
    detail: str
    verified: bool = False
    single_graph: bool = False
    changes: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()
    code: str = ""
    verification: tuple[str, ...] = ()
    script: str = ""
    tried: Mapping[str, str] = field(default_factory=dict)
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run, with one entry in `results` for each request.

    Notes: damaged lines that were skipped, expectations that no longer hold, shards missing.
    `differences` names what differs from the baseline's environment (`torch 2.12 -> 2.13`).
    `history` is what earlier runs found, oldest first, by model name and target label; `trend` ends
    with this run and has those before it that planned the same. `before` holds the baseline's
    results that `changes` are about. All three are empty where nothing is stored. `parts` is what
    extras stored in the run, by the name of the extra.
    """

    run: Run
    results: tuple[Result, ...]
    changes: tuple[Change, ...] = ()
    baseline: Run | None = None
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    history: Mapping[tuple[str, str], tuple[Earlier, ...]] = field(default_factory=dict)
    trend: tuple[TrendPoint, ...] = ()
    before: Mapping[tuple[str, Target], Result] = field(default_factory=dict)
    parts: Mapping[str, RunPart] = field(default_factory=dict)

    @property
    def fixes(self) -> tuple[ModelFix, ...]:
        """What a part with `model_fixes` says was found against graph breaks."""
        parts = self.parts.values()
        return tuple(fix for part in parts for fix in getattr(part, "model_fixes", ()))


def selection_label(settings: Mapping[str, Any]) -> str:
    """Return which models a run selects, from its settings: `top 25 (9f86d081)`.

    Runs with equal labels select alike, at the same depth. The digest distinguishes long lists.
    """
    stored = settings.get("selection")
    chosen: dict[str, Any] = stored if isinstance(stored, dict) else {}
    if chosen.get("names"):
        words = f"{len(chosen['names'])} by name"
    elif chosen.get("families"):
        words = f"{len(chosen['families'])} by family"
    elif chosen.get("all"):
        words = "all"
    else:
        words = f"top {chosen['top']}" if chosen.get("top") else "default"
    identity = [chosen, settings.get("depth"), settings.get("tier")]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return f"{words} ({digest[:8]})"


UNATTRIBUTED = "unattributed"
"""The code of breaks that torch counted without a reason."""


def reason_title(graph_break: GraphBreak) -> str:
    """Return torch's name of the type, or the first line of the reason."""
    return (graph_break.gb_type or graph_break.reason).splitlines()[0].strip()


def reason_label(graph_break: GraphBreak, *, short: bool = False) -> str:
    """Return `GB0170 Data-dependent branching`, `xla_fallback aten::nonzero`, or a code.

    The value is bounded, never free text: types are those of PyTorch's registry, and operators
    are PyTorch's own. `short` leaves out the code where there is a type, and words it otherwise.
    """
    if short:
        return graph_break.gb_type or graph_break.code.replace("_", " ")
    if graph_break.gb_id and graph_break.gb_type:
        return f"{graph_break.gb_id} {graph_break.gb_type}"
    if graph_break.gb_type and "::" in graph_break.gb_type:
        return f"{graph_break.code} {graph_break.gb_type}"
    return graph_break.code


def source_lines(graph_break: GraphBreak) -> tuple[tuple[int, str], ...]:
    """The stored lines around a break with their numbers; of older runs at most its own line."""
    if graph_break.source:
        return tuple(enumerate(graph_break.source, start=graph_break.source_start))
    here = (graph_break.file, graph_break.line)
    texts = (f.text for f in graph_break.user_stack if (f.file, f.line) == here and f.text)
    return tuple((graph_break.line, text) for text in texts)[:1]


def source_line(graph_break: GraphBreak) -> str:
    """The text of the line that broke, as it was when it ran; empty where it was not kept."""
    return dict(source_lines(graph_break)).get(graph_break.line, "")


METADATA = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "finetuning_task",
        "label2id",
        "name_or_path",
        "task_specific_params",
        "transformers_version",
    }
)
"""Keys of a config.json that describe its origin or the names of its outputs.

`dtype` is not one of them: sub-models made with `AutoModel.from_config` are built in that dtype
(transformers 5.23, `PreTrainedModel._from_config`), and some forward methods read it.
"""


def digest(value: Any) -> str:
    """Return the SHA-256, in hex, of the value as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def canonical_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without the keys that cannot change a result, at every level.

    The names of labels are dropped and their number is kept; the older spelling `torch_dtype`
    becomes `dtype`.
    """
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in METADATA:
            continue
        if key == "id2label" and isinstance(value, Mapping):
            # In Transformers, id2label takes precedence over num_labels.
            kept["num_labels"] = len(value)
        elif key == "torch_dtype":
            kept.setdefault("dtype", value)
        elif key != "num_labels" or not isinstance(config.get("id2label"), Mapping):
            kept[key] = canonical_config(value) if isinstance(value, Mapping) else value
    return kept


def config_sha256(config: Mapping[str, Any]) -> str:
    """Return the digest of the canonical configuration, as in `ConfigBuild.config_sha256`."""
    return digest(canonical_config(config))


def now() -> str:
    """Return the current time as RFC 3339 with nanoseconds, in UTC."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


def new_run_id() -> str:
    """Return `YYYYmmdd-HHMMSS-ffff` in UTC; ffff counts 1/65536 of a second, so that ids sort."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    fraction = nanoseconds * 65536 // 1_000_000_000
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(seconds))}-{fraction:04x}"


def started(run: str) -> datetime:
    """When a run started, from its id: `20260102-030405-0001`."""
    return datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
