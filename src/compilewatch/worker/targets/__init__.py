"""The Protocol of a compile target and what it returns; `contract.targets` lists the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from compilewatch import plugins
from compilewatch.contract.targets import entry
from compilewatch.records import (
    Details,
    ErrorRecord,
    FullgraphVerdict,
    GraphBreak,
    Numerics,
    Status,
    Tier,
)

if TYPE_CHECKING:
    from compilewatch.worker.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a target found; the fields are those of `records.Result`."""

    status: Status
    detail: str = ""
    graphs: int | None = None
    graph_breaks: int | None = None
    distinct_breaks: int | None = None
    unattributed: int | None = None
    ops: int | None = None
    guards: int | None = None
    graph_ops: tuple[int, ...] = ()
    graph_ends: tuple[int, ...] = ()
    fullgraph: FullgraphVerdict | None = None
    breaks: tuple[GraphBreak, ...] = ()
    numerics: Numerics | None = None
    details: Details | None = None
    error: ErrorRecord | None = None
    artifacts: tuple[str, ...] = ()


class CompileTarget(Protocol):
    """One layer that a model must pass.

    `tiers` are those that can answer; in another one it is not asked.
    """

    name: str
    tiers: tuple[Tier, ...]

    def missing(self) -> str | None:
        """None where this environment can run the target, else what is missing, in one line."""
        ...

    def unable(self) -> str | None:
        """None where it can reach a verdict here, else why not.

        Not the same as `missing` for a target that leaves something useful without one.
        """
        return self.missing()

    def run(self, subject: Subject) -> Outcome:
        """Enter `Phase.COMPILE` (and later ones as needed), ask the compiler, return its answer.

        An exception of the compiler about the model is an `Outcome` with status `error`. Raises
        `FakeUnsupportedError` where fake tensors cannot answer and real ones could.
        """
        ...


class FakeUnsupportedError(Exception):
    """The model reads a value that fake tensors do not have: ask again with real tensors."""


def load_target(name: str) -> CompileTarget:
    """Import one target. Raises UsageError for a name that is not registered."""
    return plugins.load(entry(name).implementation)()  # type: ignore[no-any-return]
