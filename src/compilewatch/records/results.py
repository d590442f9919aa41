"""What is answered: a result."""

from __future__ import annotations

from compilewatch.records.base import (
    HARNESS_VERSION,
    RESULT_VERSION,
    AttemptCode,
    Depth,
    Phase,
    Record,
    Status,
    Tier,
)
from compilewatch.records.breaks import ErrorRecord, FullgraphVerdict, GraphBreak
from compilewatch.records.details import Details
from compilewatch.records.details.numerics import Numerics
from compilewatch.records.requests import Request


class TensorSummary(Record, frozen=True, kw_only=True):
    """One example input: `name`, shape, dtype; `value` for what is not a tensor."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    value: str | None = None


class Attempt(Record, frozen=True, kw_only=True):
    """One child that ran for a request before the one that gave the result, and why it ended.

    `reason` is one sentence for people. The phase of what a cluster lost is not known: `setup`.
    """

    tier: Tier
    status: Status
    phase: Phase
    code: AttemptCode
    reason: str
    durations: dict[str, float] = {}


class Result(Record, frozen=True, kw_only=True):
    """The answer to a request. A number that was not measured is None, never zero.

    `detail` is one line for people. `graph_breaks` is the total of occurrences and equals the sum
    over `breaks`; `unattributed` is how many of them have no reason of torch's (each still stands
    in `breaks`, with code `unattributed`). `graph_ops` counts the operations of each captured
    graph, in order, and `graph_ends` is the index in `breaks` of the break that ended it (-1 for
    none): of the first graphs only, and empty in runs of earlier versions. `durations` is seconds
    by phase. `reused_from` is the run whose answer this is. `artifacts` are paths relative to the
    run folder.
    """

    request: Request
    status: Status
    phase: Phase
    tier: Tier
    depth: Depth
    schema_version: int = RESULT_VERSION
    harness_version: int = HARNESS_VERSION
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
    durations: dict[str, float] = {}
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    numerics: Numerics | None = None
    details: Details | None = None
    error: ErrorRecord | None = None
    inputs: tuple[TensorSummary, ...] = ()
    inputs_strategy: str = ""
    artifacts: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    started_at: str = ""
    environment_digest: str = ""
    reused_from: str | None = None
    expectation: str | None = None

    @property
    def is_verdict(self) -> bool:
        """True where the target answered: pass, break, mismatch, or an error of the compiler."""
        return is_verdict(self.status, self.phase)

    @property
    def duration_seconds(self) -> float:
        return sum(self.durations.values())


def is_verdict(status: Status, phase: Phase) -> bool:
    """Whether a result that ended so is the compiler's answer; see `Result.is_verdict`."""
    if status is Status.ERROR:
        return phase in (Phase.COMPILE, Phase.COMPARE)
    return status in (Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH)
