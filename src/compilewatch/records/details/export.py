"""Details of the `export` target."""

from __future__ import annotations

from compilewatch.records.base import Record


class ExportVariant(Record, frozen=True, kw_only=True):
    """The result of `torch.export.export`. `ops` counts ATen and higher-order operators."""

    exported: bool
    duration_seconds: float
    ops: int | None = None
    code: str | None = None
    reason: str | None = None


class DraftFailure(Record, frozen=True, kw_only=True):
    """One finding of draft export. `kind` is PyTorch's (`data_dependent_error`, `guard_added`, …).

    `what` is the expression or the operator concerned; the location is the innermost line of the
    model.
    """

    kind: str
    what: str
    occurrences: int = 1
    file: str | None = None
    line: int | None = None
    function: str | None = None


class DraftExport(Record, frozen=True, kw_only=True):
    """The result of `torch.export.draft_export`, which traces with the example values."""

    exported: bool
    failures: tuple[DraftFailure, ...] = ()
    reason: str | None = None


class ExportDetail(Record, frozen=True, kw_only=True, tag="export"):
    """What the export target found besides its verdict, which is that of the non-strict variant.

    A variant that did not run is None. With dynamic shapes, `dynamic_dimensions` are the input
    dimensions that stayed symbolic (`input_ids[0]`), and `specialized_dimensions` those that were
    requested as dynamic but became constants.
    """

    non_strict: ExportVariant | None = None
    strict: ExportVariant | None = None
    draft: DraftExport | None = None
    dynamic_dimensions: tuple[str, ...] = ()
    specialized_dimensions: tuple[str, ...] = ()

    @property
    def disagrees(self) -> bool:
        """Whether both variants ran and one exports what the other does not."""
        if self.non_strict is None or self.strict is None:
            return False
        return self.non_strict.exported is not self.strict.exported
