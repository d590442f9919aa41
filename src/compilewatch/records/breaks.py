"""Graph breaks and errors: where and why they occurred."""

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

    `reason` is the complete text of torch, except for tracebacks through torch's own frames, which
    are in the structured trace. `code` is one of a limited set and never free text: the id in
    torch's registry (`GB0170`) or a short code of compilewatch (`unbacked_symint`). `gb_type` is
    torch's name of the type, or None if torch has none. `fingerprint` is 12 hexadecimal digits of a
    hash of (code or type, file, function), which does not depend on the line number. `occurrences`
    counts how often this break was hit while the example inputs ran. `source` has the lines of code
    around `line`, starting with line `source_start`, as they were when the code ran; it is empty if
    they could not be read.
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
    """Whether `torch.compile(fullgraph=True, backend="eager")` accepts the model, and if not, why.

    `derived` is True if this follows from a capture as a single graph without breaks and without
    skipped frames, so that the second compilation was not run.
    """

    accepted: bool
    derived: bool = False
    code: str | None = None
    reason: str | None = None


class ErrorRecord(Record, frozen=True, kw_only=True):
    """A failure. `head` and `tail` have at least 8 KiB each of the traceback.

    `file` is None if compilewatch itself raised the error, with a type of `compilewatch.errors`.
    Then `message` is all that users need, and the traceback is for the developers of compilewatch.
    """

    type: str
    message: str
    code: str
    head: str = ""
    tail: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None
