"""The nouns of compilewatch, frozen and versioned.

Everything that is stored, sent to a worker or published is one of these structs. They are
`msgspec.Struct`s because msgspec has no dependencies of its own (a worker must fit into foreign
environments) and validates types on decoding. Durations are seconds, memory is bytes, times are
RFC 3339 strings in UTC.

This module imports nothing of the package: the worker and the parent share it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 1
"""Version of every file written from these structs; see docs/formats.md."""

HARNESS_VERSION = 1
"""Bumped by hand when a change of ours can change an answer: part of every request key."""


class Status(StrEnum):
    """What became of a request; `Phase` says where."""

    PASS = "pass"
    GRAPH_BREAK = "graph_break"
    MISMATCH = "mismatch"
    ERROR = "error"
    TIMEOUT = "timeout"
    OOM = "oom"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    UNSUPPORTED = "unsupported"


class Phase(StrEnum):
    """Where a child is, in order. Written before each step is begun."""

    SETUP = "setup"
    CREATE = "create"
    INPUTS = "inputs"
    EAGER = "eager"
    COMPILE = "compile"
    COMPARE = "compare"
    PROFILE = "profile"
    DONE = "done"


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


class ChangeKind(StrEnum):
    REGRESSION = "regression"
    FIXED = "fixed"
    NEW = "new"
    GONE = "gone"
    NEWLY_TESTED = "newly_tested"
    NO_LONGER_TESTED = "no_longer_tested"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all records: immutable, keyword-only."""


# --- what is asked -----------------------------------------------------------------------------


class ClassBuild(Record, frozen=True, kw_only=True, tag="class"):
    """A class of Transformers built from its configuration class's defaults."""

    class_name: str


class ConfigBuild(Record, frozen=True, kw_only=True, tag="config"):
    """A class of Transformers built from a `config.json`.

    `config_file` is absolute; `config_sha256` is the digest of the canonical configuration
    (see `planning.canonical_config`). `weights` loads real weights of `repo` at the spec's
    revision; `trust_remote_code` is set only where a person listed the repository and revision.
    """

    config_file: str
    config_sha256: str
    class_name: str | None = None
    repo: str | None = None
    weights: bool = False
    trust_remote_code: bool = False


class FactoryBuild(Record, frozen=True, kw_only=True, tag="factory"):
    """`package.module:factory`, called without arguments, returns an `nn.Module`.

    `path` (absolute) is put on `sys.path`; `inputs` names a callable that returns a tuple of
    args, a dict of kwargs, or `(args, kwargs)`; `source_sha256` digests the factory's module file.
    """

    factory: str
    path: str | None = None
    inputs: str | None = None
    source_sha256: str = ""


class ChaosBuild(Record, frozen=True, kw_only=True, tag="chaos"):
    """A built-in model that misbehaves on purpose; `behaviour` is a name of `worker.chaos`."""

    behaviour: str


Build = ClassBuild | ConfigBuild | FactoryBuild | ChaosBuild


