"""A stored run with its comparison: all that sinks and tables see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from compilewatch.records import Change, Phase, Result, Run, Status, Target


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


class Link(NamedTuple):
    """A link of the report: a path from the folder of the run, its text, and what is there."""

    path: str
    label: str
    meaning: str


class RunPart(Protocol):
    """What an extra stored in the folder of a run, as the report and the sinks see it."""

    def links(self, model: str) -> Iterable[Link]:
        """Yield the links of a model's page."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelFix:
    """What was found against the graph breaks of one model on one target, as the report shows it.

    `changes` are the names of the changes of a fix that is `verified`: with `single_graph` the
    model has no graph break any more, else fewer. They are for the model's main inputs. `removed`
    are the fingerprints of the graph breaks that go. `code` is the fix to paste, `verification`
    what was tried of it, one line each, and `script` the path of the script from the folder of the
    run. `tried` maps a hint of PyTorch's, as its text is, to what became of the model under it,
    where that was no fix. `detail` is the outcome in a few words. `run` is the one that has it.
    """

    model: str
    target: Target
    detail: str
    verified: bool = False
    single_graph: bool = False
    changes: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()
    code: str = ""
    verification: tuple[str, ...] = ()
    script: str = ""
    tried: Mapping[str, str] = field(default_factory=dict)
    run: str = ""


@runtime_checkable
class FixesPart(Protocol):
    """A `RunPart` that says what was found against the graph breaks of the run's models."""

    @property
    def model_fixes(self) -> Sequence[ModelFix]: ...


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run, with one entry in `results` for each request.

    Notes: damaged lines that were skipped, expectations that no longer hold, shards missing.
    `differences` names what differs from the baseline's environment (`torch 2.12 -> 2.13`).
    `history` is what earlier runs found, oldest first, by model name and target label; `trend` ends
    with this run and has those before it that planned the same. `before` holds the baseline's
    results that `changes` are about, or whose breaks are at other code now. All three are empty
    where nothing is stored. `parts` is what extras stored in the run, by the name of the extra.
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
    parts: Mapping[str, RunPart] = field(default_factory=dict)

    @property
    def fixes(self) -> tuple[ModelFix, ...]:
        """What the parts say was found against graph breaks."""
        parts = (part for part in self.parts.values() if isinstance(part, FixesPart))
        return tuple(fix for part in parts for fix in part.model_fixes)
