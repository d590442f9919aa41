"""The progress of the work on a run, where the output is no terminal."""

from __future__ import annotations

import pytest

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.of_run import driver
from compilewatch.extras.fixes.of_run.driver import FixProgress
from compilewatch.extras.fixes.records import Fix, FixOrigin, FixStatus, RunFix
from compilewatch.records import Target


def found(name: str) -> RunFix:
    status = FixStatus.CAPTURED
    fix = Fix(model=name, target=target_label(Target()), status=status, detail="no change helps")
    return RunFix(
        key="k",
        search="s",
        max_evaluations=1,
        max_seconds=1.0,
        model=name,
        target=Target(),
        origin=FixOrigin.SEARCH,
        fix=fix,
    )


def test_each_model_is_a_line_with_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    with FixProgress() as shown:
        shown.on_cases(3, 1)
        shown.on_step("A", "as it is")
        shown.on_fix(found("A"))
    said = capsys.readouterr()
    assert said.out == ""
    first, second = said.err.splitlines()
    assert first == "3 models and targets with graph breaks, 1 of them known from before."
    assert second == "0:00  2 of 3  A  captured, not verified  no change helps"


def test_a_long_silence_is_ended_by_the_step_that_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "QUIET_SECONDS", -1.0)
    with FixProgress() as shown:
        shown.on_cases(1, 0)
        shown.on_step("A", "verifying x=True")
    assert "0:00  0 of 1  now A: verifying x=True" in capsys.readouterr().err
