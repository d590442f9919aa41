"""`compilewatch.fix` with a search that is made here."""

from __future__ import annotations

from typing import Any

import pytest

import compilewatch
from compilewatch.extras.fixes import fixing
from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.records import Fix, FixStatus
from compilewatch.extras.fixes.search import MAX_EVALUATIONS, MAX_SECONDS
from tests import factories


def build() -> None: ...


class Built: ...


@pytest.mark.parametrize("model", [build, Built])
def test_what_builds_a_model_is_found_again_by_its_file(
    monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    names: list[str] = []

    def fix(name: str, **_: Any) -> None:
        names.append(name)

    monkeypatch.setattr(fixing, "fix_named", fix)
    compilewatch.fix(model)
    assert names == [f"{__file__}:{model.__name__}"]


def test_limits_are_those_of_the_command_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Limits] = []

    def find(_: Any, __: Any, *, limits: Limits, rewrites: bool) -> Fix:
        assert rewrites
        seen.append(limits)
        return Fix(model="BertModel", target="dynamo", status=FixStatus.NOTHING, detail="no fix")

    made = (factories.request("BertModel"), factories.settings())
    monkeypatch.setattr(fixing, "one_request", lambda *_, **__: made)
    monkeypatch.setattr(fixing, "find_fix", find)
    found = compilewatch.fix("BertModel")
    compilewatch.fix("BertModel", max_evaluations=3, max_seconds=5)
    assert seen == [
        Limits(evaluations=MAX_EVALUATIONS, seconds=MAX_SECONDS),
        Limits(evaluations=3, seconds=5),
    ]
    assert (found.status, found.code, found.verification) == ("nothing", "", None)
    assert "no fix" in str(found)
    assert '"status":"nothing"' in found.to_json()
