"""The records of `compilewatch shapes`."""

import msgspec

from compilewatch.records import CodePlace, Record, ShapeSeries, StackFrame, Status

REPORT_FILE = "shapes.json"


class ServedSize(Record, frozen=True, kw_only=True):
    """What one graph without guards computes for certain sizes, compared with eager mode.

    `status` is pass, mismatch (other results), error (the graph fails), unsupported (eager mode
    fails too, or differs from one call to the next) or skipped. `guard` does not hold for these
    sizes, whether or not the graph is wrong; `needed_by` is the line of the model that needs it.
    """

    sizes: dict[str, int]
    status: Status
    detail: str = ""
    guard: str = ""
    needed_by: StackFrame | None = None


class OneGraph(Record, frozen=True, kw_only=True):
    """One graph for all sizes, captured with the sizes `captured`; `error` if it could not be."""

    captured: dict[str, int]
    backend: str
    calls: tuple[ServedSize, ...] = ()
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is right for all sizes for which eager mode says what is right."""
        statuses = {call.status for call in self.calls}
        return Status.PASS in statuses and statuses.isdisjoint((Status.MISMATCH, Status.ERROR))


class Buckets(Record, frozen=True, kw_only=True):
    """A dimension in a few sizes, to the next of which every call is padded.

    Of everything computed, `padding` is the share that is padding, over all calls, and `worst` for
    the call with most of it.
    """

    sizes: tuple[int, ...]
    padding: float
    worst: float


class SizeLimit(Record, frozen=True, kw_only=True):
    """The largest (`upper`) or smallest size of a dimension that the model accepts in eager mode.

    `error` is what it raises beyond, and `place` the line that does; unless `by_model`, because
    tensors without values cannot be read.
    """

    name: str
    size: int
    upper: bool
    error: str
    place: CodePlace
    by_model: bool = True


class ServedSizes(Record, frozen=True, kw_only=True):
    """Which graph serves which sizes: the first of a call, -1 where nothing says it.

    `values` are sizes of each dimension, of two at most; `graphs` has one for each combination, the
    last dimension first.
    """

    values: dict[str, tuple[int, ...]]
    graphs: tuple[int, ...]


class PlanProof(Record, frozen=True, kw_only=True):
    """What a script of plain PyTorch found in a separate process.

    `sample` random sizes compiled nothing after the first calls. Results are equal to eager mode
    for the sizes in `compared`; `late` are those for which a call takes too long, or too much
    memory, here.
    """

    sample: int
    compared: tuple[dict[str, int], ...]
    late: tuple[dict[str, int], ...] = ()


class ShapePlan(Record, frozen=True, kw_only=True):
    """What needs the fewest compilations for all sizes, as code, and the script that confirms it.

    `series` is what it compiles, and `tried` how much each candidate did.
    """

    title: str
    series: ShapeSeries
    served: ServedSizes
    code: str
    script: str
    holds_if: tuple[str, ...]
    tried: dict[str, int]
    proof: PlanProof | None = None


class ShapeReport(Record, frozen=True, kw_only=True):
    """What a model compiles for certain sizes.

    `as_called` is with `dynamic=None`, as users compile by default, and `dynamic` with
    `dynamic=True`; `served` says by their names which graphs serve which sizes. `limits` are the
    ends of what the model itself accepts. `plan` is None where none needs fewer compilations, or
    none was confirmed: `unconfirmed` says of each what the script found. `one_graph` and
    `buckets`, by dimension, are set where they were asked for. `masks` are the model's arguments
    that say what is padding. `generation` is what `generate` compiles, by cache and by who
    compiles.
    """

    as_called: ShapeSeries
    dynamic: ShapeSeries
    served: dict[str, ServedSizes] = msgspec.field(default_factory=dict)
    limits: tuple[SizeLimit, ...] = ()
    one_graph: OneGraph | None = None
    buckets: dict[str, tuple[Buckets, ...]] | None = None
    masks: tuple[str, ...] = ()
    generation: dict[str, ShapeSeries] | None = None
    plan: ShapePlan | None = None
    unconfirmed: dict[str, str] = msgspec.field(default_factory=dict)
