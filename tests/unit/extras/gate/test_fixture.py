"""What a failed check says of a fix."""

from dataclasses import replace
from pathlib import Path

import pytest

from compilewatch.extras.gate import fixture
from compilewatch.extras.gate.fixture import fix_lines
from compilewatch.records import ModelFix, Target
from tests import factories

BROKEN = factories.result("Net", breaks=(factories.graph_break(),))


def test_a_model_by_name_can_be_searched_and_an_object_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixture, "stored_fix_for", lambda *_: None)
    assert not [*fix_lines(len, BROKEN, tmp_path, mode="eval", dynamic=None)]
    (line,) = fix_lines("net:build", BROKEN, tmp_path, mode="train", dynamic=None)
    assert line == f"fix:        compilewatch fix net:build --python-path {tmp_path} --mode train"
    for dynamic, flag in ((None, ""), (True, " --dynamic"), (False, " --static")):
        (line,) = fix_lines("BertModel", BROKEN, tmp_path, mode="eval", dynamic=dynamic)
        assert line == f"fix:        compilewatch fix BertModel{flag}"


def test_a_stored_fix_is_that_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = ModelFix(
        model="team/net", target=Target(), detail="", verified=True, changes=("scalars=True",)
    )
    monkeypatch.setattr(fixture, "stored_fix_for", lambda *_: replace(fix, run="20260102"))
    lines = list(fix_lines("net:build", BROKEN, tmp_path, mode="eval", dynamic=None))
    assert lines[0] == "fix:        scalars=True"
    assert "verified for team/net in run 20260102" in lines[1]
    assert "not for this model" in lines[1]
