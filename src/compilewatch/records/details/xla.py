"""Details of the `xla` target."""

from __future__ import annotations

from compilewatch.records.base import SCHEMA_VERSION, Record
from compilewatch.records.breaks import GraphBreak
from compilewatch.records.details.export import ExportVariant


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
