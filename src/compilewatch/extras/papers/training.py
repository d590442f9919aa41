"""The execution of one version of a paper's code: a brief training, here or on an executor."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from compilewatch.config.settings import Settings
from compilewatch.errors import ExecutorError, TrainiumError
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.instance import OnDemand
from compilewatch.extras.executor.protocol import FailureCode, JobRequest, JobState, JobStatus
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.papers.execution import (
    CodeRunner,
    last_line,
    one_line,
    run_training,
    trained_numbers,
    training_files,
)
from compilewatch.extras.papers.records import (
    CodeVersion,
    FindingClass,
    PaperFinding,
    PipelineStage,
    StageContent,
    StageResult,
)
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PROFILER_FOLDER, PaperFolder
from compilewatch.records.digests import digest

WAIT_SECONDS = 1800.0
"""How long a job may wait in the executor's queue, beside the time that it runs."""


class Training(Protocol):
    """Trains a version within limits."""

    limits: SandboxLimits

    @property
    def identity(self) -> str: ...

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageContent: ...


@dataclass(kw_only=True)
class DeviceTime:
    """The time of training that all papers of a run may use; safe to use from several threads.

    A training is counted with its deadline before it begins, and with its duration after it.
    `used` is what earlier runs have used. `most` None: no limit.
    """

    most: float | None
    used: float = 0.0
    reserved: float = field(default=0.0, init=False)
    _settled: threading.Condition = field(default_factory=threading.Condition, init=False)

    def reserve(self, seconds: float) -> str:
        """Count the deadline of a training. Returns why it must not begin, else nothing."""
        with self._settled:
            while self.most is not None and self.used + self.reserved + seconds > self.most:
                if not self.reserved or self.used + seconds > self.most:
                    return (
                        f"{self.used:.0f} of {self.most:g} s of training are used, and this may "
                        f"take {seconds:g} s"
                    )
                self._settled.wait()  # a training may take less than was reserved for it
            self.reserved += seconds
            return ""

    def settle(self, reserved: float, used: float) -> None:
        """Count what a training took in place of its deadline."""
        with self._settled:
            self.reserved -= reserved
            self.used += used
            self._settled.notify_all()


def seconds_of(results: Iterable[StageResult]) -> float:
    """The time of all trainings in a journal."""
    executed = (result for result in results if result.stage is PipelineStage.EXECUTE)
    return sum(result.numbers.get("execution_time_seconds", 0.0) for result in executed)


@dataclass(kw_only=True)
class LimitedTraining:
    """A training that begins only if the time of the run is sufficient for its deadline."""

    training: Training
    time: DeviceTime

    @property
    def identity(self) -> str:
        return self.training.identity

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageContent:
        most = self.training.limits.deadline_seconds
        if over := self.time.reserve(most):
            kind = FindingClass.BUDGET
            return StageContent(
                findings=(PaperFinding(kind=kind, stage=PipelineStage.EXECUTE, evidence=over),)
            )
        used = most  # if it is interrupted
        try:
            ran = self.training.run(generation, folder)
            used = ran.numbers.get("execution_time_seconds", 0.0)
            return ran
        finally:
            self.time.settle(most, used)


@dataclass(kw_only=True)
class LocalTraining:
    """Trains briefly on the CPU, in the sandbox of this machine."""

    runner: CodeRunner
    limits: SandboxLimits

    @property
    def identity(self) -> str:
        return digest(["local", self.limits.deadline_seconds, 1])

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageContent:
        ran = run_training(self.runner, generation, self.limits)
        return _stored(ran, folder)


@dataclass(kw_only=True)
class RemoteTraining:
    """Trains briefly as a job of an executor, such as one on a Trainium instance.

    `instance` is started before the first job; None: it is not ours to start.
    """

    settings: Settings
    limits: SandboxLimits
    instance: OnDemand | None = None

    @property
    def identity(self) -> str:
        return digest([self.settings.of(ExecutorSettings).endpoint, self.limits, 1])

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageContent:
        request = JobRequest(
            files=training_files(generation),
            limits=self.limits,
            profile=True,
            paper_id=generation.paper[:200],
        )
        key = f"paper-{digest([generation.id, request, _attempts(generation, folder)])[:40]}"
        try:
            if self.instance is not None:
                self.instance.start()
            with client_of(self.settings) as client:
                client.submit(key, request)
                wait = self.limits.deadline_seconds + WAIT_SECONDS
                state = client.wait(key, timeout_seconds=wait)
                stdout, stderr = client.whole_log(key), client.whole_log(key, stream="stderr")
                files = _profiles(client, key, state, folder)
        except (ExecutorError, TrainiumError) as error:
            return StageContent(not_run=str(error))
        ran = job_ran(state, stdout, stderr)
        hours = ran.numbers.get("execution_time_seconds", 0.0) / 3600
        if usd_per_hour := self.settings.of(PapersSettings).usd_per_hour:
            ran.numbers["estimated_cost_usd"] = hours * usd_per_hour
        logs = tuple(
            folder.write(PipelineStage.EXECUTE, data, ".log", what=what)
            for what, data in (("stdout", stdout), ("stderr", stderr))
            if data
        )
        return _stored(msgspec.structs.replace(ran, files=(*files, *logs)), folder)


