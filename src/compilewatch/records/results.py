"""The result of a request: what was captured, and its attempts."""

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
from compilewatch.records.details import Details, Numerics
from compilewatch.records.requests import Request


class CaptureFigures(Record, frozen=True, kw_only=True):
    """What became of one forward call's operators and frames when Dynamo compiled it.

    Operators are what PyTorch dispatches (`aten.linear.default`), each call counted: those inside
    captured graphs, and those that ran eagerly outside of them. None where they were not counted.
    A frame is a function, or the rest of one after a graph break. `frames_compiled` are those with
    a graph, `frames_skipped` those that Dynamo gave up, so that Python ran them. `recompilations`
    counts how often a frame was compiled again because its guards no longer held.
    `eager_operators` has the most frequent operators that ran eagerly. `nested_graph_breaks` is
    torch's setting of that name while the model was captured, None if torch has none.
    """

    operators_captured: int | None = None
    operators_eager: int | None = None
    frames_compiled: int = 0
    frames_skipped: int = 0
    recompilations: int = 0
    eager_operators: dict[str, int] = {}
    nested_graph_breaks: bool | None = None

    @property
    def share(self) -> float | None:
        """Operators in graphs, divided by all operators; None without any."""
        if self.operators_captured is None or self.operators_eager is None:
            return None
        every = self.operators_captured + self.operators_eager
        return self.operators_captured / every if every else None


class SecondCall(Record, frozen=True, kw_only=True):
    """What the second call of a compiled model met, where it differs from the first.

    `breaks` are graph breaks in frames that were compiled now, `graph_breaks` is their total, and
    `graphs` counts the graphs compiled now. `recompilations` counts the frames compiled again
    because their guards no longer held. `error` is the exception that ended the call, "" if none.
    """

    breaks: tuple[GraphBreak, ...] = ()
    graph_breaks: int = 0
    graphs: int = 0
    recompilations: int = 0
    error: str = ""


class Recompilation(Record, frozen=True, kw_only=True):
    """A frame that Dynamo compiled again, because guards of what it had compiled did not hold.

    `call` is the number of the call that caused it, from 1. `guards` are Dynamo's own descriptions
    of the guard that failed, with the values, one for each version of the frame.
    """

    call: int
    function: str
    file: str
    line: int
    guards: tuple[str, ...]


class TensorSummary(Record, frozen=True, kw_only=True):
    """One example input: its `name`, shape and dtype, or its `value` if it is not a tensor."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    value: str | None = None


class Attempt(Record, frozen=True, kw_only=True):
    """One child that ran for a request before the one that gave the result, and why it ended.

    `reason` is one sentence for users. If a cluster lost the attempt, its phase is unknown, and
    `phase` is `setup`.
    """

    tier: Tier
    status: Status
    phase: Phase
    code: AttemptCode
    reason: str
    durations: dict[str, float] = {}


class VariantResult(Record, frozen=True, kw_only=True):
    """What one input variant of a model gave, such as `text` or `text+image`.

    A variant that could not be built or run without the compiler has the status `unsupported`.
    `inputs` are its example inputs, empty if they could not be made.
    """

    name: str
    status: Status
    detail: str = ""
    graphs: int | None = None
    graph_breaks: int | None = None
    ops: int | None = None
    fullgraph: FullgraphVerdict | None = None
    breaks: tuple[GraphBreak, ...] = ()
    inputs: tuple[TensorSummary, ...] = ()

    @property
    def is_verdict(self) -> bool:
        """Whether it is a verdict of the compiler."""
        return self.status in (Status.PASS, Status.GRAPH_BREAK, Status.ERROR)


class Result(Record, frozen=True, kw_only=True):
    """The outcome of a request. A number that was not measured is None, never zero.

    `detail` is one line for users. `graph_breaks` is the total number of occurrences and equals the
    sum over `breaks`; `unattributed` is how many of them have no reason from torch (they are also
    in `breaks`, with the code `unattributed`). `graph_ops` is the number of operations of each
    captured graph, in order, and `graph_ends` is the index in `breaks` of the break that ended each
    graph (-1 for none). Both cover only the first graphs, and are empty where none were counted.
    `durations` maps phases to seconds. `reused_from` is the run from which this result was taken.
    `artifacts` are paths relative to the folder of the run. `dtype` is the type of the model's
    weights, None where none was built. `probed` means that only the first graph break was
    looked for, because the model cannot run without values on a device that is only declared.
    `variants` are the results of all input variants if there is more than one; `variant` is the
    worst of them, which everything else in the result is about. Everything is about the first call
    of a model that nothing has called; `second_call` is set if the next one, with equal inputs,
    differs.
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
    capture: CaptureFigures | None = None
    second_call: SecondCall | None = None
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
    dtype: str | None = None
    probed: bool = False
    variant: str = ""
    variants: tuple[VariantResult, ...] = ()
    reused_from: str | None = None
    expectation: str | None = None

    @property
    def is_verdict(self) -> bool:
        """True for a pass, a graph break, a mismatch, or an error of the compiler."""
        return is_verdict(self.status, self.phase)

    @property
    def duration_seconds(self) -> float:
        return sum(self.durations.values())


def is_verdict(status: Status, phase: Phase) -> bool:
    """Whether a result with this status and phase is a verdict; see `Result.is_verdict`."""
    if status is Status.ERROR:
        return phase in (Phase.COMPILE, Phase.COMPARE)
    return status in (Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH)


def spent(result: Result) -> float:
    """Seconds in all phases of all attempts."""
    return result.duration_seconds + sum(sum(a.durations.values()) for a in result.attempts)
