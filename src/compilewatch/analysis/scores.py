"""Scores of a classifier, by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

from compilewatch.records import Accuracy


def accuracy_of(
    truth: Sequence[int],
    predicted: Sequence[int],
    *,
    eager: Sequence[int] | None = None,
    seconds: float | None = None,
) -> Accuracy:
    """Score predictions; classes that neither the file nor a prediction contains do not count."""
    from sklearn.metrics import accuracy_score, f1_score

    return Accuracy(
        samples=len(truth),
        labels=len(set(truth) | set(predicted)),
        accuracy=float(accuracy_score(truth, predicted)),
        f1_macro=float(f1_score(truth, predicted, average="macro", zero_division=0.0)),
        f1_weighted=float(f1_score(truth, predicted, average="weighted", zero_division=0.0)),
        disagreements=sum(a != b for a, b in zip(eager, predicted, strict=True))
        if eager is not None
        else None,
        seconds=seconds,
    )
