"""The records of `compilewatch shapes`."""

import msgspec

from compilewatch.records import CodePlace, Record, ShapeSeries

REPORT_FILE = "shapes.json"


class SizeLimit(Record, frozen=True, kw_only=True):
    """The last `size` of a dimension that the model itself accepts, in eager mode.

    `error` is what it raises for others, and `place` the line that does.
    """

    name: str
    size: int
    error: str
    place: CodePlace


class ServedSizes(Record, frozen=True, kw_only=True):
    """Which graph serves which sizes: the first of a call, -1 where nothing says it.

    `values` are sizes of each dimension, of two at most; `graphs` has one for each combination, the
    last dimension first.
    """

    values: dict[str, tuple[int, ...]]
    graphs: tuple[int, ...]


class ShapeReport(Record, frozen=True, kw_only=True):
    """What a model compiles for certain sizes.

    `as_called` is with `dynamic=None`, as users compile by default, and `dynamic` with
    `dynamic=True`; `served` says by their names which graphs serve which sizes. `limits` are the
    ends of what the model itself accepts.
    """

    as_called: ShapeSeries
    dynamic: ShapeSeries
    served: dict[str, ServedSizes] = msgspec.field(default_factory=dict)
    limits: tuple[SizeLimit, ...] = ()
