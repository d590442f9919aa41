"""Break accounting: from what Dynamo says while it compiles to `GraphBreak`s that add up.

What is counted: the breaks that Dynamo met while the example inputs ran once. Dynamo works frame by
frame (the model's forward, the functions that resume it after a break, callees of what it gave up
on), and each compile of a frame ends in exactly one of three ways: whole, cut (a graph up to here,
a resume function from here) or given up (the frame runs in eager mode). A cut or a give-up is one
break. Hence the unit is the compile of a frame, named by torch's compile id
(`frame_id/frame_compile_id`):

- Restarts are no breaks. Dynamo traces a frame again after it met a break (`SpeculationLog`),
  under the same compile id, and reports the break in the first attempt only. Several reports under
  one compile id are one break, whose cause is the first report; later ones are its consequences
  (the cut could not be made there, say) and are appended to its reason.
- A break inside an inlined call is met once by the caller (which cuts before the call) and again
  when the callee is compiled as a frame of its own: two breaks, one place. They share an entry,
  with two occurrences.
- A frame that runs again from Dynamo's cache does not break again; one that is recompiled does.
- A frame without tensors or operations that Dynamo leaves alone is no break, by torch's own words
  (`exc.SkipFrame`).

Which source proves what:

- the structured trace (artifact `dynamo_graph_break_reason`) carries every break that the bytecode
  tracer handles, with whole reason and user stack: cuts and most give-ups;
- the logger of `torch._dynamo.convert_frame` reports each frame given up, with its exception:
  the only source of those that fail outside the tracer (a generator's own frame, the recompile
  limit);
- `counters["frames"]` (total less ok) counts frames given up, `counters["graph_break"]` the cuts at
  an instruction that can be resumed at, and a captured graph's own `compile_subgraph_reason` says
  whether it ended in a cut. They carry no place, so they serve as a check: what they count and the
  two above did not report is a break with the code `unattributed`.

`torch._dynamo.explain` reports graphs less one, which is something else: -1 where the only frame
was given up, and one for each graph that a recompile or an eager caller made.
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
from compilewatch.worker.targets.dynamo.reasons import UNATTRIBUTED, Cause, classify

CompileId = str
"""`frame_id/frame_compile_id`, as torch writes it; `?/n` for a frame that failed without one."""

UNKNOWN = "?"

_REASON = re.compile(
    r"^Graph Break Reason: (?P<reason>.*?)"
    r"(?:\n\nStack variable source attribution:\n.*?)?"
    r"\n\n?User code traceback:\n",  # torch 2.9 leaves no empty line before it
    re.M | re.S,
)
_RESUME = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
_FILE_IN_TEXT = re.compile(r"(?<![\w.])/[^\s\"':,()]+\.py\b")
_TORCH_STACK = re.compile(
    r"(?:=+ TorchDynamo Stack Trace =+\n)?^Traceback \(most recent call last\):\n(?:  .*\n)+", re.M
)
_CODE_NUMBER = re.compile(r"^(<[^>]*>)\.\d+$")
_MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")
_MODULE_FILE = "torch/nn/modules/module.py"
_DYNAMO = "torch/_dynamo/"
_HARNESS = "compilewatch/worker/"
_LINES_AROUND = 2
_LINE_CHARACTERS = 200
_PATHS: dict[str, str] = {}
"""Where the files of the frames met lie: a file outside `sys.path` cannot be found by its name."""


@dataclass(frozen=True, kw_only=True)
class BreakReport:
    """One report of a break: the whole reason, the user's stack (outermost first), exceptions."""

    compile_id: CompileId
    reason: str
    stack: tuple[StackFrame, ...] = ()
    exceptions: tuple[str, ...] = ()


