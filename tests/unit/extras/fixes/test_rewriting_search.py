"""A search goes on from an error of the compiler by the rewrites of the place where it failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compilewatch.extras.fixes import search
from compilewatch.extras.fixes.candidates import Place
from compilewatch.extras.fixes.records import Change, FixStatus, Kind, Proof, ProofStep
from compilewatch.extras.fixes.search import Search
from compilewatch.records import ErrorRecord, GraphBreak, Result, Status
from tests.factories import graph_break, request, result


def change(name: str, kind: Kind) -> Change:
    return Change(name=name, kind=kind, summary="", lines=())


SETTING = change("setting", Kind.SETTING)
FIRST, SECOND = change("first rewrite", Kind.REWRITE), change("second rewrite", Kind.REWRITE)


def failed(line: int) -> Result:
    error = ErrorRecord(type="Guard", message="on data", code="data", file="a.py", line=line)
    return result(status=Status.ERROR, error=error)


def searched(
    monkeypatch: pytest.MonkeyPatch, results: dict[tuple[str, ...], Result]
) -> tuple[Search, Result]:
    """A search where the compiler fails at line 1, then 2; results by the names of the changes."""
    broken = result(breaks=(graph_break(),))

    def proposals(breaks: Sequence[GraphBreak], *_: object, **__: object) -> tuple[Change, ...]:
        by_line = {1: (FIRST,), 2: (SECOND,)}
        return by_line.get(breaks[0].line, (SETTING,)) if breaks[0].file == "a.py" else (SETTING,)

    def evaluate(changes: Sequence[Change]) -> Result:
        return results.get(tuple(each.name for each in changes), broken)

    monkeypatch.setattr(search, "proposals", proposals)
    proof = Proof(steps=(ProofStep(name="all", passed=True),), single_graph=True)
    place = Place(request=request(), source_of=lambda _: None)
    return Search(evaluate=evaluate, prove=lambda _: ("script", proof), place=place), broken


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
    assert found.status is FixStatus.PROVEN
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
