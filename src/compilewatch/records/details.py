"""What targets find besides a verdict: one tagged struct for each target that finds more."""

from __future__ import annotations

from compilewatch.records.base import SCHEMA_VERSION, Record
from compilewatch.records.breaks import GraphBreak


class Numerics(Record, frozen=True, kw_only=True):
    """A comparison with eager mode: tolerances as used and errors as measured.

    Relative errors are relative to the largest magnitude in the same output. `reference` is what
    errors were compared with if the tolerances alone did not decide: `float64`, or `eager` if the
    model cannot run in float64. `mismatches` names the first few outputs that differ; `alone` says
    then which of the two differs from each sample of the batch computed alone, in eager mode.
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

    @property
    def difference(self) -> str:
        """The first output that differs, and what becomes of each sample alone."""
        return "; ".join(filter(None, (*self.mismatches[:1], self.alone)))


class ExportVariant(Record, frozen=True, kw_only=True):
    """The result of `torch.export.export`. `ops` counts ATen and higher-order operators."""

    exported: bool
    duration_seconds: float
    ops: int | None = None
    code: str | None = None
    reason: str | None = None


class DraftFailure(Record, frozen=True, kw_only=True):
    """One finding of draft export. `kind` is PyTorch's (`data_dependent_error`, `guard_added`, …).

    `what` is the expression or the operator concerned; the location is the innermost line of the
    model.
    """

    kind: str
    what: str
    occurrences: int = 1
    file: str | None = None
    line: int | None = None
    function: str | None = None


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


class HloParameter(Record, frozen=True, kw_only=True):
    """One parameter of a captured HLO module. `dtype` and `shape` are as in PyTorch.

    `kind`: `parameter` and `buffer` (`name` is the model's own, `aliases` are the names of tied
    weights), `input` (`name` is its path in the arguments), `constant` (a tensor made by the
    model's code, or the seed of random numbers; its value is stored as `name` in
    `graph.constants.safetensors`).
    """

    id: int
    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()


class HloParameters(Record, frozen=True, kw_only=True):
    """`graph.parameters.json`: the inputs and outputs of a captured HLO module.

    The parameters are in the order of the capture, not of the arguments. `outputs` are paths in
    the return value of the model, in the order of the module's result tuple; in train mode they are
    followed by gradients and then by the buffers that were written. A module is kept only if it is
    valid for inputs other than the example.
    """

    parameters: tuple[HloParameter, ...]
    unused_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION


class NeuronConcern(Record, frozen=True, kw_only=True):
    """An operator of a captured graph that neuronx-cc is documented to reject.

    A prediction from `data/neuron_operators.toml`, never a verdict: no Neuron compiler ran.
    `sdk` is the version of the Neuron SDK that `source` (a URL) documents.
    """

    operator: str
    count: int
    reason: str
    source: str
    sdk: str


class OpenXla(Record, frozen=True, kw_only=True):
    """What Dynamo does with the model on top of XLA: `torch.compile(backend="openxla")`.

    `accepted`: one graph was captured without graph breaks, and it ran. `code` and `reason` are
    those of the failure or of the first graph break; `fallbacks` counts the operators that ran
    outside XLA, by name.
    """

    accepted: bool
    graphs: int | None = None
    graph_breaks: int | None = None
    breaks: tuple[GraphBreak, ...] = ()
    fallbacks: dict[str, int] = {}
    code: str | None = None
    reason: str | None = None


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
    stablehlo: ExportVariant | None = None
    compile_seconds: float | None = None
    recompiles_same_inputs: int | None = None
    recompiles: int | None = None
    openxla: OpenXla | None = None
    expected_to_fail_on_neuron: tuple[NeuronConcern, ...] = ()


class NeffHeader(Record, frozen=True, kw_only=True):
    """The header of a NEFF, the executable of a NeuronCore, as the compiler wrote it.

    `cores` is the number of NeuronCores it was built for; `hash` and `uuid` are hexadecimal.
    """

    package_version: int
    header_bytes: int
    data_bytes: int
    version: str
    build: str
    cores: int
    requested_cores: int
    hash: str
    uuid: str
    name: str
    feature_bits: int
    logical_core_size: int


class NeuronFailure(Record, frozen=True, kw_only=True):
    """Why neuronx-cc produced no NEFF.

    `kind` is a class from `neuron.error_classes`; `code` is the compiler's own (`NCC_…`, or an
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
    """An operator that `torch_neuronx.analyze` found unsupported; `failure_at` names the step."""

    name: str
    occurrences: int
    failure_at: str


class NeuronSupport(Record, frozen=True, kw_only=True):
    """The report of `torch_neuronx.analyze`. `supported` counts calls by operator."""

    percent: float | None = None
    supported: dict[str, int] = {}
    unsupported: tuple[NeuronOperator, ...] = ()


class NeuronDetail(Record, frozen=True, kw_only=True, tag="neuron"):
    """Details of compiling for Neuron; also the file `neuron.json` of `neuron compile`.

    `target` is the instance family, `route` is `torch_neuronx.trace` or `neuronx-cc`. `flags` are
    all compiler flags that can change its result. `compile_seconds` is the wall-clock time of the
    compiler, including the lowering for the route `torch_neuronx.trace`; None if the NEFF comes
    from the compile cache (`cached`). `compiler_peak_memory_bytes` is the peak memory of the
    compiler's largest process on the host. Latencies are medians over `latency_samples` runs, of
    eager mode on the host's CPU and of the NEFF on a NeuronCore; they are None without a device.
    """

    target: str
    route: str
    flags: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    sdk_version: str | None = None
    compiler_version: str | None = None
    hlo_sha256: str | None = None
    compiled: bool = False
    cached: bool = False
    compile_seconds: float | None = None
    compiler_peak_memory_bytes: int | None = None
    neff_bytes: int | None = None
    neff: NeffHeader | None = None
    failure: NeuronFailure | None = None
    support: NeuronSupport | None = None
    device_cores: int | None = None
    eager_latency_seconds: float | None = None
    latency_seconds: float | None = None
    latency_samples: int | None = None


Details = ExportDetail | Performance | XlaDetail | NeuronDetail
