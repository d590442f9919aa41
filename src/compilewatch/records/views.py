"""A stored run with its comparison: all that sinks and tables see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from compilewatch.records import Change, Phase, Result, Run, Status, Target
from compilewatch.records.profiles import InferenceProfile, ProfileComparison


class Earlier(NamedTuple):
    """What an earlier run found for one model on one target."""

    run: str
    status: Status
    phase: Phase


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """One run of a trend: `passed` of `planned` requests compile without graph breaks."""

    run: str
    started_at: str
    passed: int
    planned: int


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run, with one entry in `results` for each request.

    Notes: damaged lines that were skipped, expectations that no longer hold, shards missing.
    `differences` names what differs from the baseline's environment (`torch 2.12 -> 2.13`).
    `history` is what earlier runs found, oldest first, by model name and target label; `trend` ends
    with this run and has those before it that planned the same. `before` holds the baseline's
    results that `changes` are about, or whose breaks are at other code now. All three are empty
    where nothing is stored. `profiles` are the inference profiles of the run, `profile_changes` how
    they differ from those of the baseline.
    """

    run: Run
    results: tuple[Result, ...]
    changes: tuple[Change, ...] = ()
    baseline: Run | None = None
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    history: Mapping[tuple[str, str], tuple[Earlier, ...]] = field(default_factory=dict)
    trend: tuple[TrendPoint, ...] = ()
    before: Mapping[tuple[str, Target], Result] = field(default_factory=dict)
    profiles: tuple[InferenceProfile, ...] = ()
    profile_changes: tuple[ProfileComparison, ...] = ()
