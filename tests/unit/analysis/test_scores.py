"""Scores against scikit-learn itself, with labels that are never seen."""

from __future__ import annotations

import random

import pytest

from compilewatch.analysis.scores import accuracy_of


def test_scores_are_those_of_scikit_learn() -> None:
    # Not above: each worker of pytest-xdist would import it, and one runs this test.
    from sklearn.metrics import accuracy_score, f1_score

    draw = random.Random(0)
    truth = [draw.randrange(20) for _ in range(2000)]
    predicted = [t if draw.random() < 0.9 else draw.randrange(20) for t in truth]
    scores = accuracy_of(truth, predicted, eager=truth)
    assert scores.labels == 20  # of 23: three are never seen
    assert scores.accuracy == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
    for average, value in (("macro", scores.f1_macro), ("weighted", scores.f1_weighted)):
        assert value == pytest.approx(f1_score(truth, predicted, average=average), abs=1e-12)
    # Classes that do not occur must not lower the mean.
    every = f1_score(truth, predicted, average="macro", labels=range(23), zero_division=0.0)
    assert scores.f1_macro > every
    assert scores.disagreements == sum(t != p for t, p in zip(truth, predicted, strict=True))


def test_without_eager_mode_there_are_no_disagreements() -> None:
    assert accuracy_of([0, 1], [0, 1]).disagreements is None
