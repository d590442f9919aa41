"""What a session found for the pages and logs of CI systems: Markdown, and GitHub's annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from compilewatch.extras.gate.findings import Finding
from compilewatch.extras.gate.messages import source_excerpt
from compilewatch.extras.gate.session import GateSession, words
from compilewatch.report.wording import registry_page

_MOST_FINDINGS = 50
"""GitHub's summary of a step has at most a MiB, and nobody reads more than this."""

_MOST_ANNOTATIONS = 10
"""GitHub shows ten errors of a step."""


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
    new = _new(session)
    for each in list(new.values())[:_MOST_FINDINGS]:
        lines += ["", *_finding(each)]
    if len(new) > _MOST_FINDINGS:
        lines += ["", f"… and {len(new) - _MOST_FINDINGS} more new graph breaks"]
    failed = [check for check in session.checks if check.problems]
    for check in failed[:_MOST_FINDINGS]:
        lines += ["", f"**{_escaped(check.name)}**", "", *_block(check.problems)]
    if session.resolved and not session.changes:
        lines += ["", "Resolved:", ""]
        lines += [f"- {_escaped(words(known))}" for known in session.resolved[:_MOST_FINDINGS]]
        lines += ["", f"Renew `{session.name}` with `{session.update}`."]
    if session.changes:
        lines += ["", *_block(session.changes)]
    return "\n".join(lines) + "\n"


def write_summary(path: Path, session: GateSession) -> None:
    """Write the summary to a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(session), encoding="utf-8")


def step_summary(session: GateSession, environ: Mapping[str, str] = os.environ) -> None:
    """Append the summary to that of the job under GitHub Actions. Raises OSError."""
    if path := environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(markdown(session))


def error_commands(session: GateSession, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Under GitHub Actions, the lines of a log that mark new breaks in the changed files."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for each in list(_new(session).values())[:_MOST_ANNOTATIONS]:
        place = each.place
        file = _property(session.in_repository(place.file))
        text = _data(f"{each.reason} in {place.function}\n{each.source_line}".strip())
        yield f"::error file={file},line={place.line},title=New graph break::{text}"


def _new(session: GateSession) -> dict[tuple[object, ...], Finding]:
    return {
        (*each.identity, each.place.line): each for check in session.checks for each in check.new
    }


def _finding(finding: Finding) -> Iterator[str]:
    place, page = finding.place, registry_page(finding.code)
    reason = _escaped(finding.reason)
    moved = f" (moved from {_escaped(finding.moved)}?)" if finding.moved else ""
    yield (
        f"**New:** `{place.file}:{place.line}` in `{place.function}`: "
        f"{f'[{reason}]({page})' if page else reason}{moved}"
    )
    yield ""
    reached = [
        f"reached through {each.file}:{each.line} in {each.function}" for each in finding.path
    ]
    yield from _block([*source_excerpt(finding), *(reached if len(reached) > 1 else ())], "python")


def _block(lines: Iterable[str], language: str = "text") -> Iterator[str]:
    """A fenced block that none of its lines can end."""
    found = list(lines)
    fence = "```"
    while any(fence in line for line in found):
        fence += "`"
    yield f"{fence}{language}"
    yield from found
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
