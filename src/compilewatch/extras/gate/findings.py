"""What checks found, as data: reports of processes, and what files for machines are made of."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from compilewatch.extras.gate.baseline import Identity, KnownBreak
from compilewatch.records.base import Record


class BreakPlace(Record, frozen=True, kw_only=True):
    """A line of code. `file` is relative to the repository, or to the folder of packages."""

    file: str
    line: int
    function: str


class Finding(Record, frozen=True, kw_only=True):
    """One graph break that a check met.

    `own` says whether it is in the repository's code; then `place.function` is qualified
    (`Model.forward`), and `path` has the frames of own code that lead there, outermost first.
    `reason` is one line, `text` is Dynamo's own. `moved` names the known break that it may have
    been. `source` has the lines around the break, starting with line `source_start`.
    """

    own: bool
    new: bool
    place: BreakPlace
    code: str
    reason: str
    fingerprint: str
    text: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    gb_id: str | None = None
    moved: str = ""
    path: tuple[BreakPlace, ...] = ()
    source_start: int = 0
    source: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """What a baseline knows it by."""
        return (self.place.file, self.place.function, self.code)

    @property
    def source_line(self) -> str:
        """The text of the line itself; empty where it could not be read."""
        index = self.place.line - self.source_start
        return self.source[index].strip() if 0 <= index < len(self.source) else ""


class CheckReport(Record, frozen=True, kw_only=True):
    """One check: `name` is the test or the model, `status` that of the result.

    `problems` are reasons to fail other than new breaks, a line each, `error` is a traceback, and
    `command` is what a person types to see it again.
    """

    name: str
    status: str
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    recompilations: int = 0
    error: str = ""
    verdict: bool = True
    command: str = ""

    @property
    def new(self) -> tuple[Finding, ...]:
        """The breaks in own code that fail the check."""
        return tuple(each for each in self.findings if each.new)

    @property
    def own(self) -> tuple[Finding, ...]:
        """All breaks in own code."""
        return tuple(each for each in self.findings if each.own)

    @property
    def third_party(self) -> tuple[Finding, ...]:
        """The breaks in other packages."""
        return tuple(each for each in self.findings if not each.own)

    @property
    def failed(self) -> bool:
        """Whether the rules do not accept what was found."""
        return bool(self.new or self.problems)


def known_breaks(findings: Iterable[Finding]) -> tuple[KnownBreak, ...]:
    """Return the own breaks of one check as a baseline has them, in order."""
    places: dict[Identity, set[int]] = {}
    reasons: dict[Identity, str] = {}
    for each in findings:
        if each.own:
            places.setdefault(each.identity, set()).add(each.place.line)
            reasons.setdefault(each.identity, each.reason)
    return tuple(
        KnownBreak(
            file=identity[0],
            function=identity[1],
            code=identity[2],
            reason=reasons[identity],
            places=len(lines),
        )
        for identity, lines in sorted(places.items())
    )


def encoded(reports: Iterable[CheckReport]) -> str:
    """Return reports as JSON, in which processes send them."""
    return msgspec.json.encode(tuple(reports)).decode()


def decoded(text: str) -> tuple[CheckReport, ...]:
    """Return what `encoded` made a text of."""
    return msgspec.json.decode(text, type=tuple[CheckReport, ...])
