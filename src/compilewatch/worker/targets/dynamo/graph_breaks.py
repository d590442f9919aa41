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
"""

from __future__ import annotations

import hashlib
import linecache
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from traceback import FrameSummary

import msgspec

from compilewatch.contract.failures import relative_file
from compilewatch.records import GraphBreak, StackFrame
from compilewatch.worker.targets.dynamo.reasons import UNATTRIBUTED, BreakCause, classify

CompileId = str
"""`frame_id/frame_compile_id`, as torch writes it; `?/n` for a failed frame without one."""

UNKNOWN = "?"

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
_DYNAMO = "torch/_dynamo/"
_HARNESS = re.compile(r"compilewatch/(?:extras/\w+/)?worker/")
_LINES_AROUND = 2
_LINE_CHARACTERS = 200
PATHS: dict[str, str] = {}
"""Where the files of the frames met lie: a file outside `sys.path` cannot be found by its name."""


@dataclass(frozen=True, kw_only=True)
class BreakReport:
    """One report of a graph break: complete reason, user stack (outermost first), exceptions."""

    compile_id: CompileId
    reason: str
    stack: tuple[StackFrame, ...] = ()
    exceptions: tuple[str, ...] = ()


@dataclass
class BreakLog:
    """Reports by compile id, in order, and the counts with which they are checked."""

    reports: dict[CompileId, list[BreakReport]] = field(default_factory=dict)
    frames_given_up: int = 0
    """`counters["frames"]`: total minus ok, without `frames_excluded`."""
    frames_excluded: int = 0
    """Frames whose compilation the backend `stop` ended, and those that write the trace."""
    give_ups_reported: int = 0
    cuts_counted: int = 0
    """Sum of `counters["graph_break"]`, without `cuts_excluded`."""
    cuts_excluded: int = 0
    """Cuts of frames that write the trace."""
    broken_graphs: set[CompileId] = field(default_factory=set)
    """Compile ids whose captured graph ended in a graph break, according to the graph."""

    def add(self, report: BreakReport) -> None:
        self.reports.setdefault(report.compile_id, []).append(report)

    def missing(self) -> int:
        """Return how many graph breaks the counts contain beyond the reports."""
        unreported_graphs = len(self.broken_graphs - self.reports.keys())
        unreported_frames = max(0, self.frames_given_up - self.give_ups_reported)
        reported = sum(len(reports) for reports in self.reports.values())
        unreported_cuts = max(0, self.cuts_counted - reported)
        return max(unreported_graphs + unreported_frames, unreported_cuts)

    def breaks(self, model: StackFrame | None = None) -> tuple[GraphBreak, ...]:
        """Return one entry per cause and place, in order; the occurrences sum to the total.

        `model` is the place of the model's own frame, for graph breaks that have no other.
        """
        merged = merge(as_break(self._about(compile_id), model) for compile_id in self.reports)
        missing = self.missing()
        return (*merged, unattributed(missing)) if missing else merged

    def ends(
        self, graphs: Iterable[CompileId], breaks: Sequence[GraphBreak], model: StackFrame | None
    ) -> tuple[int, ...]:
        """For each graph, the index of the break (one of `self.breaks`) that it ended in, or -1."""
        places = {_identity(graph_break): index for index, graph_break in enumerate(breaks)}
        met = {
            compile_id: places.get(_identity(as_break(self._about(compile_id), model)), -1)
            for compile_id in self.reports
        }
        return tuple(met.get(compile_id, -1) for compile_id in graphs)

    def _about(self, compile_id: CompileId) -> list[BreakReport]:
        """Return the reports about the graph break of a compile, with its cause first.

        A report without a stack is about handling another one: the frame was given up after all.
        """
        reports = self.reports[compile_id]
        is_cut = compile_id in self.broken_graphs and reports[-1].stack
        return reports[-1:] if is_cut else reports


def as_break(reports: Sequence[BreakReport], model: StackFrame | None = None) -> GraphBreak:
    """Combine the reports under one compile id to one graph break.

    If the stack only has Dynamo's own frame, which is around the model (for example if its
    `forward` is disabled), the place is the model's.
    """
    first, *consequences = reports
    reason = "\n\nThen, in the same frame: ".join(
        [first.reason, *(report.reason for report in consequences)]
    )
    place = place_of(first.stack)
    if model is not None and place.file.startswith(_DYNAMO):
        place = model
    cause = classify(first.reason, first.exceptions)
    return graph_break(cause, reason, place, first.stack)


def graph_break(
    cause: BreakCause, reason: str, place: StackFrame, stack: tuple[StackFrame, ...] = ()
) -> GraphBreak:
    source_start, source = _source(place)
    name = cause.gb_id or cause.gb_type or cause.code
    return GraphBreak(
        code=cause.code,
        reason=portable_text(without_torch_stack(reason)),
        fingerprint=fingerprint("import" if _IMPORT.match(place.text) else name, place),
        file=place.file,
        line=place.line,
        function=place.function,
        gb_id=cause.gb_id,
        gb_type=cause.gb_type,
        explanation=portable_text(cause.explanation),
        hints=cause.hints,
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


def unattributed(count: int) -> GraphBreak:
    """Return the graph breaks that torch counted without a reason."""
    place = StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)
    reason = "PyTorch's counters show this graph break, but PyTorch reported no reason."
    one = graph_break(BreakCause(code=UNATTRIBUTED), reason, place)
    return _times(one, count)


def merge(breaks: Iterable[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Return one entry per (cause, file, line, function), with the sum of occurrences.

    The line separates graph breaks with the same fingerprint: two statements of a function, or the
    `forward` of two classes in a file (torch names functions, not methods).
    """
    merged: dict[tuple[str, int], GraphBreak] = {}
    for graph_break in breaks:
        key = _identity(graph_break)
        known = merged.get(key)
        count = graph_break.occurrences + (known.occurrences if known else 0)
        merged[key] = _times(known or graph_break, count)
    return tuple(merged.values())


def _identity(graph_break: GraphBreak) -> tuple[str, int]:
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
    chosen = own or list(stack)
    return chosen[-1] if chosen else StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)


def _is_plumbing(file: str) -> bool:
    root = file.partition("/")[0].removesuffix(".py")
    return file.startswith((_DYNAMO, "<frozen ")) or root in sys.stdlib_module_names


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


def without_torch_stack(reason: str) -> str:
    """Return the reason without the tracebacks of torch's own frames, but with their exceptions.

    Torch writes them if a frame fails outside its tracer: hundreds of frames of AOTAutograd and of
    the harness. The structured trace still contains them.
    """
    return _TORCH_STACK.sub("", reason)


def _times(graph_break: GraphBreak, occurrences: int) -> GraphBreak:
    return msgspec.structs.replace(graph_break, occurrences=occurrences)
