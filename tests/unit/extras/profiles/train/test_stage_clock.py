"""The exclusive stages of a step, on a clock that the tests move."""

from __future__ import annotations

import pytest

from compilewatch.extras.profiles.train import profiler
from compilewatch.extras.profiles.train.profiler import StageClock
from compilewatch.extras.profiles.train.records import Stage


class Time:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(profiler, "time", fake)
    return fake


def test_stages_and_the_rest_add_up_to_the_step(time: Time) -> None:
    stages = StageClock()
    time.now += 1
    stages.enter(Stage.FORWARD)
    time.now += 4
    stages.leave(Stage.FORWARD)
    time.now += 2
    assert stages.end_step() == (7, {Stage.FORWARD: 4, Stage.OTHER: 3})


def test_an_inner_stage_does_not_count_for_the_outer_one(time: Time) -> None:
    stages = StageClock()
    stages.enter(Stage.FORWARD)
    time.now += 1
    stages.enter(Stage.DATA)
    time.now += 10
    stages.leave(Stage.DATA)
    time.now += 2
    stages.leave(Stage.FORWARD)
    assert stages.end_step() == (13, {Stage.DATA: 10, Stage.FORWARD: 3, Stage.OTHER: 0})


def test_time_between_steps_belongs_to_none(time: Time) -> None:
    stages = StageClock()
    time.now += 1
    stages.end_step()
    time.now += 50
    stages.begin_step()
    time.now += 3
    assert stages.end_step() == (3, {Stage.OTHER: 3})


def test_a_stage_that_is_open_at_the_end_of_a_step_continues(time: Time) -> None:
    stages = StageClock()
    stages.enter(Stage.BACKWARD)
    time.now += 2
    assert stages.end_step() == (2, {Stage.BACKWARD: 2, Stage.OTHER: 0})
    stages.begin_step()
    time.now += 5
    stages.leave(Stage.BACKWARD)
    assert stages.end_step() == (5, {Stage.BACKWARD: 5, Stage.OTHER: 0})


def test_leaving_a_stage_that_is_not_open_changes_nothing(time: Time) -> None:
    stages = StageClock()
    stages.leave(Stage.LOSS)
    stages.enter(Stage.LOSS)
    stages.enter(Stage.DATA)
    stages.leave(Stage.LOSS)
    time.now += 1
    assert stages.end_step()[1][Stage.OTHER] == 1
