"""A stored run with its comparison: all that sinks and tables see."""

from __future__ import annotations

from dataclasses import dataclass

from compilewatch.records import Change, Result, Run


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run, with one entry in `results` for each request.

    `notes` are lines that a reader must see: damaged lines that were left out, expectations that no
    longer hold, missing shards. `differences` names what differs from the baseline's environment
    (`torch 2.12 -> 2.13`).
    """

    run: Run
    results: tuple[Result, ...]
    changes: tuple[Change, ...] = ()
    baseline: Run | None = None
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