class ModelSpec(Record, frozen=True, kw_only=True):
    """One model to be asked about. `name` is `org/model` or a class name, unique in a plan.

    `inputs_file` is the model's own saved inputs file (`.toml` or `.safetensors`), absolute.
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
    inputs_file: str | None = None
    provenance: dict[str, str] = {}


DEFAULT_ENVIRONMENT = "default"
"""The interpreter that runs compilewatch itself."""

HOMES = {"xla": "xla", "neuron": "neuron"}
"""Target -> the environment it needs; the others are at home in `default`."""


class Target(Record, frozen=True, kw_only=True):
    """A compile target with its options, in the environment that it is asked in.

    `backend` None means the target's own default. `environment` is part of what a result is about:
    one run may ask one model on one target in two environments.
    """

    name: str = "dynamo"
    mode: Mode = Mode.EVAL
    dynamic: bool = False
    backend: str | None = None
    environment: str = DEFAULT_ENVIRONMENT

    @property
    def at_home(self) -> bool:
        """Whether it is asked where it is asked by default."""
        return self.environment == HOMES.get(self.name, DEFAULT_ENVIRONMENT)


class Deadlines(Record, frozen=True, kw_only=True):
    """Wall-clock limits of a child, by phase, in seconds; `total` bounds them all."""

    setup_seconds: float = 60.0
    create_seconds: float = 180.0
    inputs_seconds: float = 60.0
    eager_seconds: float = 180.0
    compile_seconds: float = 600.0
    compare_seconds: float = 180.0
    profile_seconds: float = 300.0
    total_seconds: float = 1200.0
    neuron_compile_seconds: float = 7200.0

    def of_target(self, target: str) -> Deadlines:
        """The limits on a target: neuronx-cc has its own for compiling, and the total makes room.

        Applied twice it changes nothing more.
        """
        if target != "neuron":
            return self
        more = self.neuron_compile_seconds - self.compile_seconds
        return msgspec.structs.replace(
            self,
            compile_seconds=self.neuron_compile_seconds,
            total_seconds=self.total_seconds + max(more, 0.0),
        )

    def of(self, phase: Phase) -> float:
        """The limit of one phase; `done` has the limit of `setup` (tear-down)."""
        if phase is Phase.DONE:
            return self.setup_seconds
        return float(getattr(self, f"{phase.value}_seconds"))


class Request(Record, frozen=True, kw_only=True):
    """One question: this model, on this target, in the target's environment.

    `key` hashes all that can change the answer (not deadlines or memory, which can only prevent
    one). `inputs_file` is a saved inputs file (`.toml` or `.safetensors`), absolute.
    `overrides_dir` is the folder of reviewed input overrides, absolute, and `neuron_operators` the
    file of operators that neuronx-cc is documented to reject.
    """

    model: ModelSpec
    target: Target
    key: str
    tier: Tier = Tier.AUTO
    depth: Depth = Depth.FULL
    deadlines: Deadlines = Deadlines()
    memory_limit_bytes: int = 8 * 2**30
    inputs_file: str | None = None
    overrides_dir: str | None = None
    neuron_operators: str | None = None
    keep_artifacts: bool = True


# --- what is answered --------------------------------------------------------------------------


class StackFrame(Record, frozen=True, kw_only=True):
    """One frame of a user stack. `file` is relative to its package (`transformers/models/…`)."""

    file: str
    line: int
    function: str
    text: str = ""


class GraphBreak(Record, frozen=True, kw_only=True):
    """One distinct graph break: a cause at a place.

    `code` is bounded and never free text: the registry id (`GB0170`) or a short code of ours
    (`unbacked_symint`). `gb_type` is torch's type name, or None where torch has none.
    `fingerprint` is 12 hex digits over (code or type, file, function): it survives line drift.
    `occurrences` counts how often this break was hit while the example inputs ran.
    """

    code: str
    reason: str
    fingerprint: str
    file: str
    line: int
    function: str
    gb_id: str | None = None
    gb_type: str | None = None
    explanation: str = ""
    hints: tuple[str, ...] = ()
    user_stack: tuple[StackFrame, ...] = ()
    occurrences: int = 1


class FullgraphVerdict(Record, frozen=True, kw_only=True):
    """Does `torch.compile(fullgraph=True, backend="eager")` accept it; if not, why.

    `derived`: True where it follows from a capture in one graph with no break and no skipped
    frame, so that the second compile was not run.
    """

    accepted: bool
    derived: bool = False
    code: str | None = None
    reason: str | None = None


class ErrorRecord(Record, frozen=True, kw_only=True):
    """A foreign failure. `head` and `tail` hold at least 8 KiB each of the traceback."""

    type: str
    message: str
    code: str
    head: str = ""
    tail: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None


class Numerics(Record, frozen=True, kw_only=True):
    """Comparison with eager; tolerances as used, errors as measured, both absolute and relative.

    Relative is to the largest magnitude in the same output. `reference` is what errors were held
    against where the tolerances alone did not settle it: `float64`, or `eager` where the model
    cannot run in float64. `mismatches` names the outputs that differ (the first few).
    """

    deterministic: bool
    matches: bool
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    atol: float | None = None
    rtol: float | None = None
    reference: str | None = None
    mismatches: tuple[str, ...] = ()


class ExportVariant(Record, frozen=True, kw_only=True):
    """The answer of `torch.export.export`. `ops` counts ATen and higher-order operators."""

    exported: bool
    duration_seconds: float
    ops: int | None = None
    code: str | None = None
    reason: str | None = None


class DraftFailure(Record, frozen=True, kw_only=True):
    """One finding of draft export. `kind` is torch's (`data_dependent_error`, `guard_added`, …).

    `what` is the expression or the operator it is about; the place is the model's innermost line.
    """

    kind: str
    what: str
    occurrences: int = 1
    file: str | None = None
    line: int | None = None
    function: str | None = None


class DraftExport(Record, frozen=True, kw_only=True):
    """`torch.export.draft_export`, which takes the path of the example values and reports."""

    exported: bool
    failures: tuple[DraftFailure, ...] = ()
    reason: str | None = None


class ExportDetail(Record, frozen=True, kw_only=True):
    """What the export target found beyond its verdict, which is that of the non-strict variant.

    A variant that was not asked for is None. Under dynamic shapes, `dynamic_dimensions` are those
    of the inputs that stayed symbolic (`input_ids[0]`), `specialized_dimensions` those that were
    asked for and became constants.
    """

    non_strict: ExportVariant | None = None
    strict: ExportVariant | None = None
    draft: DraftExport | None = None
    dynamic_dimensions: tuple[str, ...] = ()
    specialized_dimensions: tuple[str, ...] = ()

    @property
    def disagrees(self) -> bool:
        """True where both variants were asked and one exports what the other does not."""
        if self.non_strict is None or self.strict is None:
            return False
        return self.non_strict.exported is not self.strict.exported


class Performance(Record, frozen=True, kw_only=True):
    """Times of compiled code beside eager, in seconds, on one thread.

    Compile times are those of the first call, one run included: `cold` with empty caches, `warm`
    with the caches on disk that the cold one filled. Latencies are medians over `latency_samples`
    runs after warm-up; in train mode of forward and backward. `speedup` is eager over compiled.
    `recompiles` counts the graphs compiled anew for inputs whose batch is one larger.
    `compiler_peak_memory_bytes` is that of the largest process of the C++ compiler, None where
    the system does not tell.
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
    """One parameter of a captured HLO module. `dtype` is torch's, `shape` in its order.

    `kind`: `parameter` and `buffer` (`name` is the model's own, `aliases` those of tied weights),
    `input` (`name` is its path in the arguments), `constant` (a tensor that model code made, or
    the seed of random numbers; its value stands under `name` in `graph.constants.safetensors`).
    """

    id: int
    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()


