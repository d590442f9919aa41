"""Accounting of graph breaks: from Dynamo's reports to `GraphBreak`s whose sum is the total.

Counted are the graph breaks that Dynamo met while the example inputs ran once. Dynamo compiles
frame by frame (the model's forward, the functions that resume it after a graph break, the functions
called by frames that it gave up), and each compile of a frame ends in exactly one of three ways:
captured completely, cut (a graph up to this point, a resume function from here) or given up (the
frame runs in eager mode). A cut or a given-up frame is one graph break. The unit is therefore the
compile of a frame, named by torch's compile id (`frame_id/frame_compile_id`):

- Restarts are not graph breaks. After a graph break, Dynamo traces the frame again
  (`SpeculationLog`), under the same compile id, and reports the break in the first attempt only.
  Several reports under one compile id are one graph break. If the frame was cut, the cut is at the
  last report: a new attempt met a break that comes before the first one, which the frame that
  resumes then meets (a `requires_grad_()` before a `backward()`). If the frame was given up, the
  cause is the first report, and later ones are its consequences (for example, the cut was
  impossible there), which are appended to its reason.
- A graph break inside an inlined call occurs once in the caller (which cuts before the call) and
  again when the callee is compiled as its own frame: two graph breaks at one place. They share an
  entry with two occurrences.
- A frame that runs again from Dynamo's cache does not count again; a recompiled frame does.
- A frame without tensors or operations that Dynamo skips is not a graph break, according to torch
  itself (`exc.SkipFrame`).

Sources:

- The structured trace (artifact `dynamo_graph_break_reason`) contains every graph break that the
  bytecode tracer handles, with the complete reason and user stack: cuts and most given-up frames.
- The logger of `torch._dynamo.convert_frame` reports each given-up frame with its exception. It is
  the only source for frames that fail outside the tracer (a generator's own frame, the recompile
  limit).
- `counters["frames"]` (total minus ok) counts given-up frames, `counters["graph_break"]` counts the
  cuts at an instruction where execution can resume, and a captured graph's
  `compile_subgraph_reason` says whether it ended in a cut. They have no place and serve as a check:
  what they count and the other two did not report is a graph break with the code `unattributed`.

`torch._dynamo.explain` reports the number of graphs minus one, which differs: -1 if the only frame
was given up, and one for each graph of a recompile or of an eager caller.

Codes of graph breaks and compiler errors: from PyTorch's registry, or else our own.

Torch contains a registry of graph break types (`torch/_dynamo/graph_break_registry.json`: id, type,
context, explanation, hints) and formats each graph break with `format_graph_break_message` of
`torch/_dynamo/exc.py`. Causes without an entry (mostly symbolic shapes and errors) get one of
`CODES`. Both are bounded: a code can be a metric label, a reason cannot.

This module reads torch's files but does not import torch, so that the parent can use it too.
"""

import functools
import hashlib
import importlib.util
import json
import linecache
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary

import msgspec

from compilewatch.contract.failures import relative_file
from compilewatch.records import UNATTRIBUTED, GraphBreak, StackFrame

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


UNKNOWN = "?"
NOWHERE = StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)


def classify(
    reason: str,
    exceptions: Iterable[str] = (),
    place: StackFrame = NOWHERE,
    stack: tuple[StackFrame, ...] = (),
) -> GraphBreak:
    """Return the graph break of one of torch's reasons, with the types of its exceptions.

    A graph break that occurs while another one is handled (a loop or a context manager in which
    execution cannot resume) is a consequence: torch puts the original one first, and that is the
    cause. The same holds for a reason behind the first sentence of a wrapper ("Encountered graph
    break when attempting to trace CALL", "Failed to handle graph break gracefully").
    """
    inner = innermost(reason)
    gb_type = inner.partition("\n")[0].strip()
    gb_id = registry().get(gb_type)
    if gb_id is None and "\n  Explanation:" not in inner:
        return graph_break(short_code(inner, exceptions), reason, place, stack)
    explanation = _EXPLANATION.search(inner)
    return msgspec.structs.replace(
        graph_break(gb_id or UNREGISTERED, reason, place, stack, gb_type=gb_type, gb_id=gb_id),
        explanation=portable_text(_joined(explanation["text"])) if explanation else "",
        hints=tuple(_joined(hint["text"]) for hint in _HINT.finditer(inner)),
    )


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


