"""The numerical comparison of compiled code with eager mode."""

from __future__ import annotations

from compilewatch.records.base import Record


class Numerics(Record, frozen=True, kw_only=True):
    """A comparison with eager mode: tolerances as used and errors as measured.

    Relative errors are relative to the largest magnitude in the same output. `reference` is what
    errors were compared with if the tolerances alone did not decide: `float64`, or `eager` if the
    model cannot run in float64. `mismatches` names the first few outputs that differ.
    """

    deterministic: bool
    matches: bool
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    atol: float | None = None
    rtol: float | None = None
    reference: str | None = None
    mismatches: tuple[str, ...] = ()
