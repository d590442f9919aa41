"""Divides one traced call among compiled graphs, guards, eager operators and Python code.

Torch marks in its traces where compiled code runs: `TorchDynamo Cache Lookup` (the guards of a
frame), `Torch-Compiled Region: F/C` (the compiled code of a frame, by its compile id) and
`## Call CompiledFxGraph … ##` (a graph). Regions are nested, because the function that resumes
after a graph break runs inside the one before it. So each slice counts with its exclusive time, and
what is exclusive to a region is the Python code between its graphs: there a graph break costs its
time. This module does not need torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

GUARD = "guard"
GRAPH = "graph"
EAGER = "eager"
PYTHON = "python"

NO_FRAME = ""
"""Stands for a compile id where no compiled frame runs."""

_GUARDS = "TorchDynamo Cache Lookup"
_GRAPH = "## Call CompiledFxGraph"
_REGION = re.compile(r"Torch-Compiled Region: (?P<id>\S+)")


@dataclass(frozen=True, order=True)
class Slice:
    """One event of a trace, in nanoseconds. `is_operator` is False for annotations."""

    start: int
    duration: int
    name: str
    is_operator: bool = True


@dataclass
class Division:
    """The exclusive nanoseconds of a call by compile id and kind; they sum to `total`."""

    total: int = 0
    nanoseconds: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, owner: str, kind: str, nanoseconds: int) -> None:
        kinds = self.nanoseconds.setdefault(owner, {})
        kinds[kind] = kinds.get(kind, 0) + nanoseconds

    def seconds(self) -> dict[str, dict[str, float]]:
        return {
            owner: {kind: value / 1e9 for kind, value in kinds.items()}
            for owner, kinds in self.nanoseconds.items()
        }


@dataclass
class _Open:
    end: int
    owner: str
    kind: str
    exclusive: int


def divide(call: Slice, slices: Iterable[Slice]) -> Division:
    """Divide a call among the slices inside of it, which are of its own thread.

    Every nanosecond of the call counts exactly once: for the innermost slice that covers it.
    """
    found = Division(total=call.duration)
    stack = [_Open(call.start + call.duration, NO_FRAME, PYTHON, call.duration)]

    def close() -> None:
        done = stack.pop()
        found.add(done.owner, done.kind, done.exclusive)

    for each in sorted(slices, key=lambda s: (s.start, -s.duration)):
        while len(stack) > 1 and each.start >= stack[-1].end:
            close()
        parent = stack[-1]
        # A slice that does not nest (torch rounds) is cut at the end of the slice around it.
        duration = min(each.start + each.duration, parent.end) - each.start
        if duration < 0 or each.start < call.start:
            continue
        parent.exclusive -= duration
        owner, kind = _belongs(each, parent)
        stack.append(_Open(each.start + duration, owner, kind, duration))
    while stack:
        close()
    return found


def _belongs(each: Slice, parent: _Open) -> tuple[str, str]:
    """Return the compile id and the kind of a slice inside of another."""
    if parent.kind in (GRAPH, GUARD, EAGER):
        return parent.owner, parent.kind
    if (region := _REGION.match(each.name)) is not None:
        return region["id"], PYTHON
    if each.name.startswith(_GUARDS):
        return parent.owner, GUARD
    if each.name.startswith(_GRAPH):
        return parent.owner, GRAPH
    if each.is_operator and "::" in each.name:
        return parent.owner, EAGER
    return parent.owner, PYTHON  # the runtime wrapper of a graph, annotations of the model