CompileId = str
"""`frame_id/frame_compile_id`, as torch writes it; `?/n` for a failed frame without one."""

_REASON = re.compile(
    r"^Graph Break Reason: (?P<reason>.*?)"
    r"(?:\n\nStack variable source attribution:\n.*?)?"
    r"\n\n?User code traceback:\n",  # torch 2.9 writes no empty line before it
    re.M | re.S,
)
_RESUME = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
_FILE_IN_TEXT = re.compile(r"(?<![\w.])/[^\s\"':,()]+\.py\b")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
_TORCH_STACK = re.compile(
    r"(?:=+ TorchDynamo Stack Trace =+\n)?^Traceback \(most recent call last\):\n(?:  .*\n)+", re.M
)
_IMPORT = re.compile(r"\s*(import|from)\s|.*\bimport_module\(")
"""A statement whose first execution runs the code of a module: its breaks are one entry."""
_CODE_NUMBER = re.compile(r"^(<[^>]*>)\.\d+$")
_MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")
_MODULE_FILE = "torch/nn/modules/module.py"
DYNAMO = "torch/_dynamo/"
_HARNESS = re.compile(r"compilewatch/(?:extras/\w+/)?worker/")
_LINES_AROUND = 2
_LINE_CHARACTERS = 200
PATHS: dict[str, str] = {}
"""Where the files of the frames met lie: a file outside `sys.path` cannot be found by its name."""


@dataclass(frozen=True, kw_only=True)
class BreakReport:
    """One report of a graph break: complete reason, user stack (outermost first), exceptions."""

    reason: str
    stack: tuple[StackFrame, ...] = ()
    exceptions: tuple[str, ...] = ()


def graph_break(
    code: str,
    reason: str,
    place: StackFrame,
    stack: tuple[StackFrame, ...] = (),
    *,
    gb_type: str | None = None,
    gb_id: str | None = None,
) -> GraphBreak:
    """Return a graph break of a known cause."""
    source_start, source = _source(place)
    cause = gb_id or gb_type or code
    return GraphBreak(
        code=code,
        reason=stored_reason(reason),
        fingerprint=fingerprint("import" if _IMPORT.match(place.text) else cause, place),
        file=place.file,
        line=place.line,
        function=place.function,
        gb_id=gb_id,
        gb_type=gb_type,
        user_stack=stack,
        source_start=source_start,
        source=source,
    )


def _source(place: StackFrame) -> tuple[int, tuple[str, ...]]:
    """The lines around a place and the number of the first; nothing where they cannot be read."""
    lines = linecache.getlines(PATHS.get(place.file, ""))
    if not 1 <= place.line <= len(lines):
        return 0, ()
    start = max(1, place.line - _LINES_AROUND)
    kept = lines[start - 1 : place.line + _LINES_AROUND]
    return start, tuple(line.rstrip().expandtabs(4)[:_LINE_CHARACTERS] for line in kept)