@dataclass
class BreakLog:
    """Reports by compile id, in the order met, and the counts that they are checked against."""

    reports: dict[CompileId, list[BreakReport]] = field(default_factory=dict)
    frames_given_up: int = 0
    """`counters["frames"]`: total less ok."""
    give_ups_reported: int = 0
    cuts_counted: int = 0
    """Sum of `counters["graph_break"]`."""
    broken_graphs: set[CompileId] = field(default_factory=set)
    """Compile ids whose captured graph says that it ended in a break."""

    def add(self, report: BreakReport) -> None:
        self.reports.setdefault(report.compile_id, []).append(report)

    def missing(self) -> int:
        """How many breaks the counts prove beyond the reports."""
        unreported_graphs = len(self.broken_graphs - self.reports.keys())
        unreported_frames = max(0, self.frames_given_up - self.give_ups_reported)
        unreported_cuts = max(0, self.cuts_counted - len(self.reports))
        return max(unreported_graphs + unreported_frames, unreported_cuts)

    def breaks(self, model: StackFrame | None = None) -> tuple[GraphBreak, ...]:
        """One entry a cause and place, in the order met; the occurrences sum to the total.

        `model` is the place of the model's own frame, for breaks that have no other.
        """
        found = merge(as_break(reports, model) for reports in self.reports.values())
        missing = self.missing()
        return (*found, unattributed(missing)) if missing else found

    def ends(
        self, graphs: Iterable[CompileId], breaks: Sequence[GraphBreak], model: StackFrame | None
    ) -> tuple[int, ...]:
        """For each graph, the index of the break (one of `self.breaks`) that it ended in, or -1."""
        places = {_identity(found): index for index, found in enumerate(breaks)}
        met = {
            compile_id: places.get(_identity(as_break(reports, model)), -1)
            for compile_id, reports in self.reports.items()
        }
        return tuple(met.get(compile_id, -1) for compile_id in graphs)


