"""How far compiled code is from eager."""

from __future__ import annotations

from compilewatch.records.base import Record


class Numerics(Record, frozen=True, kw_only=True):
    """Comparison with eager; tolerances as used, errors as measured, both absolute and relative.

    Relative is to the largest magnitude in the same output. `reference` is what errors were held
    against where the tolerances alone did not settle it: `float64`, or `eager` where the model
    cannot run in float64. `mismatches` names the outputs that differ (the first few).
    """

    deterministic: bool
    matches: bool
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    atol: float | None = None
    rtol: float | None = None
    reference: str | None = None
    mismatches: tuple[str, ...] = ()
