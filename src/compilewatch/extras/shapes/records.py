"""The records of `compilewatch shapes`."""

from compilewatch.records import Record, ShapeSeries

REPORT_FILE = "shapes.json"


class ShapeReport(Record, frozen=True, kw_only=True):
    """What a model compiles for certain sizes.

    `as_called` is with `dynamic=None`, as users compile by default, and `dynamic` with
    `dynamic=True`.
    """

    as_called: ShapeSeries
    dynamic: ShapeSeries