def _attempts(generation: CodeVersion, folder: PaperFolder) -> int:
    """How often a limit or a fault has ended the training of this version.

    Each time is a new job: an executor never runs a job again that has ended.
    """
    lines = [r for r in folder.journal() if r.stage is PipelineStage.EXECUTE and r.findings]
    return sum(line.generation == generation.id and not line.is_lasting for line in lines)


def client_of(settings: Settings) -> ExecutorClient:
    """The client of the executor that the settings name. Raises ExecutorError."""
    own = settings.of(ExecutorSettings)
    token = own.token
    if not token and own.token_file:
        try:
            token = Path(own.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ExecutorError(f"{own.token_file} cannot be read: {error.strerror}") from None
    certificates = Path(own.certificates) if own.certificates else None
    return ExecutorClient(own.endpoint, token, certificates=certificates)


def _profiles(
    client: ExecutorClient, key: str, state: JobState, folder: PaperFolder
) -> tuple[str, ...]:
    """Store what the job left behind, below `profiler_results`."""
    if state.result is None:
        return ()
    return tuple(
        folder.write_named(f"{PROFILER_FOLDER}/{key}/{one.name}", client.artifact(key, one.name))
        for one in state.result.artifacts
        if not (folder.path / PROFILER_FOLDER / key / one.name).exists()
    )


def job_ran(state: JobState, stdout: bytes, stderr: bytes) -> StageContent:
    """What an ended job showed. A status of 0 without numbers is no success."""
    result = state.result
    numbers = trained_numbers(stdout)
    finding = _job_finding(state, stderr)
    if finding is None and "training_loss" not in numbers:
        said = "the job is done and reported no training_loss"
        finding = PaperFinding(
            kind=FindingClass.CRASHED, stage=PipelineStage.EXECUTE, evidence=said
        )
    numbers["execution_success"] = float(finding is None)
    if result is not None:
        numbers["execution_time_seconds"] = result.duration_seconds
        if result.peak_memory_bytes is not None:
            numbers["peak_memory_mb"] = result.peak_memory_bytes / MIB
    where = f"job {state.key}, attempt {state.attempt}, {state.state}; synthetic data"
    labels = {"where": "executor"}
    found = (finding,) if finding else ()
    return StageContent(findings=found, numbers=numbers, detail=where, labels=labels)


def _job_finding(state: JobState, stderr: bytes) -> PaperFinding | None:
    if state.state is JobStatus.DONE:
        return None
    kinds = {
        FailureCode.DEADLINE: FindingClass.TIMED_OUT,
        FailureCode.MEMORY: FindingClass.OOM,
        FailureCode.EXIT_STATUS: FindingClass.WRONG_IN_EAGER,
        FailureCode.CANCELLED: FindingClass.LOST,
        FailureCode.INTERRUPTED: FindingClass.LOST,
        FailureCode.NOT_STARTED: FindingClass.LOST,
    }
    kind = kinds.get(state.failure, FindingClass.CRASHED) if state.failure else FindingClass.LOST
    said = state.message or last_line(stderr)
    return PaperFinding(
        kind=kind, stage=PipelineStage.EXECUTE, evidence=one_line(f"{state.state}: {said}")
    )


class _Execution(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int
    detail: str
    findings: tuple[PaperFinding, ...]
    metrics: dict[str, float]


def _stored(ran: StageContent, folder: PaperFolder) -> StageContent:
    """A run with a file that says what it showed."""
    if ran.not_run:
        return ran
    about = _Execution(
        schema_version=1, detail=ran.detail, findings=ran.findings, metrics=ran.numbers
    )
    data = msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"
    name = folder.write(PipelineStage.EXECUTE, data, ".json", what="execution")
    return msgspec.structs.replace(ran, files=(*ran.files, name))
