from __future__ import annotations

import pytest

from compilewatch.extras.history.attribute import ChangeCause, Versions, attribute
from compilewatch.records import Phase, Result, Status
from tests.factories import graph_break, result

OLD, NEW = Versions("2.13.0", "5.5.4"), Versions("2.15.0", "5.23.0")
NEW_TORCH, NEW_TRANSFORMERS = Versions("2.15.0", "5.5.4"), Versions("2.13.0", "5.23.0")

CORNERS = (OLD, NEW, NEW_TORCH, NEW_TRANSFORMERS)

PASS = result()
BREAK = result(breaks=(graph_break(),))
OTHER = result(breaks=(graph_break(), graph_break("other"), graph_break("third")))


def cause(*mixtures: Result | None) -> tuple[ChangeCause, str]:
    """From a pass to a graph break, with results of new torch alone, and new Transformers alone."""
    results = (PASS, BREAK, *mixtures)
    return attribute(OLD, NEW, dict(zip(CORNERS, results, strict=True)))


@pytest.mark.parametrize(
    ("new_torch", "new_transformers", "expected", "words"),
    [
        (BREAK, PASS, ChangeCause.TORCH, "torch alone changes"),
        (PASS, BREAK, ChangeCause.TRANSFORMERS, "Transformers alone changes"),
        (PASS, PASS, ChangeCause.INTERACTION, "only both together"),
        (BREAK, BREAK, ChangeCause.INTERACTION, "each of the two alone does it"),
        (OTHER, BREAK, ChangeCause.INTERACTION, "each of the two alone changes it"),
        (OTHER, PASS, ChangeCause.INTERACTION, "torch alone changes the result, but to another"),
    ],
)
def test_four_verdicts_decide(
    new_torch: Result, new_transformers: Result, expected: ChangeCause, words: str
) -> None:
    found, detail = cause(new_torch, new_transformers)
    assert found is expected
    assert words in detail


@pytest.mark.parametrize("lacking", [None, result(status=Status.TIMEOUT, phase=Phase.COMPILE)])
def test_a_corner_without_a_verdict_is_never_guessed(lacking: Result | None) -> None:
    for corners in ((lacking, PASS), (BREAK, lacking)):
        found, detail = cause(*corners)
        assert found is ChangeCause.NOT_DETERMINED
        assert "no verdict of torch 2.1" in detail


def test_where_one_package_differs_it_is_the_cause() -> None:
    assert attribute(OLD, NEW_TORCH, {OLD: PASS, NEW_TORCH: BREAK})[0] is ChangeCause.TORCH
    ends = {OLD: PASS, NEW_TRANSFORMERS: BREAK}
    assert attribute(OLD, NEW_TRANSFORMERS, ends)[0] is ChangeCause.TRANSFORMERS


def test_ends_that_are_alike_today_were_changed_by_compilewatch() -> None:
    corners = dict.fromkeys(CORNERS, BREAK)
    assert attribute(OLD, NEW, corners)[0] is ChangeCause.HARNESS


def test_breaks_are_compared_as_the_comparison_did() -> None:
    renamed = result(breaks=(graph_break(gb_id="GB0059"),))
    corners = {OLD: BREAK, NEW_TORCH: renamed}
    assert attribute(OLD, NEW_TORCH, corners)[0] is ChangeCause.TORCH
    assert attribute(OLD, NEW_TORCH, corners, by_place=True)[0] is ChangeCause.HARNESS