def merge(breaks: Iterable[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Return one entry per (cause, file, line, function), with the sum of occurrences.

    The line separates graph breaks with the same fingerprint: two statements of a function, or the
    `forward` of two classes in a file (torch names functions, not methods).
    """
    merged: dict[tuple[str, int], GraphBreak] = {}
    for graph_break in breaks:
        key = identity(graph_break)
        known = merged.get(key)
        count = graph_break.occurrences + (known.occurrences if known else 0)
        merged[key] = msgspec.structs.replace(known or graph_break, occurrences=count)
    return tuple(merged.values())


def identity(graph_break: GraphBreak) -> tuple[str, int]:
    """Return what two reports of the same graph break have in common."""
    return graph_break.fingerprint, graph_break.line


def fingerprint(cause: str, place: StackFrame) -> str:
    """Return 12 hex digits of SHA-256 over cause, file and function, but not the line."""
    text = "\0".join((cause, place.file, place.function))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def place_of(stack: Sequence[StackFrame]) -> StackFrame:
    """Return the innermost frame of the model or of torch, where someone can change something.

    Frames of Dynamo (its replacements for builtins) and of the standard library only count if there
    is no other: a `copy.deepcopy` breaks where it is called.
    """
    own = [frame for frame in stack if not _is_plumbing(frame.file)]
    return (own or [NOWHERE, *stack])[-1]


def _is_plumbing(file: str) -> bool:
    root = file.partition("/")[0].removesuffix(".py")
    return file.startswith((DYNAMO, "<frozen ")) or root in sys.stdlib_module_names


def reason_in(payload: str) -> str:
    """Return the reason in the payload of a `dynamo_graph_break_reason` artifact.

    Its formats are those of `log_graph_break` (torch/_dynamo/symbolic_convert.py), of
    `ConvertFrame` (torch/_dynamo/convert_frame.py) and of `unimplemented_with_warning`
    (torch/_dynamo/exc.py). A payload in another format is returned completely.
    """
    parsed = _REASON.search(payload)
    return (parsed["reason"] if parsed else payload).strip()


def user_stack(summary: Iterable[FrameSummary]) -> tuple[StackFrame, ...]:
    """Return a stack of torch, outermost first, as the model's author knows it.

    Omitted are the harness (everything up to its last frame), the two frames of each `nn.Module`
    call, and what an import runs, which is due to the statement that imports. A resume function
    gets the name of the function that it resumes and replaces its frame.
    (torch's `collapse_resume_frames` merges all adjacent frames of one name, also a `forward` that
    calls a `forward`, so the stack in the structured trace lacks frames.)
    """
    frames: list[StackFrame] = []
    importing = False
    for at in summary:
        frame = stack_frame(at.filename, at.lineno, at.name, at.line or "")
        resumed = _RESUME.match(frame.function)
        if resumed:
            frame = msgspec.structs.replace(frame, function=resumed["function"])
            if frames and (frames[-1].file, frames[-1].function) == (frame.file, frame.function):
                frames.pop()
        importing = importing or frame.file.startswith("<frozen importlib")
        if _HARNESS.match(frame.file):
            frames.clear()
            importing = False
        elif not importing and not (frame.function in _MODULE_CALLS and frame.file == _MODULE_FILE):
            frames.append(frame)
    return tuple(frames)


def stack_frame(file: str, line: int | None, function: str, text: str = "") -> StackFrame:
    """A frame with its file relative to its package."""
    relative = package_path(file)
    if not relative.startswith("<"):  # generated code, of which many pieces share a name
        PATHS[relative] = file
    return StackFrame(file=relative, line=line or 0, function=function, text=text)


def package_path(file: str) -> str:
    """Return `relative_file`; `<eval_with_key>` without its running number."""
    return _CODE_NUMBER.sub(r"\1", relative_file(file))


def portable_text(text: str) -> str:
    """Return the text as it is on each machine and in each run.

    Absolute paths of Python files become relative to their packages, and objects lose their
    addresses (`<function f at 0x7f…>`).
    """
    return _ADDRESS.sub("", _FILE_IN_TEXT.sub(lambda path: relative_file(path[0]), text))


def stored_reason(reason: str) -> str:
    """Return a portable reason without the tracebacks of torch's own frames; exceptions stay.

    Torch writes them if a frame fails outside its tracer: hundreds of frames of AOTAutograd and of
    the harness. The structured trace still contains them.
    """
    return portable_text(_TORCH_STACK.sub("", reason))
