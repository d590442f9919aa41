"""A stored run with what was concluded from it: all that a sink or a table may see."""

from __future__ import annotations

from dataclasses import dataclass

from compilewatch.records import Change, Result, Run


@dataclass(frozen=True, kw_only=True)
class RunView:
    """`results` has one entry a request; `notes` are lines a reader must see.

    Notes: damaged lines that were skipped, expectations that no longer hold, shards missing.
    `differences` names what differs from the baseline's environment (`torch 2.12 -> 2.13`).
    """

    run: Run
    results: tuple[Result, ...]
    changes: tuple[Change, ...] = ()
    baseline: Run | None = None
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
