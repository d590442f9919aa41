"""The profiler without torch: its files, its clock, and that it never stops the training."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from compilewatch.extras.profiles import profiler as module
from compilewatch.extras.profiles.check import read_training, tail
from compilewatch.extras.profiles.profiler import StageClock, TrainingFolder
from compilewatch.extras.profiles.training import TrainingProfile
from compilewatch.profiling import Profiler, Stage


def stored(profiler: Profiler) -> TrainingProfile:
    assert profiler.folder is not None
    return read_training(profiler.folder)


def train(profiler: Profiler, batches: Iterable[object] = range(6)) -> None:
    with profiler:
        for _ in profiler.data(batches):
            with profiler.stage("forward"):
                pass
            profiler.step(loss=0.5, samples=8)


def test_every_step_is_stored_with_its_stages(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, trace_steps=0, model="Tiny", target="eager", settings={"lr": 0.1})
    train(profiler)
    found = stored(profiler)
    assert (found.state, profiler.problems) == ("finished", [])
    assert [step.index for step in found.steps] == list(range(6))
    assert set(found.steps[1].stages) == {Stage.DATA, Stage.FORWARD, Stage.OTHER}
    assert (found.steps[3].loss, found.steps[3].samples) == (0.5, 8)
    assert (found.config.model, found.config.settings) == ("Tiny", {"lr": 0.1})
    metrics, times = (
        msgspec.json.decode((found.path / name).read_bytes())
        for name in ("metrics.json", "stage_times.json")
    )
    assert (metrics["steps"], metrics["steady_steps"]) == (6, 4)
    assert sum(times["shares"].values()) == pytest.approx(1)


def test_another_process_sees_a_step_at_once_and_that_it_runs(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        for count in (1, 2):
            profiler.step()
            assert profiler.folder is not None
            assert len(tail(profiler.folder)) == count
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
    with profiler.stage("forward"):
        profiler.step()
    profiler.__exit__(None, None, None)
    assert profiler.folder is None
    assert list(tmp_path.iterdir()) == []


def test_an_exception_of_the_training_passes_and_is_stored(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    with pytest.raises(ZeroDivisionError):
        train(profiler, (1 / divisor for divisor in (1, 0)))
    found = stored(profiler)
    assert found.state == "failed"
    assert found.summary is not None
    assert found.summary.error == "ZeroDivisionError: division by zero"


def test_a_folder_that_cannot_be_made_does_not_stop_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    profiler = Profiler(tmp_path / "file" / "out")
    train(profiler)
    assert profiler.folder is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the training continues, but the profile cannot be started" in caplog.text


def _full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_loses_steps_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = Profiler(tmp_path)
    with profiler:
        profiler.step()
        monkeypatch.setattr(os, "write", _full)
        profiler.step()
        profiler.step()
        monkeypatch.undo()
        profiler.step()
    found = stored(profiler)
    assert [step.index for step in found.steps] == [0, 3]
    assert found.summary is not None
    assert found.summary.steps_lost == 2
    (problem,) = profiler.problems
    assert "No space left" in problem
    other = Profiler(tmp_path)
    with other:  # a disk that stays full leaves an incomplete profile
        monkeypatch.setattr(TrainingFolder, "write", _full)
    assert stored(other).state == "incomplete"


def test_garbage_does_not_stop_the_training(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    step: Any = profiler.step
    with profiler:
        with profiler.stage("forwar"):
            pass
        step(loss="low", samples=3)
        step(loss=object())
        step(samples="many")
        for loss in (float("nan"), float("inf"), 1):
            step(loss=loss)
    found = stored(profiler)
    assert [step.loss for step in found.steps] == [None] * 5 + [1.0]
    assert [step.loss_finite for step in found.steps] == [True] * 3 + [False, False, True]
    assert [step.samples for step in found.steps] == [3] + [None] * 5
    assert "no stage 'forwar', which counts as other; did you mean 'forward'?" in profiler.problems
    assert found.summary is not None
    assert found.summary.problems == tuple(profiler.problems)


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


def test_stages_are_exclusive_and_go_on_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    stages = StageClock()
    stages.leave(Stage.LOSS)  # which is not open
    for seconds, stage in ((1, Stage.FORWARD), (1, Stage.DATA)):
        clock.now += seconds
        stages.enter(stage)
    for seconds, stage in ((10, Stage.DATA), (2, Stage.FORWARD)):
        clock.now += seconds
        stages.leave(stage)
    clock.now += 4
    assert stages.end_step() == (18, {Stage.DATA: 10, Stage.FORWARD: 3, Stage.OTHER: 5})
    clock.now += 50  # time between steps belongs to none
    stages.begin_step()
    stages.enter(Stage.BACKWARD)
    clock.now += 2
    assert stages.end_step() == (2, {Stage.BACKWARD: 2, Stage.OTHER: 0})
    stages.begin_step()
    clock.now += 5
    stages.enter(Stage.DATA)  # left open by a generator: it ends with the one around it
    stages.leave(Stage.BACKWARD)
    clock.now += 1
    assert stages.end_step() == (6, {Stage.DATA: 0, Stage.BACKWARD: 5, Stage.OTHER: 1})
