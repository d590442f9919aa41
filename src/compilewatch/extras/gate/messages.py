"""What a failed check says to a reviewer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compilewatch.extras.gate.findings import CheckReport, Finding
from compilewatch.report.wording import plural


def failure(
    report: CheckReport, *, update: str, verbose: bool = False, fix: Iterable[str] = ()
) -> str:
    """Return the message of a failed check; with `verbose`, also Dynamo's own texts
    and tracebacks.

    `update` is the option with which its command accepts the new breaks, `fix` what is said of a
    fix of them.
    """
    lines: list[str] = []
    if report.new:
        lines.append(f"{plural(len(report.new), 'new graph break')} in own code")
    for each in report.new:
        lines += ["", *finding_lines(each, verbose=verbose)]
    if report.problems:
        lines += ["", *report.problems] if lines else list(report.problems)
    if verbose and report.error:
        lines += ["", *report.error.splitlines()]
    if report.new:
        lines += [
            "",
            *fix,
            f"reproduce:  {report.command}",
            f"accept:     {report.command} {update}",
        ]
    return "\n".join(lines)


def finding_lines(finding: Finding, *, verbose: bool = False) -> Iterator[str]:
    """The place, the reason, the lines around it, and the way to it in the own code."""
    place = finding.place
    moved = f" (moved from {finding.moved}?)" if finding.moved else ""
    yield f"{place.file}:{place.line} in {place.function}: {finding.reason}{moved}"
    yield from source_excerpt(finding)
    if len(finding.path) > 1:
        yield "  reached through:"
        yield from (f"    {each.file}:{each.line} in {each.function}" for each in finding.path)
    if verbose:
        yield from (f"  {line}" for line in finding.text.splitlines())


def source_excerpt(finding: Finding) -> Iterator[str]:
    """The lines around a break with their numbers, its own line marked."""
    last = finding.source_start + len(finding.source) - 1
    for number, text in enumerate(finding.source, start=finding.source_start):
        mark = ">" if number == finding.place.line else " "
        yield f"  {mark} {number:>{len(str(last))}} | {text}".rstrip()