class HloParameters(Record, frozen=True, kw_only=True):
    """`graph.parameters.json`: what goes into a captured HLO module, and what comes out of it.

    The order of parameters is the capture's own, not that of the arguments. `outputs` are paths in
    what the model returned, in the order of the module's result tuple; in train mode gradients
    follow, then the buffers that were written. A module is kept only where it holds for other
    inputs than the example as well.
    """

    parameters: tuple[HloParameter, ...]
    unused_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION


class NeuronConcern(Record, frozen=True, kw_only=True):
    """An operator of a captured graph that neuronx-cc is documented to reject.

    An expectation from `inputs/neuron_operators.toml`, never a verdict: no Neuron compiler ran.
    `sdk` is the version of the Neuron SDK that `source` (a URL) documents.
    """

    operator: str
    count: int
    reason: str
    source: str
    sdk: str


class OpenXla(Record, frozen=True, kw_only=True):
    """What Dynamo does with the model in front of XLA: `torch.compile(backend="openxla")`.

    `accepted`: one graph, no break, and it ran. `code` and `reason` are those of the failure or
    of the first break; `fallbacks` are operators that ran outside XLA, by name.
    """

    accepted: bool
    graphs: int | None = None
    graph_breaks: int | None = None
    breaks: tuple[GraphBreak, ...] = ()
    fallbacks: dict[str, int] = {}
    code: str | None = None
    reason: str | None = None


class XlaDetail(Record, frozen=True, kw_only=True):
    """What the xla target found beyond its verdict.

    `operators` counts the HLO instructions of the captured module by opcode, `fallbacks` the
    operators that ran outside XLA (`aten::nonzero`) in one call. `hlo` says whose that module is,
    and that it may be compiled ahead of time: `lazy`, of the model's own call, or `export`, of its
    exported program, where the call itself breaks; None where both do, and then nothing is kept.
    `compile_seconds` is the time in XLA's compiler for the first call. `recompiles_same_inputs` and
    `recompiles` count graphs compiled anew by a second identical call and for a batch one larger.
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

    `cores` is how many NeuronCores it was built for; `hash` and `uuid` are hexadecimal.
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
    """Why neuronx-cc gave no NEFF.

    `kind` is a class of ours (`worker.neuron.error_classes`); `code` is the compiler's (`NCC_…`,
    or an older `XTP002`, `F137`), None where it gave none. `message` and `advice` are its own
    words, taken from its log. `signal` names what ended it.
    """

    kind: str
    code: str | None = None
    message: str = ""
    advice: str = ""
    exit_status: int | None = None
    signal: str | None = None


class NeuronOperator(Record, frozen=True, kw_only=True):
    """An operator that `torch_neuronx.analyze` found unsupported, and which step refused it."""

    name: str
    occurrences: int
    failure_at: str


class NeuronSupport(Record, frozen=True, kw_only=True):
    """What `torch_neuronx.analyze` says. `supported` counts calls by operator."""

    percent: float | None = None
    supported: dict[str, int] = {}
    unsupported: tuple[NeuronOperator, ...] = ()


class NeuronDetail(Record, frozen=True, kw_only=True):
    """What compiling for Neuron found; also the file `neuron.json` of `neuron compile`.

    `target` is the instance family, `route` is `torch_neuronx.trace` or `neuronx-cc`. `flags` are
    the compiler's, all that can change its answer. `compile_seconds` is the compiler's wall time,
    on the route `torch_neuronx.trace` with the lowering; None where the NEFF is from the compile
    cache (`cached`). `compiler_peak_memory_bytes` is that of its largest process on the host.
    Latencies are medians over `latency_samples` runs, of eager mode on the host's CPU and of the
    NEFF on a NeuronCore; they are None where there is no device.
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


