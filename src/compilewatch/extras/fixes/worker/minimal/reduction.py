"""Chooses a candidate that has the graph break, and makes it as small as possible."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pysource_minimize

from compilewatch.extras.fixes.worker.minimal.candidates import Candidate
from compilewatch.extras.fixes.worker.minimal.checking import CheckServer
from compilewatch.extras.fixes.worker.minimal.reasons import Likeness, likeness

_UNREADABLE = re.compile(r"\bunique_name_\d+\b")
"""What the reducer would call each name, to show that names do not matter."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A candidate whose graph break is like the wanted one, and how much."""

    candidate: Candidate
    likeness: Likeness


def choose(
    candidates: Iterable[Candidate], reason: str, server: CheckServer, deadline: float
) -> Chosen | None:
    """The first candidate with exactly the graph break, otherwise the one that is most like it.

    None if no candidate has the code of the graph break.
    """
    best: Chosen | None = None
    for each in candidates:
        if time.monotonic() > deadline:
            break
        found = like(server, each.source, reason)
        if best is None or found > best.likeness:
            best = Chosen(candidate=each, likeness=found)
        if found is Likeness.EXACT:
            break
    return best if best is not None and best.likeness is not Likeness.NONE else None


def like(server: CheckServer, source: str, reason: str) -> Likeness:
    """How much a graph break of a file is like the wanted one, at most."""
    found = server.check(source)
    return max((likeness(reason, each) for each in found.reasons), default=Likeness.NONE)


def reduced(chosen: Chosen, reason: str, server: CheckServer, deadline: float) -> str:
    """The smallest file found until `deadline` whose graph break is as much like the wanted one."""
    known: dict[str, bool] = {}

    def shows_it(source: str) -> bool:
        if _UNREADABLE.search(source) or time.monotonic() > deadline:
            return False
        if source not in known:
            known[source] = like(server, source, reason) >= chosen.likeness
        return known[source]

    start = _in_parts(chosen.candidate.source, shows_it)
    try:
        return pysource_minimize.minimize(start, shows_it, retries=0)
    except pysource_minimize.CouldNotMinimize:  # the time is over
        return start


def _in_parts(source: str, shows_it: Callable[[str], bool]) -> str:
    """Leave out halves, quarters, … of the top-level statements, as delta debugging does.

    The reducer goes through the tree one node after the other, which takes long for large files.
    """
    tree = ast.parse(source)
    size = len(tree.body) // 2
    while size >= 1:
        at = 0
        while at < len(tree.body):
            rest = ast.Module(body=tree.body[:at] + tree.body[at + size :], type_ignores=[])
            if shows_it(ast.unparse(rest)):
                tree = rest
            else:
                at += size
        size //= 2
    return ast.unparse(tree)
