"""`compilewatch.fix` without a search: what it rejects, and what it says without the extra."""

from __future__ import annotations

from typing import Any

import pytest

import compilewatch
from compilewatch import extras
from compilewatch.errors import MissingExtraError, UsageError
from compilewatch.extras.fixes import calling
from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.records import Fix, FixStatus
from compilewatch.extras.fixes.search import MAX_EVALUATIONS, MAX_SECONDS
from tests import factories


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "is_here", lambda _: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'compilewatch\[fixes\]'"):
        compilewatch.fix("BertModel")


def test_an_object_is_rejected_with_what_to_pass() -> None:
    given: Any = object()
    with pytest.raises(UsageError, match="by its name"):
        compilewatch.fix(given)


def test_another_mode_is_rejected() -> None:
    with pytest.raises(UsageError, match="mode is 'eval' or 'train'"):
        compilewatch.fix("BertModel", mode="test")


def test_limits_are_those_of_the_command_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Limits] = []

    def find(_: Any, __: Any, *, limits: Limits, rewrites: bool) -> Fix:
        assert rewrites
        seen.append(limits)
        return Fix(model="BertModel", target="dynamo", status=FixStatus.NOTHING, detail="no fix")

    made = (factories.request("BertModel"), factories.settings())
    monkeypatch.setattr(calling, "one_request", lambda *_, **__: made)
    monkeypatch.setattr(calling, "find_fix", find)
    found = compilewatch.fix("BertModel")
    compilewatch.fix("BertModel", max_evaluations=3, max_seconds=5)
    assert seen == [
        Limits(evaluations=MAX_EVALUATIONS, seconds=MAX_SECONDS),
        Limits(evaluations=3, seconds=5),
    ]
    assert (found.status, found.code, found.proof) == ("nothing", "", None)
    assert "no fix" in str(found)
    assert '"status":"nothing"' in found.to_json()
