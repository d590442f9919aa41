"""What a failed check says of a fix, with searches that are made here."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from compilewatch.extras.fixes.records import Fix, FixChange, FixKind, FixStatus
from compilewatch.extras.gate import fixture
from compilewatch.extras.gate.fixture import searched_fix, stored_fix
from compilewatch.records import ModelFix, Target
from tests import factories

VERIFIED = Fix(
    model="net:build",
    target="dynamo/train",
    status=FixStatus.VERIFIED,
    detail="one graph",
    changes=(FixChange(name="scalars=True", kind=FixKind.SETTING, summary="s", lines=("pass",)),),
    code="import torch\n\nwith x:\n    pass\n",
)
NOTHING = Fix(model="m", target="dynamo", status=FixStatus.NOTHING, detail="nothing is verified")
LATE = "none is verified within 60 s"


def test_a_search_names_its_fix_with_its_code_or_the_command_that_searches_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(outcome: object, model: str, mode: str, dynamic: bool | None) -> list[str]:
        monkeypatch.setattr(fixture, "_search", lambda *_: msgspec.to_builtins(outcome))
        return list(searched_fix(model, tmp_path, seconds=60, mode=mode, dynamic=dynamic))

    lines = search(VERIFIED, "net:build", "train", None)
    assert lines[0] == "fix:        scalars=True (verified: one graph)"
    assert lines[1:5] == ["    import torch", "", "    with x:", "        pass"]
    assert lines[5].startswith("verify:     compilewatch fix net:build --python-path ")
    assert lines[5].endswith("--mode train --save verify.py")
    for dynamic, flag in ((None, ""), (True, " --dynamic"), (False, " --static")):
        for outcome, words in ((LATE, LATE), (NOTHING, NOTHING.detail)):
            (line,) = search(outcome, "BertModel", "eval", dynamic)
            assert line == f"fix:        {words}: compilewatch fix BertModel{flag}"


@pytest.mark.process
def test_a_search_ends_with_its_time(tmp_path: Path) -> None:
    assert fixture._search(["fix", "m"], tmp_path, 0.1) == "none is verified within 0.1 s"


def test_an_object_is_not_searched_and_a_stored_fix_is_that_of_another_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = factories.result("Net", breaks=(factories.graph_break(),))
    monkeypatch.setattr(fixture, "stored_fix_for", lambda *_: None)
    (line,) = stored_fix(broken)
    assert "check the model by its name" in line
    fix = ModelFix(
        model="team/net", target=Target(), detail="", verified=True, changes=("scalars=True",)
    )
    monkeypatch.setattr(fixture, "stored_fix_for", lambda *_: replace(fix, run="20260102"))
    lines = list(stored_fix(broken))
    assert lines[0] == "fix:        scalars=True"
    assert "verified for team/net in run 20260102" in lines[1]
    assert "not for this model" in lines[1]
