"""What a failed check says to a reviewer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from compilewatch.extras.gate.baseline import Identity, KnownBreak
from compilewatch.extras.gate.judgement import Judgement, OwnBreak
from compilewatch.records.labels import source_lines


def failure(
    judgement: Judgement,
    baseline: Mapping[Identity, KnownBreak],
    test: str,
    *,
    verbose: bool = False,
) -> str:
    """Return the message of a failed check; with `verbose`, also Dynamo's own texts."""
    lines: list[str] = []
    if judgement.new:
        count = len(judgement.new)
        lines.append(f"{count} new graph break{'s' if count > 1 else ''} in own code")
    met = {known.identity for known in judgement.own}
    for each in judgement.new:
        lines += ["", *_break(each, baseline, met, verbose=verbose)]
    if judgement.problems:
        lines += ["", *judgement.problems] if lines else list(judgement.problems)
    if judgement.new:
        command = f"pytest {shlex.quote(test)}"
        lines += ["", f"reproduce:  {command}", f"accept:     {command} --compilewatch-update"]
    return "\n".join(lines)


def _break(
    each: OwnBreak,
    baseline: Mapping[Identity, KnownBreak],
    met: set[Identity],
    *,
    verbose: bool,
) -> Iterator[str]:
    found, known = each.found, each.known
    yield f"{each.path} in {known.function}: {known.reason}{_moved(known, baseline, met)}"
    lines = source_lines(found)
    width = len(str(lines[-1][0])) if lines else 0
    for number, text in lines:
        yield f"  {'>' if number == found.line else ' '} {number:>{width}} | {text}".rstrip()
    if len(each.calls) > 1:
        yield "  reached through:"
        yield from (f"    {call}" for call in each.calls)
    if verbose:
        yield from (f"  {line}" for line in found.reason.strip().splitlines())


def _moved(known: KnownBreak, baseline: Mapping[Identity, KnownBreak], met: set[Identity]) -> str:
    """Say where a break may have come from: a known one of the same reason that was not met."""
    name = known.function.rpartition(".")[2]
    for old in sorted(baseline.values()):
        alike = old.file == known.file or old.function.rpartition(".")[2] == name
        if old.code == known.code and old.identity not in met and alike:
            return f" (moved from {old.function} in {old.file}?)"
    return ""
