import pytest

from compilewatch.extras.history.attribute import ChangeCause, Versions, attribute
from compilewatch.records import Phase, Result, Status
from tests.factories import graph_break, result

OLD, NEW = Versions("2.13.0", "5.5.4"), Versions("2.15.0", "5.23.0")
NEW_TORCH, NEW_TRANSFORMERS = Versions("2.15.0", "5.5.4"), Versions("2.13.0", "5.23.0")

PASS, BREAK = result(), result(breaks=(graph_break(),))
OTHER = result(breaks=(graph_break(), graph_break("other"), graph_break("third")))
TIMEOUT = result(status=Status.TIMEOUT, phase=Phase.COMPILE)


@pytest.mark.parametrize(
    ("new_torch", "new_transformers", "expected", "words"),
    [
        (BREAK, PASS, ChangeCause.TORCH, "torch alone changes"),
        (PASS, BREAK, ChangeCause.TRANSFORMERS, "Transformers alone changes"),
        (PASS, PASS, ChangeCause.INTERACTION, "only both together"),
        (BREAK, BREAK, ChangeCause.INTERACTION, "each of the two alone does it"),
        (OTHER, BREAK, ChangeCause.INTERACTION, "each of the two alone changes it"),
        (OTHER, PASS, ChangeCause.INTERACTION, "torch alone changes the result, but to another"),
        (None, PASS, ChangeCause.NOT_DETERMINED, "no verdict of torch 2.15"),
        (TIMEOUT, PASS, ChangeCause.NOT_DETERMINED, "no verdict of torch 2.15"),
        (BREAK, None, ChangeCause.NOT_DETERMINED, "no verdict of torch 2.13"),
        (BREAK, TIMEOUT, ChangeCause.NOT_DETERMINED, "no verdict of torch 2.13"),
    ],
)
def test_four_verdicts_decide_and_none_is_guessed(
    new_torch: Result | None, new_transformers: Result | None, expected: ChangeCause, words: str
) -> None:
    """From a pass to a graph break."""
    corners = {OLD: PASS, NEW: BREAK, NEW_TORCH: new_torch, NEW_TRANSFORMERS: new_transformers}
    found, detail = attribute(OLD, NEW, corners)
    assert found is expected
    assert words in detail


def test_two_results_decide_where_one_package_differs_or_both_ends_are_alike() -> None:
    assert attribute(OLD, NEW_TORCH, {OLD: PASS, NEW_TORCH: BREAK})[0] is ChangeCause.TORCH
    ends = {OLD: PASS, NEW_TRANSFORMERS: BREAK}
    assert attribute(OLD, NEW_TRANSFORMERS, ends)[0] is ChangeCause.TRANSFORMERS
    alike = dict.fromkeys((OLD, NEW, NEW_TORCH, NEW_TRANSFORMERS), BREAK)
    assert attribute(OLD, NEW, alike)[0] is ChangeCause.HARNESS
    renamed = {OLD: BREAK, NEW_TORCH: result(breaks=(graph_break(gb_id="GB0059"),))}
    assert attribute(OLD, NEW_TORCH, renamed)[0] is ChangeCause.TORCH
    assert attribute(OLD, NEW_TORCH, renamed, by_place=True)[0] is ChangeCause.HARNESS
