"""When two reasons of torch are the same, although they name other objects and numbers."""

from __future__ import annotations

from compilewatch.extras.fixes.worker.minimal.checking import Likeness, handling, likeness

CALL = "Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):\n\n"
GIVEN_UP = (
    "Failed to handle graph break gracefully. Skipping the function and falling back to eager. "
    "Graph break encountered:\n\n"
)


def reason(context: str, wrapper: str = CALL, kind: str = "Data dependent operator") -> str:
    return (
        f"{wrapper}{kind}\n  Explanation: Operator `{context}` has a non-Tensor output.\n"
        f"  Hint: Consider it.\n\n  Developer debug context: {context}\n\n"
        " For more details about this graph break, please visit: https://example.org/gb.html"
    )


def test_the_same_reason_names_another_object() -> None:
    first = reason("method: <Logger transformers.a (ERROR)>.warning, args: ['x']")
    second = reason("method: <Logger b (WARNING)>.warning, args: ['y', 3]")
    assert likeness(first, second) is Likeness.EXACT


def test_numbers_and_sources_do_not_matter() -> None:
    first = reason("setattr(<class 'H'>, 'next_id', 30), source: LocalSource(local_name='self')")
    second = reason("setattr(<class 'H'>, 'next_id', 1), source: GlobalSource(global_name='h')")
    assert likeness(first, second) is Likeness.EXACT


def test_another_operation_has_only_the_code() -> None:
    assert likeness(reason("aten.nonzero.default"), reason("aten.item.default")) is Likeness.CODE


def test_what_dynamo_does_then_is_the_last_level() -> None:
    cut, given_up = reason("aten.nonzero.default"), reason("aten.nonzero.default", GIVEN_UP)
    assert (handling(cut), handling(given_up)) == ("cut", "given up")
    assert likeness(cut, given_up) is Likeness.REASON


def test_another_type_is_another_code() -> None:
    assert likeness(reason("x"), "Observed exception: ValueError") is Likeness.NONE