class TensorSummary(Record, frozen=True, kw_only=True):
    """One example input: `name`, shape, dtype; `value` for what is not a tensor."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    value: str | None = None


class Attempt(Record, frozen=True, kw_only=True):
    """One child that ran for a request before the one that gave the answer, and why it ended.

    The reason is `fake_unsupported` (the model reads values) or a transient failure.
    """

    tier: Tier
    status: Status
    phase: Phase
    reason: str
    durations: dict[str, float] = {}


class Result(Record, frozen=True, kw_only=True):
    """The answer to a request. A number that was not measured is None, never zero.

    `detail` is one line for people. `graph_breaks` is the total of occurrences and equals the sum
    over `breaks`; `unattributed` is how many of them have no reason of torch's (each still stands
    in `breaks`, with code `unattributed`). `durations` is seconds by phase. `reused_from` is the
    run whose answer this is. `artifacts` are paths relative to the run folder.
    """

    request: Request
    status: Status
    phase: Phase
    tier: Tier
    depth: Depth
    schema_version: int = SCHEMA_VERSION
    harness_version: int = HARNESS_VERSION
    detail: str = ""
    graphs: int | None = None
    graph_breaks: int | None = None
    distinct_breaks: int | None = None
    unattributed: int | None = None
    ops: int | None = None
    guards: int | None = None
    fullgraph: FullgraphVerdict | None = None
    breaks: tuple[GraphBreak, ...] = ()
    durations: dict[str, float] = {}
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    numerics: Numerics | None = None
    export: ExportDetail | None = None
    performance: Performance | None = None
    xla: XlaDetail | None = None
    neuron: NeuronDetail | None = None
    error: ErrorRecord | None = None
    inputs: tuple[TensorSummary, ...] = ()
    inputs_strategy: str = ""
    artifacts: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    started_at: str = ""
    environment_digest: str = ""
    reused_from: str | None = None
    expectation: str | None = None

    @property
    def is_verdict(self) -> bool:
        """True where the target answered: pass, break, mismatch, or an error of the compiler."""
        if self.status in (Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH):
            return True
        return self.status is Status.ERROR and self.phase in (Phase.COMPILE, Phase.COMPARE)

    @property
    def duration_seconds(self) -> float:
        return sum(self.durations.values())


class Environment(Record, frozen=True, kw_only=True):
    """An interpreter a worker can run in, as it described itself."""

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


class Run(Record, frozen=True, kw_only=True):
    """One sweep: `outputs/<id>/run.json`.

    `settings` are the arguments it was started with; `planned` counts every request; `plan_digest`
    lets `merge` tell shards of one plan from shards of two.
    """

    id: str
    started_at: str
    source: str
    environments: tuple[Environment, ...]
    planned: int
    plan_digest: str
    schema_version: int = SCHEMA_VERSION
    harness_version: int = HARNESS_VERSION
    finished_at: str | None = None
    state: str = "running"
    settings: dict[str, Any] = {}
    shard: str | None = None
    baseline: str | None = None
    jobs: int = 1
    wall_seconds: float | None = None
    merged_from: tuple[str, ...] = ()


class Change(Record, frozen=True, kw_only=True):
    """One difference between a baseline and a run, for a model and target."""

    kind: ChangeKind
    model: str
    target: Target
    before: Status | None
    after: Status | None
    reason: str
    family: str = "unknown"
    downloads: int | None = None
    causes: tuple[str, ...] = ()


def target_label(target: Target) -> str:
    """`dynamo`, `dynamo/train`, `dynamo/eval/dynamic`: how a target is printed everywhere.

    A backend that was asked for follows the name: `neuron:trn2`.
    Away from home it names its environment: `dynamo/train@torch-2.9`.
    """
    parts = [f"{target.name}:{target.backend}" if target.backend else target.name]
    if target.mode is not Mode.EVAL or target.dynamic:
        parts.append(target.mode.value)
    if target.dynamic:
        parts.append("dynamic")
    label = "/".join(parts)
    return label if target.at_home else f"{label}@{target.environment}"
