"""Findings and explanations of training profiles, and comparisons of trainings."""

from pathlib import Path
from typing import Any

from compilewatch.extras.profiles import training
from compilewatch.extras.profiles.cli.train import compared
from compilewatch.extras.profiles.training import Stage, Step


def step(index: int, **changes: Any) -> Step:
    stages = {Stage.FORWARD: 0.04, Stage.BACKWARD: 0.05, Stage.OTHER: 0.01}
    values: dict[str, Any] = {"at_seconds": index * 0.1, "cpu_seconds": 0.1, "stages": stages}
    values |= {"resident_bytes": 500_000_000, **changes}
    return Step(index=index, wall_seconds=sum(values["stages"].values()), **values)


def profile(*steps: Step, **changes: Any) -> training.TrainingProfile:
    config = training.TrainingConfig(
        id="x", started_at="", pid=1, python="3.11", cores=2, machine="", warm_up_steps=2
    )
    summary = training.TrainingSummary(id="x", state="finished", finished_at="", steps=len(steps))
    values: dict[str, Any] = {"state": "finished", "config": config, "summary": summary} | changes
    return training.TrainingProfile(path=Path("x"), steps=steps, **values)


def codes(found: training.TrainingProfile) -> list[str]:
    return [finding.code for finding in training.findings(found)]


def test_the_first_and_the_traced_steps_do_not_count() -> None:
    slow = step(0, stages={Stage.DATA: 9.0})
    traced = [step(index, stages={Stage.DATA: 9.0}, traced=True) for index in (2, 3)]
    found = profile(slow, step(1), *traced, *map(step, range(4, 42)))
    assert codes(found) == []
    said = " ".join(training.explanation(found))
    assert "backward dominates: 50% of 38 steady steps, 50 ms in the median step of 100 ms" in said
    assert "The first step took 9 s, 8.9 s more" in said


def test_what_deserves_attention_is_found() -> None:
    for change, code in (
        (lambda index: {"stages": {Stage.FORWARD: 0.06, Stage.DATA: 0.04}}, "data_bound"),
        (lambda index: {"stages": {Stage.FORWARD: 0.06, Stage.OPTIMIZER: 0.04}}, "optimizer_bound"),
        (lambda index: {"stages": {Stage.FORWARD: 0.06, Stage.OTHER: 0.04}}, "not_covered"),
        (lambda index: {"resident_bytes": 10**9 + index * 10**7}, "memory_grows"),
        (lambda index: {"resident_bytes": 10**9 if index < 3 else 2 * 10**9}, None),
        (lambda index: {"loss_finite": index != 7}, "loss_not_finite"),
        (lambda index: {"cpu_seconds": 0.01}, "waiting"),
        (lambda index: {"stages": {Stage.FORWARD: 0.1 if index % 2 else 0.2}}, "unstable"),
        (lambda index: {"overhead_seconds": 0.02}, "overhead"),
    ):
        found = profile(*(step(index, **change(index)) for index in range(40)))
        assert codes(found) == ([code] if code else [])


def test_what_is_not_finished_or_short_is_said_first() -> None:
    steps = tuple(map(step, range(20)))
    assert codes(profile(*steps, state="running", summary=None)) == ["running"]
    killed = profile(*steps, state="incomplete", summary=None, torn=True)
    assert codes(killed) == ["incomplete"]
    assert "20 steps; the last line was cut off" in training.findings(killed)[0].found
    lost = training.findings(profile(*map(step, range(10)), *map(step, range(13, 20))))
    assert [(finding.code, finding.found[:7]) for finding in lost] == [("steps_lost", "3 steps")]
    assert codes(profile()) == ["no_steps"]
    assert list(training.explanation(profile())) == [
        "No step was recorded, so there is nothing to explain."
    ]
    few = (step(index, stages={Stage.DATA: 1.0}) for index in range(6))
    assert codes(profile(*few)) == ["few_steps"]


def test_only_equal_losses_give_a_speed_up() -> None:
    eager, alike, other, wrong = (
        profile(step(0, loss=loss), step(1, loss=0.5)) for loss in (1.0, 1.0005, 1.1, float("nan"))
    )
    assert compared(alike, eager) == (True, 1.0)
    assert compared(other, eager) == compared(wrong, eager) == (False, None)
