"""A search goes on from an error of the compiler by the rewrites of the place where it failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compilewatch.extras.fixes import search
from compilewatch.extras.fixes.candidates import Place
from compilewatch.extras.fixes.records import (
    FixChange,
    FixKind,
    FixStatus,
    Verification,
    VerificationStep,
)
from compilewatch.extras.fixes.search import Search
from compilewatch.records import ErrorRecord, GraphBreak, Result, Status
from tests.factories import graph_break, request, result


def change(name: str, kind: FixKind) -> FixChange:
    return FixChange(name=name, kind=kind, summary="", lines=())


SETTING = change("setting", FixKind.SETTING)
FIRST, SECOND = (
    change("first rewrite", FixKind.REWRITE),
    change("second rewrite", FixKind.REWRITE),
)


MESSAGE = """\
PendingUnbackedSymbolNotFound: Pending unbacked symbols

from user code:
   File "library/model.py", line 7, in forward
    x = self.padded(x)
  File "torch/nn/functional.py", line 9, in pad
    return torch._C._nn.pad(x)

Set TORCHDYNAMO_VERBOSE=1
"""


def failed(line: int, file: str = "a.py") -> Result:
    error = ErrorRecord(type="Guard", message=MESSAGE, code="data", file=file, line=line)
    return result(status=Status.ERROR, error=error)


def searched(
    monkeypatch: pytest.MonkeyPatch, results: dict[tuple[str, ...], Result]
) -> tuple[Search, Result]:
    """A search where the compiler fails at line 1, then 2; results by the names of the changes."""
    broken = result(breaks=(graph_break(),))

    def proposals(breaks: Sequence[GraphBreak], *_: object, **__: object) -> tuple[FixChange, ...]:
        by_line = {1: (FIRST,), 2: (SECOND,)}
        return by_line.get(breaks[0].line, (SETTING,)) if breaks[0].file == "a.py" else (SETTING,)

    def evaluate(changes: Sequence[FixChange]) -> Result:
        return results.get(tuple(each.name for each in changes), broken)

    monkeypatch.setattr(search, "proposals", proposals)
    verification = Verification(
        steps=(VerificationStep(name="all", passed=True),), single_graph=True
    )
    place = Place(request=request(), source_of=lambda _: None)
    return Search(evaluate=evaluate, verify=lambda _: ("script", verification), place=place), broken


def test_rewrites_are_added_while_the_error_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = searched(
        monkeypatch,
        {
            ("setting",): failed(1),
            ("setting", "first rewrite"): failed(2),
            ("setting", "first rewrite", "second rewrite"): result(),
        },
    )
    found = made.run()
    assert found.status is FixStatus.VERIFIED
    assert [each.name for each in found.changes] == ["setting", "first rewrite", "second rewrite"]


def test_a_rewrite_that_leaves_the_error_where_it_was_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, _ = searched(
        monkeypatch, {("setting",): failed(1), ("setting", "first rewrite"): failed(1)}
    )
    found = made.run()
    assert found.status is FixStatus.NOTHING
    assert ("setting", "first rewrite") in [each.changes for each in found.trials]
    assert not any("second rewrite" in each.changes for each in found.trials)


def test_the_stack_of_the_model_is_read_from_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = searched(monkeypatch, {("setting",): failed(1491, "torch/symbolic_shapes.py")})
    asked: list[GraphBreak] = []

    def proposals(breaks: Sequence[GraphBreak], *_: object, **__: object) -> tuple[FixChange, ...]:
        asked.extend(breaks)
        return (SETTING,)

    monkeypatch.setattr(search, "proposals", proposals)
    made.run()
    stacks = [each.user_stack for each in asked if each.file == "torch/symbolic_shapes.py"]
    assert [(f.file, f.line, f.function) for f in stacks[0]] == [
        ("library/model.py", 7, "forward"),
        ("torch/nn/functional.py", 9, "pad"),
    ]
