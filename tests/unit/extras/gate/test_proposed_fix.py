"""What a failed check says of a fix, with searches that are made here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compilewatch.extras.fixes.records import Fix, FixChange, FixKind, FixStatus
from compilewatch.extras.gate import proposed_fix
from compilewatch.extras.gate.proposed_fix import fix_command, searched_fix, stored_fix
from compilewatch.records import ModelFix, Target
from tests import factories

CHANGE = FixChange(name="scalars=True", kind=FixKind.SETTING, summary="s", lines=("pass",))


def said(root: Path, found: Fix | str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(proposed_fix, "_found", lambda *_: found)
    return searched_fix("net:build", root=root, mode="train", dynamic=False, seconds=60)


def test_a_verified_fix_is_named_with_its_code_and_its_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = Fix(
        model="net:build",
        target="dynamo/train",
        status=FixStatus.VERIFIED,
        detail="one graph",
        changes=(CHANGE,),
        code="import torch\n\nwith x:\n    pass\n",
    )
    lines = list(said(tmp_path, fix, monkeypatch))
    assert lines[0] == "fix:        scalars=True (verified: one graph)"
    assert lines[1:5] == ["    import torch", "", "    with x:", "        pass"]
    assert lines[5].startswith("verify:     compilewatch fix net:build --python-path ")
    assert lines[5].endswith("--mode train --save verify.py")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("none is verified within 60 s", "none is verified within 60 s"),
        (
            Fix(model="m", target="dynamo", status=FixStatus.NOTHING, detail="nothing is verified"),
            "nothing is verified",
        ),
    ],
)
def test_without_a_verified_fix_the_command_that_searches_longer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Fix | str, words: str
) -> None:
    (line,) = said(tmp_path, found, monkeypatch)
    assert line.startswith(f"fix:        {words}: compilewatch fix net:build")


def test_a_class_of_a_library_has_no_folders(tmp_path: Path) -> None:
    command = fix_command("BertModel", root=tmp_path, mode="eval", dynamic=True)
    assert command[3:] == ["fix", "BertModel", "--dynamic"]


def test_an_object_is_not_searched_and_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proposed_fix, "stored_fix_for", lambda *_: None)
    (line,) = stored_fix(factories.result("Net", breaks=(factories.graph_break(),)))
    assert "check the model by its name" in line


def test_a_stored_fix_is_that_of_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModelFix(
        model="team/net",
        target=Target(),
        detail="one graph",
        verified=True,
        changes=("scalars=True",),
        code="import torch\n",
    )
    stored = replace(made, run="20260102")
    monkeypatch.setattr(proposed_fix, "stored_fix_for", lambda *_: stored)
    lines = list(stored_fix(factories.result("Net", breaks=(factories.graph_break(),))))
    assert lines[0] == "fix:        scalars=True"
    assert "verified for team/net in run 20260102" in lines[1]
    assert "not for this model" in lines[1]
