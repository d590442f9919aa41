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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compilewatch.extras.profiles.infer.records import BreakCost, Segments
from compilewatch.records import GraphBreak

GUARD = "guard"
GRAPH = "graph"
EAGER = "eager"
PYTHON = "python"

NO_FRAME = ""
"""Stands for a compile id where no compiled frame runs."""

OF_BREAK = (
    *("fingerprint", "code", "file", "line", "function"),
    *("reason", "source_start", "source"),
)
"""What the cost of a break has of the break itself."""

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

    def segments(self, calls: int) -> Segments:
        """Where the call spends its time, by kind; it is one of `calls` traced calls."""
        seconds = dict.fromkeys((GRAPH, GUARD, EAGER, PYTHON), 0.0)
        for kinds in self.nanoseconds.values():
            for kind, value in kinds.items():
                seconds[kind] += value / 1e9
        return Segments(
            calls=calls,
            call_seconds=self.total / 1e9,
            graph_seconds=seconds[GRAPH],
            guard_seconds=seconds[GUARD],
            eager_seconds=seconds[EAGER],
            python_seconds=seconds[PYTHON],
        )

    def costs(self, breaks: Sequence[GraphBreak], ends: Mapping[str, int]) -> tuple[BreakCost, ...]:
        """The cost of each graph break, the most expensive first.

        `ends` is the index of the break at which the code of a compile id ends. A break costs what
        its frame does outside of graphs: looking up the frame that resumes, Python code and
        operators in between. The last frame of a call has no break, and costs nobody anything that
        compiling without breaks would not.
        """
        costs: list[BreakCost] = []
        for index, graph_break in enumerate(breaks):
            owners = [owner for owner, end in ends.items() if end == index]
            guard, python, eager = (
                sum(self.nanoseconds.get(owner, {}).get(kind, 0) for owner in owners)
                for kind in (GUARD, PYTHON, EAGER)
            )
            costs.append(
                BreakCost(
                    **{name: getattr(graph_break, name) for name in OF_BREAK},
                    compile_ids=tuple(owner for owner in owners if owner != NO_FRAME),
                    guard_seconds=guard / 1e9,
                    python_seconds=python / 1e9,
                    eager_seconds=eager / 1e9,
                    share=(guard + python + eager) / self.total if self.total else 0.0,
                )
            )
        return tuple(sorted(costs, key=lambda cost: -cost.seconds))


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
    division = Division(total=call.duration)
    stack = [_Open(call.start + call.duration, NO_FRAME, PYTHON, call.duration)]

    def close() -> None:
        done = stack.pop()
        division.add(done.owner, done.kind, done.exclusive)

    for slice_ in sorted(slices, key=lambda s: (s.start, -s.duration)):
        while len(stack) > 1 and slice_.start >= stack[-1].end:
            close()
        parent = stack[-1]
        # A slice that does not nest (torch rounds) is cut at the end of the slice around it.
        duration = min(slice_.start + slice_.duration, parent.end) - slice_.start
        if duration < 0 or slice_.start < call.start:
            continue
        parent.exclusive -= duration
        owner, kind = _belongs(slice_, parent)
        stack.append(_Open(slice_.start + duration, owner, kind, duration))
    while stack:
        close()
    return division


def _belongs(part: Slice, parent: _Open) -> tuple[str, str]:
    """Return the compile id and the kind of a slice inside of another."""
    if parent.kind in (GRAPH, GUARD, EAGER):
        return parent.owner, parent.kind
    if (region := _REGION.match(part.name)) is not None:
        return region["id"], PYTHON
    if part.name.startswith(_GUARDS):
        return parent.owner, GUARD
    if part.name.startswith(_GRAPH):
        return parent.owner, GRAPH
    if part.is_operator and "::" in part.name:
        return parent.owner, EAGER
    return parent.owner, PYTHON  # the runtime wrapper of a graph, annotations of the model
