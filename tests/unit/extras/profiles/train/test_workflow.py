"""Comparing trainings: a speed-up only where the losses are those of eager mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.profiles.train.records import TrainingOptions
from compilewatch.extras.profiles.train.workflow import Trained, profile_training, training_request
from compilewatch.launchers import Completed
from compilewatch.profiling import Profiler
from compilewatch.records import Phase, Request, Status, Tier
from tests import factories


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
