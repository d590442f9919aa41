"""What checks met, in words and files: messages, SARIF, GitLab's report, Markdown, annotations."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilewatch.errors import StoreError
from compilewatch.extras.gate.judgement import CheckReport, JudgedBreak
from compilewatch.extras.gate.session import GateSession, place_line
from compilewatch.files import write_atomically
from compilewatch.records import StackFrame, reason_label, source_line, source_lines
from compilewatch.report import sarif
from compilewatch.report.sarif import SarifLocation, SarifResult, State
from compilewatch.report.wording import plural, registry_page

_MOST_FINDINGS = 50
"""GitHub's summary of a step has at most a MiB, and nobody reads more than this."""

_MOST_ANNOTATIONS = 10
"""GitHub shows ten errors of a step."""

_SARIF_STATES: dict[str, tuple[sarif.Level, State | None]] = {
    "new": ("error", "new"),
    "known": ("warning", "unchanged"),
    "moved": ("warning", "unchanged"),
    "elsewhere": ("note", None),  # a baseline says nothing of other packages
}


def failure(
    report: CheckReport, *, update: str, verbose: bool = False, fix: Iterable[str] = ()
) -> str:
    """Return the message of a failed check; with `verbose`, also Dynamo's own texts
    and tracebacks.

    `update` is the option with which its command accepts the new breaks, `fix` what is said of a
    fix of them.
    """
    new = report.of("new")
    lines = [f"{plural(len(new), 'new graph break')} in own code"] if new else []
    for graph_break in new:
        lines += ["", *break_lines(graph_break, verbose=verbose)]
    if report.problems:
        lines += ["", *report.problems] if lines else list(report.problems)
    if verbose and report.error:
        lines += ["", *report.error.splitlines()]
    if new:
        lines += [
            "",
            *fix,
            f"reproduce:  {report.command}",
            f"accept:     {report.command} {update}",
        ]
    return "\n".join(lines)


def break_lines(graph_break: JudgedBreak, *, verbose: bool = False) -> Iterator[str]:
    """The place, the reason, the lines around it, and the way to it in the own code."""
    yield place_line(graph_break)
    if graph_break.note:
        yield f"  ({graph_break.note})"
    yield from _excerpt(graph_break)
    if len(graph_break.user_stack) > 1:
        yield "  reached through:"
        yield from (f"    {_frame(frame)}" for frame in graph_break.user_stack)
    if verbose:
        yield from (f"  {line}" for line in graph_break.reason.strip().splitlines())


def _frame(frame: StackFrame) -> str:
    return f"{frame.file}:{frame.line} in {frame.function}"


def _excerpt(graph_break: JudgedBreak) -> Iterator[str]:
    """The lines around a break with their numbers, its own line marked."""
    lines = source_lines(graph_break)
    for number, text in lines:
        mark = ">" if number == graph_break.line else " "
        yield f"  {mark} {number:>{len(str(lines[-1][0]))}} | {text}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Paths of the files that are written after all checks, None for one that is not."""

    sarif: str | None = None
    summary: str | None = None
    code_quality: str | None = None

    def write(self, session: GateSession) -> Iterator[str]:
        """Write the files; yield a line for each one that could not be written."""
        writers: list[tuple[str | None, Callable[[Path, GateSession], None]]] = [
            (self.sarif, write_sarif),
            (self.summary, write_summary),
            (self.code_quality, write_code_quality),
        ]
        for name, write in writers:
            if name is None:
                continue
            try:
                write(Path(name), session)
            except (OSError, StoreError) as error:
                yield f"{name} cannot be written: {getattr(error, 'strerror', '') or error}"
        try:
            _add_to_step_summary(session)
        except OSError as error:
            yield f"GITHUB_STEP_SUMMARY cannot be written: {error.strerror or error}"


def write_sarif(path: Path, session: GateSession) -> None:
    """Write all breaks: new ones as errors, known ones as warnings, other packages' as notes.

    Resolved breaks are results without a fault. They are left out under GitHub Actions, since
    GitHub would show them as open.
    """
    results = list(_results(session))
    if not os.environ.get("GITHUB_ACTIONS"):
        results += _resolved(session)
    problems = [
        f"{check.name}: {problem}" for check in session.checks for problem in check.problems
    ]
    sarif.write(path, results, problems)


