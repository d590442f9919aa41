"""The pages of single models: their results, in which order, and the names of their files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from compilewatch.analysis import rows
from compilewatch.analysis.rows import Cell, MatrixRow
from compilewatch.contract.targets import target_label
from compilewatch.records import Change, ModelSpec, Result
from compilewatch.records.results import spent
from compilewatch.records.views import RunView
from compilewatch.report.wording import ResultGroup, outcome, why

WORST_FIRST = tuple(ResultGroup)


@dataclass(frozen=True, kw_only=True)
class ModelPage:
    """One model with its results in the order of the layers; `worst` sorts it."""

    spec: ModelSpec
    page: str
    results: tuple[Result, ...]
    changes: tuple[Change, ...]

    @property
    def worst(self) -> ResultGroup:
        return min((outcome(result) for result in self.results), key=WORST_FIRST.index)

    @property
    def by_target(self) -> dict[str, Result]:
        return {target_label(result.request.target): result for result in self.results}

    @cached_property
    def rows(self) -> tuple[MatrixRow, ...]:
        return rows.rows(self.results)

    def first_mark(self, result: Result) -> str:
        """`fails first` on the result that a row's first failure is of, else nothing."""
        firsts = (cell for _, cell in self.first_failing)
        cell = next((cell for cell in firsts if cell.result is result), None)
        if cell is None:
            return ""
        return "fails first" if cell.layer == result.request.target.name else "fails in eager"

    @property
    def first_failing(self) -> tuple[tuple[MatrixRow, Cell], ...]:
        """For each way in which it failed, the row and its first failing layer."""
        found = ((row, row.first_failing) for row in self.rows)
        return tuple((row, cell) for row, cell in found if cell is not None)

    @property
    def tiers(self) -> str:
        """`fake, full`; each kind of result once. Nothing ran where there are no durations."""
        kinds = {f"{r.tier.value}, {r.depth.value}": None for r in self.results if r.durations}
        return "; ".join(kinds) or "–"

    @property
    def why(self) -> str:
        """Causes on all targets, in few words."""
        return ", ".join(dict.fromkeys(cause for r in self.results for cause in why(r)))

    @property
    def seconds(self) -> float:
        return sum(spent(result) for result in self.results)

    @property
    def breaks(self) -> int | None:
        counts = [r.graph_breaks for r in self.results if r.graph_breaks is not None]
        return sum(counts) if counts else None


def file_name(name: str, taken: set[str]) -> str:
    """A file name that is safe in a URL and on any file system, unlike all in `taken`.

    Names that differ only in case, or in what was replaced, get a digest of the name.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", name.replace("/", "--")).lstrip(".-")[:100] or "model"
    if safe.casefold() in taken:
        safe += f"-{sha256(name.encode()).hexdigest()[:8]}"
    taken.add(safe.casefold())
    return f"{safe}.html"


def model_pages(view: RunView) -> Iterator[ModelPage]:
    """Yield the pages of all models, the most downloaded first."""
    results: dict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        results[result.request.model.name].append(result)
    changes: dict[str, list[Change]] = defaultdict(list)
    for change in view.changes:
        changes[change.model].append(change)
    specs = [found[0].request.model for found in results.values()]
    # File names are given in the order of the names, so that a report written again has the same.
    taken: set[str] = set()
    pages = {name: f"models/{file_name(name, taken)}" for name in sorted(results)}
    for spec in sorted(specs, key=lambda spec: (-(spec.downloads or 0), spec.name)):
        found = sorted(results[spec.name], key=lambda r: rows.target_order(r.request.target))
        yield ModelPage(
            spec=spec,
            page=pages[spec.name],
            results=tuple(found),
            changes=tuple(changes[spec.name]),
        )
