"""What users write of the sizes that they serve, and read where a model takes too long."""

from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import InputsError, UsageError
from compilewatch.extras.shapes import tracing
from compilewatch.extras.shapes.tracing import served_by_trace, served_by_values
from compilewatch.records import Status
from tests import factories
from tests.fake_launcher import FakeLauncher, passing


def test_lists_are_called_as_they_are_and_ranges_are_searched() -> None:
    lists = served_by_values(("batch=8,1", "x.0=3"))
    assert lists.calls == [{"batch": 8, "x.0": 3}, {"batch": 1, "x.0": 3}]
    assert lists.domains == {"batch": (False, (1, 8)), "x.0": (False, (3,))}
    mixed = served_by_values(("batch=8,1", "sequence=1..512"))
    assert mixed.domains == {"batch": (False, (1, 8)), "sequence": (True, (1, 512))}
    assert mixed.calls == []


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=a", "batch=8..2", "batch=-1", "=1"])
def test_another_spelling_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=r"write NAME=FIRST\.\.LAST or NAME=SIZE,SIZE"):
        served_by_values((text,))


def test_a_trace_is_called_as_it_is_and_spans_a_range() -> None:
    served = served_by_trace('{"batch": 8, "sequence": 3}\n\n{"batch": 1, "sequence": 9}\n', "t")
    assert served.calls == [{"batch": 8, "sequence": 3}, {"batch": 1, "sequence": 9}]
    assert served.domains == {"batch": (True, (1, 8)), "sequence": (True, (3, 9))}


@pytest.mark.parametrize("line", ["8", "{", '{"sequence": 3}', '{"batch": -1}'])
def test_a_line_of_a_trace_that_is_no_call_is_named(line: str) -> None:
    with pytest.raises(UsageError, match="t, line 2: not sizes"):
        served_by_trace('{"batch": 8}\n' + line, "t")
    with pytest.raises(UsageError, match="t has no calls"):
        served_by_trace("\n", "t")


def test_a_model_that_takes_too_long_says_where_to_allow_more_time(tmp_path: Path) -> None:
    late = "compile did not finish within 600 s"
    result = msgspec.structs.replace(
        passing(factories.request("A")), status=Status.TIMEOUT, detail=late
    )
    launcher, where = FakeLauncher(answers={"A": result}), "COMPILEWATCH_DEADLINES_COMPILE_SECONDS"
    with pytest.raises(InputsError, match=rf"^A: {late}; for more time, set .* {where}, and total"):
        tracing._content(launcher, result.request, tmp_path)
