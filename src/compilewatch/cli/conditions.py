"""The option `--fail-on`, and the exit status of every command that shows a run.

Commands about one model use it, too, so the figures of a run are imported where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from compilewatch.records import ChangeKind, Result, Status

if TYPE_CHECKING:
    from compilewatch.records import RunView

FOUND = 1
INCOMPLETE = 3

STATUSES: dict[str, frozenset[Status]] = {
    "graph-break": frozenset({Status.GRAPH_BREAK}),
    "mismatch": frozenset({Status.MISMATCH}),
    "error": frozenset({Status.ERROR, Status.TIMEOUT, Status.OOM, Status.CRASHED}),
}
"""Conditions that a single result meets, and the statuses that meet them."""

NAMES = ("regression", "compilations", *STATUSES, "no-verdict", "coverage<PERCENT")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of `--fail-on`. `coverage` is the minimum share; None means no minimum."""

    names: frozenset[str] = frozenset()
    coverage: float | None = None

    def of_results(self, results: Iterable[Result]) -> list[str]:
        """The conditions that single results meet. Expected results and forecasts meet none."""
        judged = [r for r in results if r.expectation is None and not r.is_forecast]
        met = [
            name
            for name, statuses in STATUSES.items()
            if name in self.names and any(r.status in statuses for r in judged)
        ]
        if "no-verdict" in self.names and not all(r.is_verdict for r in judged):
            met.append("no-verdict")
        return met

    def of_view(self, view: RunView) -> list[str]:
        """All conditions that a run meets, by name."""
        from compilewatch.analysis import summary

        met = self.of_results(view.results)
        kinds = {change.kind for change in view.changes}
        if "regression" in self.names and ChangeKind.REGRESSION in kinds:
            met.append("regression")
        if "compilations" in self.names and ChangeKind.MORE_COMPILATIONS in kinds:
            met.append("compilations")
        lacking = summary.planned(view) > len(view.results)
        if "no-verdict" in self.names and lacking and "no-verdict" not in met:
            met.append("no-verdict")
        covered = summary.coverage(view)
        if covered is None and view.results:  # nothing but forecasts
            covered = 1.0
        if self.coverage is not None and (covered or 0.0) < self.coverage:
            met.append(f"coverage<{self.coverage * 100:g}")
        return met


def _parsed(ctx: click.Context, param: click.Parameter, value: str) -> Conditions:
    names: set[str] = set()
    coverage: float | None = None
    for text in filter(None, (part.strip() for part in value.split(","))):
        limit = re.fullmatch(r"coverage\s*<\s*(\d+(?:\.\d+)?)\s*%?", text)
        if limit is not None and float(limit[1]) <= 100:
            coverage = float(limit[1]) / 100
        elif text in NAMES[:-1]:
            names.add(text)
        else:
            raise click.BadParameter(f"{text!r} is not one of {', '.join(NAMES)}", ctx, param)
    return Conditions(names=frozenset(names), coverage=coverage)


option = click.option(
    "--fail-on",
    metavar="A,B",
    default="",
    callback=_parsed,
    help=f"Exit with status {FOUND} if one of these conditions is met: {', '.join(NAMES)}.",
)


def exit_status_of(result: Result, conditions: Conditions) -> int:
    """The same as `exit_status`, for one result that belongs to no run."""
    if met := conditions.of_results([result]):
        click.echo(f"compilewatch: --fail-on: {', '.join(met)}", err=True)
        return FOUND
    return 0 if result.is_conclusive else INCOMPLETE


def exit_status(view: RunView, conditions: Conditions) -> int:
    """Return 1 if a condition is met, 3 if results are missing or nothing ran, else 0.

    A shard in which nothing ran is not a failure: the conditions apply to the merged run.
    """
    if met := conditions.of_view(view):
        click.echo(f"compilewatch: --fail-on: {', '.join(met)}", err=True)
        return FOUND
    from compilewatch.analysis.summary import is_complete

    if not is_complete(view):
        return INCOMPLETE
    nothing_ran = bool(view.results) and not any(r.is_conclusive for r in view.results)
    return INCOMPLETE if nothing_ran and view.run.shard is None else 0
