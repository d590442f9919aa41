"""Codes of graph breaks and compiler errors: from PyTorch's registry, or else our own.

Torch contains a registry of graph break types (`torch/_dynamo/graph_break_registry.json`: id, type,
context, explanation, hints) and formats each graph break with `format_graph_break_message` of
`torch/_dynamo/exc.py`. Causes without an entry (mostly symbolic shapes and errors) get one of
`CODES`. Both are bounded: a code can be a metric label, a reason cannot.

This module reads torch's files but does not import torch, so that the parent can use it too.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path

from compilewatch.records import Record

UNATTRIBUTED = "unattributed"
SKIPPED_FRAME = "skipped_frame"
UNREGISTERED = "unregistered"
AOT_AUTOGRAD = "aot_autograd"
OTHER = "other"

_TAXONOMY: tuple[tuple[str, str, str], ...] = (
    # (code, pattern of type names, pattern of the message); the first matching row counts.
    (
        "recompile_limit",
        r"FailOnRecompileLimitHit|RecompileError",
        r"recompile.limit (exceeded|reached)",
    ),
    (
        "data_dependent_guard",
        r"GuardOnDataDependentSymNode",
        r"Could not (guard on|extract specialized integer from) data-dependent expression",
    ),
    (
        "unbacked_symint",
        r"PendingUnbackedSymbolNotFound",
        r"unbacked sym(int|float|bool)|\bunbacked\b.*\bsymbol",
    ),
    ("constraint_violation", r"ConstraintViolationError|ValueRangeError", r"Constraints violated"),
    ("data_dependent_output", r"DataDependentOutputException", r"DataDependentOutputException"),
    ("dynamic_output_shape", r"DynamicOutputShapeException", r"DynamicOutputShapeException"),
    (
        "fake_tensor",
        r"TorchRuntimeError|UnsupportedFakeTensorException|UnsupportedOperatorException"
        r"|UnsupportedMutationAliasingException|MetadataMismatchError",
        r"when making fake tensor call|Mixing fake modes|convert all Tensors to FakeTensors"
        r"|RuntimeError when running fake tensors",
    ),
    ("higher_order_op", r"UncapturedHigherOrderOpError|CondOpArgsMismatchError", r"(?!)"),
    ("observed_exception", r"Observed\w+", r"^Observed exception"),
    ("nested_compile", r"(?!)", r"expected not to compile nested code"),
    ("skipped_frame", r"SkipFrame", r"found no compiled frames|intentionally decided to skip"),
    ("resume_prologue", r"ResumePrologueTracingError", r"(?!)"),
    ("speculation_divergence", r"SpeculationLogDivergence", r"SpeculationLog diverged"),
    ("invalid_backend", r"InvalidBackend|ResetRequired", r"(?!)"),
    (AOT_AUTOGRAD, r"(?!)", r"aot_autograd|AOTAutograd|while tracing the joint graph"),
    ("backend_error", r"BackendCompilerFailed|InductorError|LoweringException", r"(?!)"),
    ("dynamic_control_flow", r"(?!)", r"DYNAMIC_CONTROL_FLOW|[Dd]ynamic control flow"),
    ("user_error", r"UserError", r"(?!)"),
    ("recursion", r"RecursionError", r"maximum recursion depth"),
    ("internal_error", r"InternalTorchDynamoError|AssertionError", r"(?!)"),
    ("runtime_error", r"RuntimeError", r"(?!)"),
)

CODES = (*(code for code, _, _ in _TAXONOMY), UNATTRIBUTED, UNREGISTERED, OTHER)
"""All our own codes. The other codes are ids of the registry."""

_WHILE_HANDLING = "*** While handling this graph break, another graph break occurred: ***"
_EXPLANATION = re.compile(
    r"^  Explanation: (?P<text>.*?)(?=^  Hint: |^\s*\n  Developer debug context:|\Z)", re.M | re.S
)
_HINT = re.compile(r"^  Hint: (?P<text>.*?)(?=^  Hint: |^\s*\n|\Z)", re.M | re.S)
_PREFIX = re.compile(
    r"\A(?:Encountered graph break when attempting to trace .*?:\n\n"
    r"|.*?Graph break encountered:\n\n)",
    re.S,
)


class BreakCause(Record, frozen=True, kw_only=True):
    """The classification of a graph break: the fields of `GraphBreak` that its reason decides."""

    code: str
    gb_id: str | None = None
    gb_type: str | None = None
    explanation: str = ""
    hints: tuple[str, ...] = ()


def classify(reason: str, type_names: Iterable[str] = ()) -> BreakCause:
    """Classify one of torch's reasons, given the types of the exceptions that it came with.

    A graph break that occurs while another one is handled (a loop or a context manager in which
    execution cannot resume) is a consequence: torch puts the original one first, and that is the
    cause. The same holds for a reason behind the first sentence of a wrapper ("Encountered graph
    break when attempting to trace CALL", "Failed to handle graph break gracefully").
    """
    inner = innermost(reason)
    first_line = inner.partition("\n")[0].strip()
    known = registry()
    if first_line in known or "\n  Explanation:" in inner:
        gb_id = known.get(first_line)
        explanation = _EXPLANATION.search(inner)
        return BreakCause(
            code=gb_id or UNREGISTERED,
            gb_id=gb_id,
            gb_type=first_line,
            explanation=_joined(explanation["text"]) if explanation else "",
            hints=tuple(_joined(hint["text"]) for hint in _HINT.finditer(inner)),
        )
    return BreakCause(code=short_code(inner, type_names))


def innermost(reason: str) -> str:
    """Return the original reason without torch's wrappers."""
    original = reason.split(_WHILE_HANDLING)[0]
    while True:
        unwrapped = _PREFIX.sub("", original, count=1)
        if unwrapped == original:
            return original.strip()
        original = unwrapped


def short_code(message: str, type_names: Iterable[str] = ()) -> str:
    """Return one of `CODES` for a message and its exceptions; types take precedence."""
    names = tuple(type_names)
    for code, type_pattern, message_pattern in _TAXONOMY:
        if any(re.fullmatch(type_pattern, name) for name in names):
            return code
        if re.search(message_pattern, message):
            return code
    return OTHER


@functools.cache
def registry() -> dict[str, str]:
    """Map the types of graph breaks to ids, for the installed torch; empty without a registry.

    An entry is a list, newest first: an old type keeps its id but never replaces a newer one's.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "_dynamo" / "graph_break_registry.json"
    if not path.is_file():
        return {}
    entries: dict[str, list[dict[str, object]]] = json.loads(path.read_text())
    known: dict[str, str] = {}
    for newest in (False, True):
        for gb_id, versions in entries.items():
            for version in versions[:1] if newest else versions[1:]:
                known[str(version["Gb_type"])] = gb_id
    return known


def _joined(text: str) -> str:
    return " ".join(text.split())
