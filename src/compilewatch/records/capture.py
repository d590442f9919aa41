"""How much of a model was captured in graphs, beside how often it broke."""

from __future__ import annotations

from compilewatch.records.base import Record
from compilewatch.records.breaks import GraphBreak


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
