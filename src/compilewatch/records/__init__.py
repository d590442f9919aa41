"""The data types of compilewatch. They are immutable and versioned.

Everything that is stored, sent to a worker or published is one of these structs. They are
`msgspec.Struct`s because msgspec has no dependencies of its own (a worker must fit into foreign
environments) and validates types on decoding. Durations are seconds, memory is bytes, times are
RFC 3339 strings in UTC.

These modules import only each other, because the worker and the parent share them.
"""

from __future__ import annotations

from compilewatch.records.base import (
    HARNESS_VERSION,
    NOT_RUN,
    RESULT_VERSION,
    RUN_VERSION,
    SCHEMA_VERSION,
    AttemptCode,
    ChangeKind,
    Depth,
    Dtype,
    Mode,
    Part,
    Phase,
    Quantization,
    Record,
    Status,
    Tier,
    Variants,
)
from compilewatch.records.breaks import (
    ErrorRecord,
    FullgraphVerdict,
    GraphBreak,
    StackFrame,
)
from compilewatch.records.capture import CaptureFigures, Recompilation, SecondCall
from compilewatch.records.details import (
    Details,
    DraftExport,
    DraftFailure,
    ExportDetail,
    ExportVariant,
    HloParameter,
    HloParameters,
    NeffHeader,
    NeuronConcern,
    NeuronDetail,
    NeuronFailure,
    NeuronOperator,
    NeuronSupport,
    Numerics,
    OpenXla,
    Performance,
    XlaDetail,
)
from compilewatch.records.devices import DeclaredDevice
from compilewatch.records.requests import (
    DEFAULT_ENVIRONMENT,
    Build,
    CallerBuild,
    ChaosBuild,
    ClassBuild,
    ConfigBuild,
    Deadlines,
    FactoryBuild,
    LibraryBuild,
    ModelSpec,
    Request,
    Target,
    Work,
)
from compilewatch.records.results import (
    Attempt,
    Result,
    TensorSummary,
    VariantResult,
)
from compilewatch.records.runs import (
    Change,
    Environment,
    Run,
)

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "HARNESS_VERSION",
    "NOT_RUN",
    "RESULT_VERSION",
    "RUN_VERSION",
    "SCHEMA_VERSION",
    "Attempt",
    "AttemptCode",
    "Build",
    "CallerBuild",
    "CaptureFigures",
    "Change",
    "ChangeKind",
    "ChaosBuild",
    "ClassBuild",
    "ConfigBuild",
    "Deadlines",
    "DeclaredDevice",
    "Depth",
    "Details",
    "DraftExport",
    "DraftFailure",
    "Dtype",
    "Environment",
    "ErrorRecord",
    "ExportDetail",
    "ExportVariant",
    "FactoryBuild",
    "FullgraphVerdict",
    "GraphBreak",
    "HloParameter",
    "HloParameters",
    "LibraryBuild",
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
    "Part",
    "Performance",
    "Phase",
    "Quantization",
    "Recompilation",
    "Record",
    "Request",
    "Result",
    "Run",
    "SecondCall",
    "StackFrame",
    "Status",
    "Target",
    "TensorSummary",
    "Tier",
    "VariantResult",
    "Variants",
    "Work",
    "XlaDetail",
]
