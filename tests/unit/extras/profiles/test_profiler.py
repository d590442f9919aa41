"""The profiler without torch: its files, its clock, and that it never stops the training."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.extras.profiles import profiler
from compilewatch.extras.profiles.check import read_training, tail
from compilewatch.extras.profiles.profiler import StageClock, TrainingFolder
from compilewatch.extras.profiles.training import STEPS_FILE, SUMMARY_FILE, TrainingProfile
from compilewatch.profiling import Profiler, Stage

TIMES = "stage_times.json"


def folder_of(profiler: Profiler) -> Path:
    assert profiler.folder is not None
    return profiler.folder


def stored(profiler: Profiler) -> TrainingProfile:
    return read_training(folder_of(profiler))


def train(profiler: Profiler, steps: int = 6, loss: object = 0.5) -> None:
    with profiler:
        for _ in profiler.data(range(steps)):
            with profiler.stage("forward"):
                pass
            profiler.step(loss=loss, samples=8)


def test_every_step_is_stored_with_its_stages(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, trace_steps=0, model="Tiny", target="eager", settings={"lr": 0.1})
    train(profiler)
    found = stored(profiler)
    assert found.state == "finished"
    assert profiler.problems == []
    assert [step.index for step in found.steps] == list(range(6))
    assert set(found.steps[1].stages) == {Stage.DATA, Stage.FORWARD, Stage.OTHER}
    assert (found.steps[3].loss, found.steps[3].samples) == (0.5, 8)
    assert (found.config.model, found.config.settings) == ("Tiny", {"lr": 0.1})
    files = [msgspec.json.decode((found.path / n).read_bytes()) for n in ("metrics.json", TIMES)]
    assert (files[0]["steps"], files[0]["steady_steps"]) == (6, 4)
    assert sum(files[1]["shares"].values()) == pytest.approx(1)


def test_another_process_sees_a_step_at_once_and_that_it_runs(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        profiler.step()
        assert len(tail(folder_of(profiler))) == 1
        profiler.step()
        assert len(tail(folder_of(profiler))) == 2
        assert stored(profiler).state == "running"
        with Profiler(tmp_path) as other:
            assert other.folder != profiler.folder
    assert stored(profiler).state == "finished"


@pytest.mark.parametrize("enabled", [True, False])
def test_used_in_the_wrong_order_or_switched_off_it_writes_nothing(
    tmp_path: Path, enabled: bool
) -> None:
    profiler = Profiler(tmp_path / "out", enabled=enabled)
    if not enabled:
        train(profiler)
    profiler.step()
    with profiler.stage("forward"):
        profiler.step()
    profiler.__exit__(None, None, None)
    assert profiler.folder is None
    assert list(tmp_path.iterdir()) == []


def test_an_exception_of_the_training_passes_and_is_stored(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)

    def fails() -> None:
        with profiler:
            profiler.step()
            with profiler.stage("forward"):
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fails()
    found = stored(profiler)
    assert found.state == "failed"
    assert found.summary is not None
    assert found.summary.error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_said(tmp_path: Path, loss: float) -> None:
    profiler = Profiler(tmp_path)
    train(profiler, loss=loss)
    assert {(step.loss, step.loss_finite) for step in stored(profiler).steps} == {(None, False)}


def test_a_folder_that_cannot_be_made_does_not_stop_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    profiler = Profiler(tmp_path / "file" / "out")
    train(profiler)
    assert profiler.folder is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the training continues, but the profile cannot be started" in caplog.text


def test_a_full_disk_loses_steps_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        profiler.step()
        monkeypatch.setattr(os, "write", lambda *_: _full())
        profiler.step()
        profiler.step()
        monkeypatch.undo()
        profiler.step()
    found = stored(profiler)
    assert [step.index for step in found.steps] == [0, 3]
    assert found.summary is not None
    assert found.summary.steps_lost == 2
    assert len(profiler.problems) == 1
    assert "No space left" in profiler.problems[0]


def test_a_disk_that_stays_full_leaves_an_incomplete_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        profiler.step()
        monkeypatch.setattr(TrainingFolder, "write", lambda *_: _full())
    assert not (folder_of(profiler) / SUMMARY_FILE).exists()
    assert stored(profiler).state == "incomplete"


def _full() -> int:
    raise OSError(28, "No space left on device")


def test_garbage_does_not_stop_the_training(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        with profiler.stage("forwar"):
            pass
        profiler.step(loss="low", samples=3)
        profiler.step(loss=object())
        _step: Any = profiler.step
        _step(samples="many")
        profiler.step(loss=1)
    found = stored(profiler)
    assert [step.loss for step in found.steps] == [None, None, None, 1.0]
    assert [step.samples for step in found.steps] == [3, None, None, None]
    assert "no stage 'forwar', which counts as other; did you mean 'forward'?" in profiler.problems
    assert found.summary is not None
    assert found.summary.problems == tuple(profiler.problems)


def test_a_profile_whose_folder_was_deleted_does_not_stop_the_training(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        profiler.step()
        for path in folder_of(profiler).iterdir():
            path.unlink()
        folder_of(profiler).rmdir()
        profiler.step()
    assert any("cannot be completed" in problem for problem in profiler.problems)


def test_a_fork_does_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        profiler.step()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            profiler.step()
            profiler.__exit__(None, None, None)
        assert stored(profiler).state == "running"
        profiler.step()
    assert [step.index for step in stored(profiler).steps] == [0, 1]


def test_a_second_thousand_of_steps_costs_no_memory(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        for _ in range(1000):
            profiler.step()
        held = {name: value for name, value in vars(profiler).items() if name != "problems"}
    assert not any(isinstance(value, list | dict) and len(value) > 10 for value in held.values())
    assert (folder_of(profiler) / STEPS_FILE).read_bytes().count(b"\n") == 1000


class Time:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(profiler, "time", fake)
    return fake


def test_an_inner_stage_does_not_count_for_the_outer_one(clock: Time) -> None:
    stages = StageClock()
    clock.now += 1
    stages.enter(Stage.FORWARD)
    clock.now += 1
    stages.enter(Stage.DATA)
    clock.now += 10
    stages.leave(Stage.DATA)
    clock.now += 2
    stages.leave(Stage.FORWARD)
    clock.now += 4
    assert stages.end_step() == (18, {Stage.DATA: 10, Stage.FORWARD: 3, Stage.OTHER: 5})
    clock.now += 50  # time between steps belongs to none
    stages.begin_step()
    clock.now += 3
    assert stages.end_step() == (3, {Stage.OTHER: 3})


def test_a_stage_that_is_open_at_the_end_of_a_step_continues(clock: Time) -> None:
    stages = StageClock()
    stages.enter(Stage.BACKWARD)
    clock.now += 2
    assert stages.end_step() == (2, {Stage.BACKWARD: 2, Stage.OTHER: 0})
    stages.begin_step()
    clock.now += 5
    stages.leave(Stage.BACKWARD)
    assert stages.end_step() == (5, {Stage.BACKWARD: 5, Stage.OTHER: 0})


def test_leaving_a_stage_that_is_not_open_changes_nothing(clock: Time) -> None:
    stages = StageClock()
    stages.leave(Stage.LOSS)
    stages.enter(Stage.LOSS)
    stages.enter(Stage.DATA)
    stages.leave(Stage.LOSS)
    clock.now += 1
    assert stages.end_step()[1][Stage.OTHER] == 1
