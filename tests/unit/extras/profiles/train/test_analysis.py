"""Findings and explanations of training profiles, from steps that the tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.profiles.train.analysis import explanation, findings, top_operators
from compilewatch.extras.profiles.train.records import (
    FindingCode,
    OperatorStat,
    Stage,
    Step,
    TrainingConfig,
    TrainingProfile,
    TrainingSummary,
)


def step(index: int, **changes: object) -> Step:
    stages = {Stage.FORWARD: 0.04, Stage.BACKWARD: 0.05, Stage.OTHER: 0.01}
    values: dict[str, object] = {
        "at_seconds": index * 0.1,
        "cpu_seconds": 0.1,
        "stages": stages,
        "resident_bytes": 500_000_000,
        **changes,
    }
    total = sum(values["stages"].values())  # type: ignore[attr-defined]
    return Step(index=index, wall_seconds=total, **values)  # type: ignore[arg-type]


def profile(*steps: Step, **changes: object) -> TrainingProfile:
    config = TrainingConfig(
        id="x", started_at="", pid=1, python="3.11", cores=2, machine="", warm_up_steps=2
    )
    summary = TrainingSummary(id="x", state="finished", finished_at="", steps=len(steps), files={})
    values: dict[str, object] = {"state": "finished", "config": config, "summary": summary}
    return TrainingProfile(path=Path("x"), steps=steps, **values | changes)  # type: ignore[arg-type]


def codes(found: TrainingProfile) -> list[FindingCode]:
    return [each.code for each in findings(found)]


def test_a_calm_training_has_no_findings() -> None:
    assert findings(profile(*map(step, range(40)))) == ()


def test_the_first_steps_do_not_count() -> None:
    slow = step(0, stages={Stage.DATA: 9.0})
    found = profile(slow, *map(step, range(1, 40)))
    assert codes(found) == []
    said = " ".join(explanation(found))
    assert "backward dominates: 50% of 38 steady steps, 50 ms in the median step of 100 ms" in said
    assert "The first step took 9 s, 8.9 s more" in said


def test_traced_steps_do_not_count() -> None:
    slow = [step(index, stages={Stage.DATA: 9.0}, traced=True) for index in (2, 3)]
    assert codes(profile(*map(step, (0, 1)), *slow, *map(step, range(4, 20)))) == []


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (Stage.DATA, FindingCode.DATA_BOUND),
        (Stage.OPTIMIZER, FindingCode.OPTIMIZER_BOUND),
        (Stage.OTHER, FindingCode.NOT_COVERED),
    ],
)
def test_a_stage_that_takes_too_much_is_found(stage: Stage, code: FindingCode) -> None:
    stages = {Stage.FORWARD: 0.06, stage: 0.04}
    assert codes(profile(*(step(index, stages=stages) for index in range(20)))) == [code]


def test_growing_memory_is_found_and_a_jump_at_the_start_is_not() -> None:
    grows = [step(index, resident_bytes=10**9 + index * 10**7) for index in range(40)]
    assert codes(profile(*grows)) == [FindingCode.MEMORY_GROWS]
    jumps = [step(index, resident_bytes=10**9 if index < 3 else 2 * 10**9) for index in range(40)]
    assert codes(profile(*jumps)) == []


def test_a_loss_that_is_not_finite_is_found() -> None:
    lost = step(7, loss_finite=False)
    assert codes(profile(*map(step, range(7)), lost)) == [FindingCode.LOSS_NOT_FINITE]


def test_waiting_is_found_on_the_cpu() -> None:
    assert codes(profile(*(step(index, cpu_seconds=0.01) for index in range(20)))) == [
        FindingCode.WAITING
    ]


def test_steps_that_vary_are_found() -> None:
    stages = [{Stage.FORWARD: 0.1 if index % 2 else 0.2} for index in range(20)]
    found = findings(profile(*(step(i, stages=each) for i, each in enumerate(stages))))
    assert [each.code for each in found] == [FindingCode.UNSTABLE]
    assert "0.67 times the median" in found[0].found


def test_too_few_steps_are_no_ground_for_anything_else() -> None:
    stages = {Stage.DATA: 1.0}
    assert codes(profile(*(step(index, stages=stages) for index in range(6)))) == [
        FindingCode.FEW_STEPS
    ]


def test_what_is_not_finished_is_said_first() -> None:
    steps = tuple(map(step, range(20)))
    running = profile(*steps, state="running", summary=None)
    assert codes(running) == [FindingCode.RUNNING]
    killed = profile(*steps, state="incomplete", summary=None, torn=True)
    assert codes(killed) == [FindingCode.INCOMPLETE]
    assert "after 20 steps; the last line was cut off" in findings(killed)[0].found


def test_steps_that_were_lost_are_counted() -> None:
    found = findings(profile(*map(step, range(10)), *map(step, range(13, 20))))
    assert [each.code for each in found] == [FindingCode.STEPS_LOST]
    assert "3 steps" in found[0].found


def test_no_step_is_a_finding_and_explains_nothing() -> None:
    assert codes(profile()) == [FindingCode.NO_STEPS]
    assert explanation(profile()) == ("No step was recorded, so there is nothing to explain.",)


def test_steps_and_stages_are_no_operators() -> None:
    rows = tuple(
        OperatorStat(
            name=name,
            calls=1,
            self_cpu_time_us=time,
            cpu_time_total_us=time,
            self_device_time_us=0,
            device_time_total_us=0,
            self_cpu_memory_bytes=0,
            cpu_memory_bytes=0,
        )
        for name, time in (("training step", 90.0), ("aten::mm", 5.0), ("aten::add", 7.0))
    )
    found = profile(*map(step, range(9)), operators=rows)
    assert [row.name for row in top_operators(found)] == ["aten::add", "aten::mm"]
