"""The scores of a classifier."""

from __future__ import annotations

from compilewatch.records.base import Record


class Accuracy(Record, frozen=True, kw_only=True):
    """Scores of a text classifier over a labelled file, by scikit-learn.

    `disagreements` counts the samples for which this target and eager mode predict another class.
    """

    samples: int
    labels: int
    accuracy: float
    f1_macro: float
    f1_weighted: float
    disagreements: int | None = None
    seconds: float | None = None
