"""Trains models for a profile, each on each target in a child of its own, one after the other."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from compilewatch.api.worker_client import call_worker
from compilewatch.environments import Environments, last_line, oneshot
from compilewatch.errors import CompilerError, InputsError, StoreError
from compilewatch.extras.profiles.infer.messages import CapturedProfile, NeuronCapture
from compilewatch.extras.profiles.train import analysis
from compilewatch.extras.profiles.train.records import (
    ProfileFinding,
    StageTimes,
    TrainingMetrics,
    TrainingOptions,
)
from compilewatch.extras.profiles.train.store import find_training, read_training
from compilewatch.files import safe_name
from compilewatch.launchers import Launcher
from compilewatch.records import Depth, Mode, Request, Result, Status, Tier, Work

EAGER, XLA = "eager", "xla"

SAME_LOSS = 1e-3
"""Relative difference of the losses of the first steps up to which a speed-up is stated."""

COMPARED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model on one target. `speedup` is None unless the losses match those of eager mode."""

    model: str
    target: str
    status: Status
    detail: str
    folder: Path | None = None
    metrics: TrainingMetrics | None = None
    times: StageTimes | None = None
    losses: tuple[float | None, ...] = ()
    findings: tuple[ProfileFinding, ...] = ()
    speedup: float | None = None
    same_losses: bool | None = None


def training_request(request: Request, target: str, options: TrainingOptions) -> Request:
    """Return the request that trains instead of evaluating; `target` may be `eager`."""
    out = str(Path(options.out) / safe_name(request.model.name) / target)
    own = msgspec.structs.replace(options, out=out, compiled=target != EAGER)
    return msgspec.structs.replace(
        request,
        target=msgspec.structs.replace(request.target, mode=Mode.TRAIN),
        key=f"train-{safe_name(request.model.name)}-{target}",
        tier=Tier.REAL,
        depth=request.depth or Depth.FULL,
        keep_artifacts=False,
        work=Work(name="train", options=msgspec.to_builtins(own)),
    )


def profile_training(
    requests: Sequence[tuple[str, Request]],
    launcher: Launcher,
    scratch: Path,
    train_alone: Callable[[Request], Result],
) -> Iterator[Trained]:
    """Run the requests, given with their targets, and yield each with what was measured.

    `train_alone` runs those that a warm server's child cannot run.
    """
    eager: dict[str, Trained] = {}
    for target, request in requests:
        if target == XLA:
            result = train_alone(request)
        else:
            (completed,) = launcher.run([request], scratch)
            result = completed.result
        trained = _trained(target, result)
        if target == EAGER:
            eager[trained.model] = trained
        yield _compared(trained, eager.get(trained.model))


def _trained(target: str, result: Result) -> Trained:
    assert result.request.work is not None
    where = "" if result.status is Status.PASS else f" (in {result.phase})"
    trained = Trained(
        model=result.request.model.name,
        target=target,
        status=result.status,
        detail=f"{result.detail}{where}",
    )
    folders = find_training(Path(result.request.work.options["out"]))
    if not folders:
        return trained
    try:
        profile = read_training(folders[0])
    except StoreError as error:
        return replace(trained, detail=str(error))
    return replace(
        trained,
        folder=folders[0],
        metrics=analysis.metrics_of(profile),
        times=analysis.times_of(profile),
        losses=tuple(step.loss for step in profile.steps[:COMPARED_STEPS]),
        findings=analysis.findings(profile),
    )


def _compared(trained: Trained, eager: Trained | None) -> Trained:
    """Add the speed-up over eager mode, if both trained and their first losses are the same."""
    if eager is None or trained is eager or {trained.status, eager.status} != {Status.PASS}:
        return trained
    if trained.times is None or eager.times is None:
        return trained
    pairs = list(zip(eager.losses, trained.losses, strict=False))
    same = bool(pairs) and all(
        a is not None and b is not None and math.isclose(a, b, rel_tol=SAME_LOSS) for a, b in pairs
    )
    speedup = None
    if same and trained.times.step is not None and eager.times.step is not None:
        speedup = eager.times.step.median / trained.times.step.median
    return replace(trained, speedup=speedup, same_losses=same)


def train_alone(environments: Environments, request: Request) -> Result:
    """Train for a profile in an interpreter of its own, which no server has warmed up.

    Raises InputsError if it does not end within the deadline of all phases.
    """
    try:
        return call_worker(environments, "train", request, Result)
    except subprocess.TimeoutExpired:
        seconds = request.deadlines.total_seconds
        raise InputsError(
            f"{request.model.name}: the training did not end within {seconds:g} s: raise "
            "deadlines.total_seconds or train fewer steps"
        ) from None


def capture_on_neuron(environments: Environments, order: NeuronCapture) -> CapturedProfile:
    """Run `neuron-profile` of `worker.process.oneshot`, with the variables of this shell.

    Raises CompilerError with the message of the failure.
    """
    chosen = environments.interpreter(order.request.target.environment)
    seconds = order.request.deadlines.total_seconds
    try:
        done = oneshot(chosen, "neuron-profile", msgspec.json.encode(order), seconds)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"the capture did not end within {seconds:g} s") from None
    if done.returncode != 0:
        raise CompilerError(f"{order.request.model.name}: {last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=CapturedProfile)
