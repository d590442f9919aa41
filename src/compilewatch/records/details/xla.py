"""What capturing for and running on XLA found."""

from __future__ import annotations

from compilewatch.records.base import SCHEMA_VERSION, Record
from compilewatch.records.breaks import GraphBreak
from compilewatch.records.details.export import ExportVariant


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


class XlaDetail(Record, frozen=True, kw_only=True, tag="xla"):
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
