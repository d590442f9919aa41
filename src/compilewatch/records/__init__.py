"""The nouns of compilewatch, frozen and versioned.

Everything that is stored, sent to a worker or published is one of these structs. They are
`msgspec.Struct`s because msgspec has no dependencies of its own (a worker must fit into foreign
environments) and validates types on decoding. Durations are seconds, memory is bytes, times are
RFC 3339 strings in UTC.

These modules import nothing of the package but one another: the worker and the parent share them.
"""

from __future__ import annotations

from compilewatch.records.base import (
    HARNESS_VERSION,
    SCHEMA_VERSION,
    ChangeKind,
    Depth,
    Mode,
    Phase,
    Record,
    Status,
    Tier,
)
from compilewatch.records.breaks import (
    ErrorRecord,
    FullgraphVerdict,
    GraphBreak,
    StackFrame,
)
from compilewatch.records.details.measured import (
    DraftExport,
    DraftFailure,
    ExportDetail,
    ExportVariant,
    HloParameter,
    HloParameters,
    NeuronConcern,
    Numerics,
    OpenXla,
    Performance,
    XlaDetail,
)
from compilewatch.records.details.neuron import (
    NeffHeader,
    NeuronDetail,
    NeuronFailure,
    NeuronOperator,
    NeuronSupport,
)
from compilewatch.records.requests import (
    DEFAULT_ENVIRONMENT,
    Build,
    ChaosBuild,
    ClassBuild,
    ConfigBuild,
    Deadlines,
    FactoryBuild,
    ModelSpec,
    Request,
    Target,
)
from compilewatch.records.results import (
    Attempt,
    Result,
    TensorSummary,
)
from compilewatch.records.runs import (
    Change,
    Environment,
    Run,
)

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "HARNESS_VERSION",
    "SCHEMA_VERSION",
    "Attempt",
    "Build",
    "Change",
    "ChangeKind",
    "ChaosBuild",
    "ClassBuild",
    "ConfigBuild",
    "Deadlines",
    "Depth",
    "DraftExport",
    "DraftFailure",
    "Environment",
    "ErrorRecord",
    "ExportDetail",
    "ExportVariant",
    "FactoryBuild",
    "FullgraphVerdict",
    "GraphBreak",
    "HloParameter",
    "HloParameters",
    "Mode",
    "ModelSpec",
    "NeffHeader",
    "NeuronConcern",
    "NeuronDetail",
    "NeuronFailure",
    "NeuronOperator",
    "NeuronSupport",
    "Numerics",
    "OpenXla",
    "Performance",
    "Phase",
    "Record",
    "Request",
    "Result",
    "Run",
    "StackFrame",
    "Status",
    "Target",
    "TensorSummary",
    "Tier",
    "XlaDetail",
]