def write_code_quality(path: Path, session: GateSession) -> None:
    """Write the new breaks of own code as GitLab's code quality report. Raises OSError."""
    entries: list[dict[str, Any]] = [
        {
            "description": f"graph break: {reason_label(graph_break)} in {graph_break.function}",
            "check_name": graph_break.code,
            "fingerprint": _digest(graph_break.entry.identity),
            "severity": "major",
            "location": {
                "path": session.in_clone(graph_break.file),
                "lines": {"begin": graph_break.line},
            },
        }
        for graph_break in session.of_state("new")
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(entries, indent=2, ensure_ascii=False).encode() + b"\n")


def _digest(identity: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()


def _results(session: GateSession) -> Iterator[SarifResult]:
    for graph_break, checks in session.breaks:
        level, state = _SARIF_STATES[graph_break.state]
        text = source_line(graph_break).strip()
        yield SarifResult(
            code=graph_break.code,
            reason=reason_label(graph_break),
            level=level,
            state=state,
            fingerprint=graph_break.fingerprint,
            location=_location(session, graph_break, text, installed=not graph_break.own),
            explanation=graph_break.explanation,
            hints=graph_break.hints,
            path=tuple(_location(session, frame) for frame in graph_break.user_stack)
            if graph_break.own
            else (),
            checks=checks,
        )


def _resolved(session: GateSession) -> Iterator[SarifResult]:
    for known in session.resolved:
        yield SarifResult(
            code=known.code,
            reason=known.reason or known.code,
            level="none",
            state="absent",
            fingerprint=_digest(known.identity)[:12],
            location=SarifLocation(file=session.in_clone(known.file), function=known.function),
            checks=(known.check,) if known.check else (),
        )


def _location(
    session: GateSession,
    place: JudgedBreak | StackFrame,
    text: str = "",
    *,
    installed: bool = False,
) -> SarifLocation:
    return SarifLocation(
        file=place.file if installed else session.in_clone(place.file),
        line=place.line,
        function=place.function,
        text=text,
        installed=installed,
    )


def markdown(session: GateSession) -> str:
    """Return the summary: the table, new breaks with their code, what else fails."""
    counts = session.counts()
    lines = [
        "### compilewatch",
        "",
        f"| {' | '.join(counts)} |",
        f"|{'---:|' * len(counts)}",
        f"| {' | '.join(map(str, counts.values()))} |",
    ]
    new = session.of_state("new")
    for graph_break in new[:_MOST_FINDINGS]:
        page = registry_page(graph_break.code)
        lines += [
            "",
            f"**New:** {f'[{graph_break.code}]({page})' if page else graph_break.code}",
            "",
        ]
        lines += _block(break_lines(graph_break))
    if len(new) > _MOST_FINDINGS:
        lines += ["", f"… and {len(new) - _MOST_FINDINGS} more new graph breaks"]
    failed = [check for check in session.checks if check.problems]
    for check in failed[:_MOST_FINDINGS]:
        lines += ["", f"**{_escaped(check.name)}**", "", *_block(check.problems)]
    further = list(session.lines())[1:]
    if further:
        lines += ["", *_block(further)]
    return "\n".join(lines) + "\n"


def write_summary(path: Path, session: GateSession) -> None:
    """Write the summary to a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(session), encoding="utf-8")


def _add_to_step_summary(session: GateSession) -> None:
    """Append the summary to that of the job under GitHub Actions. Raises OSError."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(markdown(session))


def error_commands(session: GateSession, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Under GitHub Actions, the lines of a log that mark new breaks in the changed files."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for graph_break in session.of_state("new")[:_MOST_ANNOTATIONS]:
        file = _property(session.in_clone(graph_break.file))
        line = source_line(graph_break).strip()
        text = _data(f"{reason_label(graph_break)} in {graph_break.function}\n{line}".strip())
        yield f"::error file={file},line={graph_break.line},title=New graph break::{text}"


def _block(lines: Iterable[str]) -> Iterator[str]:
    """A fenced block that none of its lines can end."""
    content = list(lines)
    fence = "```"
    while any(fence in line for line in content):
        fence += "`"
    yield f"{fence}text"
    yield from content
    yield fence


def _escaped(text: str) -> str:
    """Text in which Markdown and HTML mean nothing."""
    for character in "\\`*_[]|#":
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;")


def _data(text: str) -> str:
    """The message of one of GitHub's commands (docs.github.com, "Workflow commands")."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
