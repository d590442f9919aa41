"""What a failed check says of a fix, with searches that are made here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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


def search(
    monkeypatch: pytest.MonkeyPatch, root: Path, outcome: object, model: str, **options: Any
) -> list[str]:
    monkeypatch.setattr(fixture, "_search", lambda *_: msgspec.to_builtins(outcome))
    return list(searched_fix(model, root, seconds=60, **options))


def test_a_verified_fix_is_named_with_its_code_and_its_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = search(monkeypatch, tmp_path, VERIFIED, "net:build", mode="train", dynamic=None)
    assert lines[0] == "fix:        scalars=True (verified: one graph)"
    assert lines[1:5] == ["    import torch", "", "    with x:", "        pass"]
    assert lines[5].startswith("verify:     compilewatch fix net:build --python-path ")
    assert lines[5].endswith("--mode train --save verify.py")


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize(
    ("outcome", "words"),
    [("none is verified within 60 s", "none is verified within 60 s"), (NOTHING, NOTHING.detail)],
)
def test_without_a_verified_fix_the_command_that_searches_longer_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: object,
    words: str,
    dynamic: bool | None,
) -> None:
    (line,) = search(monkeypatch, tmp_path, outcome, "BertModel", mode="eval", dynamic=dynamic)
    flag = {None: "", True: " --dynamic", False: " --static"}[dynamic]
    assert line == f"fix:        {words}: compilewatch fix BertModel{flag}"


def test_an_object_is_not_searched_and_a_stored_fix_is_that_of_another_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = factories.result("Net", breaks=(factories.graph_break(),))
    monkeypatch.setattr(fixture, "stored_fix_for", lambda *_: None)
    (line,) = stored_fix(broken)
    assert "check the model by its name" in line
    fix = ModelFix(
        model="team/net",
        target=Target(),
        detail="one graph",
        verified=True,
        changes=("scalars=True",),
        code="import torch\n",
    )
    monkeypatch.setattr(fixture, "stored_fix_for", lambda *_: replace(fix, run="20260102"))
    lines = list(stored_fix(broken))
    assert lines[0] == "fix:        scalars=True"
    assert "verified for team/net in run 20260102" in lines[1]
    assert "not for this model" in lines[1]
