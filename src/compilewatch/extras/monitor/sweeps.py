"""The figures of one sweep, from results that are read once, while they are appended."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.records import Result
from compilewatch.records.labels import reason_label
from compilewatch.store.formats import DamagedError, decode
from compilewatch.store.runs import RESULTS_FILE, result_lines

EXAMPLES = 5
LARGEST = 15


@dataclass(kw_only=True)
class SweepFigures:
    """Counts and largest values over the results so far. `damaged` lines are left out."""

    results: int = 0
    damaged: int = 0
    graph_breaks: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    phase_seconds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    _slowest: list[tuple[float, str]] = field(default_factory=list)
    _largest: list[tuple[float, str]] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count one result."""
        name = f"{result.request.model.name} on {target_label(result.request.target)}"
        self.results += 1
        self.statuses[result.status.value] += 1
        self.graph_breaks += result.graph_breaks or 0
        self.reasons.update({reason_label(each) for each in result.breaks})
        names = self.examples.setdefault(result.status.value, [])
        if len(names) < EXAMPLES:
            names.append(result.request.model.name)
        if result.reused_from is None:
            self.phase_seconds.update(result.durations)
            _keep(self._slowest, result.duration_seconds, name)
        if result.peak_memory_bytes is not None:
            _keep(self._largest, result.peak_memory_bytes / 1e6, name)

    def slowest(self) -> tuple[tuple[str, float], ...]:
        """Return the requests that took longest, with their seconds."""
        return tuple((name, value) for value, name in sorted(self._slowest, reverse=True))

    def largest(self) -> tuple[tuple[str, float], ...]:
        """Return the requests that took most memory, in megabytes."""
        return tuple((name, value) for value, name in sorted(self._largest, reverse=True))


class SweepReader:
    """Reads the results of one run on from where the last call stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path / RESULTS_FILE
        self._at = 0
        self._figures = SweepFigures()

    def read(self) -> SweepFigures:
        """Return the figures of all results so far. Raises StoreError."""
        figures = self._figures
        try:
            for start, line in result_lines(self._path, self._at):
                self._at = start + len(line)
                try:
                    figures.add(decode(line, Result))
                except DamagedError:
                    figures.damaged += 1
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from None
        return figures


def _keep(largest: list[tuple[float, str]], value: float, name: str) -> None:
    """Keep the `LARGEST` largest values in a heap."""
    push = heapq.heappush if len(largest) < LARGEST else heapq.heappushpop
    push(largest, (value, name))
