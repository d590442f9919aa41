"""Findings and explanations of training profiles, and comparisons of trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.profiles.cli.train import Trained, profile_training, training_request
from compilewatch.extras.profiles.training import (
    FindingCode,
    OperatorStat,
    Stage,
    Step,
    TrainingConfig,
    TrainingOptions,
    TrainingProfile,
    TrainingSummary,
    explanation,
    findings,
    top_operators,
)
from compilewatch.launchers import Completed
from compilewatch.profiling import Profiler
from compilewatch.records import Phase, Request, Status, Tier
from tests import factories


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


class Launcher:
    """Writes a profile with the losses of each target instead of training."""

    name, jobs = "fake", 1

    def __init__(self, losses: dict[str, list[float]]) -> None:
        self._losses = losses

    def run(self, requests: list[Request], scratch: Path) -> list[Completed]:
        (request,) = requests
        assert request.work is not None
        target = Path(request.work.options["out"]).name
        losses = self._losses[target]
        with Profiler(request.work.options["out"], trace_steps=0, warm_up=0) as profiler:
            for loss in losses:
                profiler.step(loss=loss)
        status = Status.PASS if losses else Status.TIMEOUT
        phase = Phase.DONE if losses else Phase.PROFILE
        result = factories.result(status=status, phase=phase, detail="said", request=request)
        return [Completed(result=result)]

    def environments(self) -> tuple[()]:
        return ()


def trained(tmp_path: Path, losses: dict[str, list[float]]) -> dict[str, Trained]:
    options = TrainingOptions(out=str(tmp_path))
    requests = [(t, training_request(factories.request(), t, options)) for t in losses]
    launcher = Launcher(losses)
    found = profile_training(requests, launcher, tmp_path, _never)  # type: ignore[arg-type]
    return {each.target: each for each in found}


def _never(request: Request) -> None:
    raise AssertionError("only XLA trains alone")


def test_equal_losses_give_a_speed_up(tmp_path: Path) -> None:
    found = trained(tmp_path, {"eager": [1.0, 0.5], "inductor": [1.0005, 0.5]})
    assert found["inductor"].same_losses
    assert found["inductor"].speedup is not None
    assert found["eager"].speedup is None


@pytest.mark.parametrize("losses", [[1.1, 0.5], [float("nan"), 0.5]])
def test_other_losses_give_none(tmp_path: Path, losses: list[float]) -> None:
    found = trained(tmp_path, {"eager": [1.0, 0.5], "inductor": losses})
    assert found["inductor"].same_losses is False
    assert found["inductor"].speedup is None


def test_a_training_that_did_not_end_is_not_compared(tmp_path: Path) -> None:
    found = trained(tmp_path, {"eager": [1.0], "inductor": []})
    assert found["inductor"].status is Status.TIMEOUT
    assert found["inductor"].detail == "said (in profile)"
    assert found["inductor"].speedup is None


def test_a_request_trains_with_real_tensors_under_its_own_key() -> None:
    options = TrainingOptions(out="/out", steps=7)
    request = factories.request("org/model")
    eager = training_request(request, "eager", options)
    compiled = training_request(request, "inductor", options)
    assert (eager.tier, eager.target.mode.value) == (Tier.REAL, "train")
    assert eager.work is not None
    assert compiled.work is not None
    assert eager.work.name == "train"
    assert (eager.work.options["compiled"], compiled.work.options["compiled"]) == (False, True)
    assert eager.work.options["out"] == "/out/org--model/eager"
    assert eager.key != compiled.key
