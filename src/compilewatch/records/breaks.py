"""Where and why a graph broke, and what failed."""

from __future__ import annotations

from compilewatch.records.base import Record


class StackFrame(Record, frozen=True, kw_only=True):
    """One frame of a user stack. `file` is relative to its package (`transformers/models/…`)."""

    file: str
    line: int
    function: str
    text: str = ""


class GraphBreak(Record, frozen=True, kw_only=True):
    """One distinct graph break: a cause at a place.

    `reason` is torch's, whole, but for tracebacks through torch's own frames: those stand in the
    structured trace.
    `code` is bounded and never free text: the registry id (`GB0170`) or a short code of ours
    (`unbacked_symint`). `gb_type` is torch's type name, or None where torch has none.
    `fingerprint` is 12 hex digits over (code or type, file, function): it survives line drift.
    `occurrences` counts how often this break was hit while the example inputs ran. `source` holds
    the lines of code around `line`, from line `source_start` on, as they were when it ran; empty
    where they could not be read and in runs of earlier versions.
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
    source_start: int = 0
    source: tuple[str, ...] = ()


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
    """A failure. `head` and `tail` hold at least 8 KiB each of the traceback.

    `file` is None where compilewatch itself raised it, of a type in `compilewatch.errors`: then
    `message` is all that concerns a reader, and the traceback is kept for us.
    """

    type: str
    message: str
    code: str
    head: str = ""
    tail: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None