def as_break(reports: Sequence[BreakReport], model: StackFrame | None = None) -> GraphBreak:
    """The one break that the reports under one compile id speak of.

    Where Dynamo's own frame is all there is, it stands around the model (whose `forward` is
    disabled, say), and the place is the model's.
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
    cause: Cause, reason: str, place: StackFrame, stack: tuple[StackFrame, ...] = ()
) -> GraphBreak:
    source_start, source = _source(place)
    return GraphBreak(
        code=cause.code,
        reason=shorten_paths(without_torch_stack(reason)),
        fingerprint=fingerprint(cause.gb_id or cause.gb_type or cause.code, place),
        file=place.file,
        line=place.line,
        function=place.function,
        gb_id=cause.gb_id,
        gb_type=cause.gb_type,
        explanation=shorten_paths(cause.explanation),
        hints=cause.hints,
        user_stack=stack,
        source_start=source_start,
        source=source,
    )


def _source(place: StackFrame) -> tuple[int, tuple[str, ...]]:
    """The lines around a place and the number of the first; nothing where they cannot be read."""
    lines = linecache.getlines(_PATHS.get(place.file, ""))
    if not 1 <= place.line <= len(lines):
        return 0, ()
    start = max(1, place.line - _LINES_AROUND)
    kept = lines[start - 1 : place.line + _LINES_AROUND]
    return start, tuple(line.rstrip().expandtabs(4)[:_LINE_CHARACTERS] for line in kept)


def unattributed(count: int) -> GraphBreak:
    """Breaks that torch counted and gave no reason for."""
    place = StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)
    reason = "Torch's counters prove this break, but it reported no reason."
    found = graph_break(Cause(code=UNATTRIBUTED), reason, place)
    return _times(found, count)


def merge(breaks: Iterable[GraphBreak]) -> tuple[GraphBreak, ...]:
    """One entry for each (cause, file, line, function), with the sum of occurrences.

    The line keeps apart what one fingerprint holds: two statements of a function, or the `forward`
    of two classes in a file (torch names functions, not methods).
    """
    merged: dict[tuple[str, int], GraphBreak] = {}
    for found in breaks:
        key = _identity(found)
        known = merged.get(key)
        count = found.occurrences + (known.occurrences if known else 0)
        merged[key] = _times(known or found, count)
    return tuple(merged.values())


def _identity(found: GraphBreak) -> tuple[str, int]:
    return found.fingerprint, found.line


def fingerprint(cause: str, place: StackFrame) -> str:
    """12 hex digits that survive line drift: SHA-256 over cause, file and function."""
    text = "\0".join((cause, place.file, place.function))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def place_of(stack: Sequence[StackFrame]) -> StackFrame:
    """The innermost frame that is a model's or torch's: where somebody can act.

    Frames of Dynamo's own (its stand-ins for builtins) and of the standard library count only where
    there is nothing else: a `copy.deepcopy` breaks where it is called.
    """
    own = [frame for frame in stack if not _is_plumbing(frame.file)]
    chosen = own or list(stack)
    return chosen[-1] if chosen else StackFrame(file=UNKNOWN, line=0, function=UNKNOWN)


def _is_plumbing(file: str) -> bool:
    root = file.partition("/")[0].removesuffix(".py")
    return file.startswith((_DYNAMO, "<frozen ")) or root in sys.stdlib_module_names


def reason_in(payload: str) -> str:
    """The reason in the payload of a `dynamo_graph_break_reason` artifact.

    Its forms are those of `log_graph_break` (torch/_dynamo/symbolic_convert.py), of `ConvertFrame`
    (torch/_dynamo/convert_frame.py) and of `unimplemented_with_warning` (torch/_dynamo/exc.py).
    One that has another form is kept whole.
    """
    found = _REASON.search(payload)
    return (found["reason"] if found else payload).strip()


def user_stack(summary: Iterable[FrameSummary]) -> tuple[StackFrame, ...]:
    """A stack of torch's, outermost first, as the model's author knows it.

    Left out are the harness (all up to its last frame) and the two frames of each `nn.Module` call.
    A resume function goes by the name of the function it resumes and takes its frame's place.
    (`collapse_resume_frames` of torch merges all neighbours of one name, a `forward` that calls a
    `forward` too, so the stack printed in the structured trace lacks frames.)
    """
    frames: list[StackFrame] = []
    for at in summary:
        frame = stack_frame(at.filename, at.lineno, at.name, at.line or "")
        resumed = _RESUME.match(frame.function)
        if resumed:
            frame = msgspec.structs.replace(frame, function=resumed["function"])
            if frames and (frames[-1].file, frames[-1].function) == (frame.file, frame.function):
                frames.pop()
        if frame.file.startswith(_HARNESS):
            frames.clear()
        elif not (frame.function in _MODULE_CALLS and frame.file == _MODULE_FILE):
            frames.append(frame)
    return tuple(frames)


def stack_frame(file: str, line: int | None, function: str, text: str = "") -> StackFrame:
    """A frame with its file relative to its package."""
    relative = package_path(file)
    if not relative.startswith("<"):  # generated code, of which many pieces share a name
        _PATHS[relative] = file
    return StackFrame(file=relative, line=line or 0, function=function, text=text)


def package_path(file: str) -> str:
    """`relative_file`, and `<eval_with_key>` without its running number."""
    return _CODE_NUMBER.sub(r"\1", relative_file(file))


def shorten_paths(text: str) -> str:
    """The text with each absolute path of a Python file made relative to its package."""
    return _FILE_IN_TEXT.sub(lambda found: relative_file(found[0]), text)


def without_torch_stack(reason: str) -> str:
    """The reason without the tracebacks of torch's own frames, each down to its exception.

    Torch writes them where a frame fails outside its tracer: hundreds of frames of AOTAutograd, and
    the harness among them. The structured trace has them still.
    """
    return _TORCH_STACK.sub("", reason)


def _times(found: GraphBreak, occurrences: int) -> GraphBreak:
    return msgspec.structs.replace(found, occurrences=occurrences)
