"""What single targets found beyond their verdict."""

from __future__ import annotations

from compilewatch.records.base import SCHEMA_VERSION, Record
from compilewatch.records.breaks import GraphBreak


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
