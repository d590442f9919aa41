"""The parts of a profile: what is to be measured, the servers, and the subjects that run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from compilewatch.contract.targets import CPU, default_environment
from compilewatch.environments import Environments
from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer import messages as orders
from compilewatch.extras.profiles.infer.analysis import Measurement
from compilewatch.extras.profiles.infer.records import (
    EAGER,
    BatchPoint,
    InferenceOptions,
    Machine,
    target_kind,
)
from compilewatch.extras.profiles.infer.server_client import ProfileServerClient, SubjectError
from compilewatch.records import DEFAULT_ENVIRONMENT, ConfigBuild, Record, Request, Status
from compilewatch.records.digests import digest
from compilewatch.sources.labelled import LabelledTexts

TARGETS = (EAGER, "inductor", "xla")
"""What inference can be profiled on."""

R = TypeVar("R", bound=Record)


class ProfileObserver(Protocol):
    """Receives the progress of a profile."""

    def on_step(self, what: str, done: float) -> None:
        """Called before each step, with the share of the profile that is done."""
        ...


class SilentProfile:
    """An observer that ignores everything."""

    def on_step(self, what: str, done: float) -> None:
        del what, done


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to profile. `request` is of the real tier; its target does not matter."""

    request: Request
    options: InferenceOptions
    trace: bool = False
    data: LabelledTexts | None = None


def environment_of(target: str) -> str:
    """The environment in which a target is profiled: the one that it names, or its default."""
    kind, _, named = target.partition("@")
    return named or (DEFAULT_ENVIRONMENT if kind == EAGER else default_environment(kind))


def canonical(target: str) -> str:
    """The name of a target without an environment that is its default one."""
    kind = target_kind(target)
    return kind if environment_of(target) == environment_of(kind) else target


class Profilers:
    """The profiling servers of some targets, one for each environment. A context manager."""

    def __init__(
        self, targets: Sequence[str], environments: Environments, device: str = CPU
    ) -> None:
        names = dict.fromkeys(environment_of(target) for target in targets)
        self._stack = ExitStack()
        self._of: dict[str, ProfileServerClient] = {}
        try:
            for name in names:
                here = (target_kind(t) for t in targets if environment_of(t) == name)
                inside = [kind for kind in here if kind != EAGER]
                started = ProfileServerClient(name, inside, environments, device)
                self._of[name] = self._stack.enter_context(started)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def of(self, target: str) -> ProfileServerClient:
        return self._of[environment_of(target)]


@dataclass(kw_only=True)
class RunningSubject:
    """A subject that runs, with what is known of it so far."""

    number: int
    target: str
    profiler: ProfileServerClient
    folder: Path
    prepared: orders.Prepared | None = None
    point: BatchPoint
    wall: list[tuple[float, ...]] = field(default_factory=list)
    cpu: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.point.status is Status.PASS

    def ask(self, order: orders.ProfileCommand, kind: type[R]) -> R:
        return self.profiler.ask(order, kind)

    def failed(self, error: SubjectError) -> None:
        found = error.failure
        self.point = msgspec.structs.replace(
            self.point, status=found.status, phase=found.phase, detail=found.detail
        )

    def measurement(self) -> Measurement:
        return Measurement(wall=self.wall, cpu=self.cpu)


def profile_key(job: Job, machine: Machine) -> str:
    """A digest of model, options and machine, but not of the software.

    The software is what two profiles with one key are compared for. The content of a person's own
    module is left out for the same reason.
    """
    model, build = job.request.model, job.request.model.build
    config = build.config_sha256 if isinstance(build, ConfigBuild) else ""
    facts = [model.name, model.revision, config, job.options, machine]
    return digest(msgspec.to_builtins(facts))


def check_targets(targets: Sequence[str], device: str = CPU) -> None:
    """Raises UsageError for a target that cannot be profiled, or that is named twice."""
    for name in targets:
        kind, at, environment = name.partition("@")
        if kind not in TARGETS:
            hint = (
                ": profile it on an instance with `compilewatch profile neuron`"
                if kind == "neuron"
                else f"; known: {', '.join(TARGETS)}, each with @ENVIRONMENT"
            )
            raise UsageError(f"inference on {name!r} cannot be profiled here{hint}")
        if at and not environment:
            raise UsageError(f"{name!r} names no environment, such as {kind}@torch-2.13")
        if kind == "xla" and device != CPU:
            raise UsageError(f"xla is profiled on the CPU only: leave out --device {device}")
    if len({canonical(name) for name in targets}) != len(targets) or not targets:
        raise UsageError("--targets names each target once, such as eager,inductor")
