"""Runs generated code: in the sandbox of this machine, or as a job of an executor. Nowhere else.

Where there is no sandbox, the stage is *not run*, with the reason.
"""

from __future__ import annotations

import functools
import secrets
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import Meta

from compilewatch.config import Settings
from compilewatch.errors import ExecutorError, SandboxError, TrainiumError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import (
    FailureCode,
    JobRequest,
    JobState,
    JobStatus,
    read_points,
    summary,
)
from compilewatch.extras.executor.sandbox.policy import (
    MIB,
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
)
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.executor.trainium import OnDemand
from compilewatch.extras.papers.records import (
    CodeVersion,
    FindingClass,
    PaperFinding,
    PaperPlan,
    PipelineStage,
    StageContent,
    StageResult,
)
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PROFILER_FOLDER, PaperFolder
from compilewatch.records import digest

SCRIPTS = Path(__file__).with_name("worker")
SCRIPT = "main.py"
MODULE = "generated.py"
SHARED = "challenge.py"

EAGER_LIMITS = SandboxLimits(
    deadline_seconds=120.0,
    memory_bytes=4 * 2**30,
    disk_bytes=64 * MIB,
    output_bytes=32 * MIB,
    log_bytes=MIB,
)
MAX_EVIDENCE = 400

OUT_OF_MEMORY = ("MemoryError", "DefaultCPUAllocator")
"""What Python and torch's allocator say when the limit of memory is reached."""


MEASURED = frozenset(
    {"execution_time_seconds", "execution_success", "peak_memory_mb", "estimated_cost_usd"}
)
"""Numbers of an execution that the code that ran cannot set."""


class CodeRunner(Protocol):
    """Runs `python main.py` beside some files, confined."""

    def check(self) -> None:
        """Raises SandboxError if code cannot be confined here, or has no torch there."""
        ...

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        """Run it and wait for its end. Raises SandboxError; whatever the code does is a result."""
        ...


class SandboxRunner:
    """The sandbox of this machine."""

    def __init__(self, python: str | None = None) -> None:
        self._python = python

    def check(self) -> None:
        sandbox.check(self._python)
        _import_torch(self._python)

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        return sandbox.run(
            ["python", SCRIPT],
            files=files,
            limits=limits,
            variables={"OMP_NUM_THREADS": "2"},
            python=self._python,
        )


@functools.cache
def _import_torch(python: str | None) -> None:
    """Raises SandboxError unless torch can be imported inside: else each paper would be blamed."""
    result = sandbox.run(["python", "-c", "import torch"], limits=EAGER_LIMITS, python=python)
    if result.succeeded:
        return
    message = last_line(result.stderr or result.detail.encode())
    raise SandboxError(
        f"torch cannot be imported in the sandbox ({message}): the environment of "
        f"{python or sys.executable} is not visible there or is broken: run `make setup`"
    )


_Kind = TypeVar("_Kind", "_State", "_Compared")


_Count = Annotated[int, Meta(ge=0, le=2**53)]
"""Of any length, a number could not become a float."""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    line: _Count | None = None


class _Check(msgspec.Struct, frozen=True):
    claim: str
    ok: bool = False
    why: str = ""


class _State(msgspec.Struct, frozen=True):
    """`out/result.json` of `extras/papers/worker/eager.py`, as untrusted data.

    `returned` is what submodules computed, one for each binding; see `compare`.
    """

    phase: str = ""
    parameters: _Count | None = None
    eager_seconds: float | None = None
    loss: float | None = None
    error: _Error | None = None
    returned: msgspec.Raw = msgspec.Raw(b"[]")


class _Compared(msgspec.Struct, frozen=True):
    """`out/result.json` of `worker/reference.py`, which no generated code has touched."""

    checks: tuple[_Check, ...] = ()


def run_eager(
    runner: CodeRunner,
    generation: CodeVersion,
    plan: PaperPlan,
    limits: SandboxLimits = EAGER_LIMITS,
) -> tuple[StageContent, StageContent]:
    """Run the code in eager mode; returns what eager mode and what the formulas showed."""
    formulas = {claim.id: claim.formula for claim in plan.claims if claim.formula}
    # Drawn for each run, so that no code can hold prepared results.
    asked: dict[str, Any] = {"seed": secrets.token_hex(8), "bindings": generation.bindings}
    files = _scripts("eager.py")
    files |= {MODULE: generation.source, "request.json": _json(asked)}
    try:
        runner.check()
        result = runner.run(files, limits)
        if result.ending is SandboxEnding.NOT_STARTED:
            return StageContent(not_run=result.detail), StageContent(not_run=result.detail)
        state = _decoded(result, _State)
        eager = StageContent(
            findings=tuple(_eager_findings(result, state)),
            numbers=_numbers(result, state),
            detail=f"{state.parameters:,} parameters" if state.parameters is not None else "",
        )
        if eager.findings or state.phase != "done":
            return eager, StageContent(not_run="the code does not run in eager mode")
        if not formulas:
            return eager, StageContent(detail="the plan gives no formula to compute")
        returned = {name: data for name, data in result.files.items() if name != "result.json"}
        asked |= {"formulas": formulas, "returned": state.returned}
        return eager, compare(runner, asked, returned, limits)
    except SandboxError as error:
        return StageContent(not_run=str(error)), StageContent(not_run=str(error))


def compare(
    runner: CodeRunner, asked: dict[str, Any], returned: Mapping[str, bytes], limits: SandboxLimits
) -> StageContent:
    """Compare what submodules returned with the formulas, in a sandbox without generated code.

    The formulas are text of a model too, so they are computed within limits. Raises SandboxError.
    """
    formulas = asked["formulas"]
    files = {**returned, **_scripts("reference.py"), "request.json": _json(asked)}
    result = runner.run(files, limits)
    if result.ending is SandboxEnding.NOT_STARTED:
        return StageContent(not_run=result.detail)
    return StageContent(
        findings=tuple(_formula_findings(result, formulas)),
        numbers={"formulas": float(len(formulas))},
        detail=f"formulas computed apart from the code: {len(formulas)}",
    )


def _scripts(name: str) -> dict[str, str | bytes]:
    return {SCRIPT: (SCRIPTS / name).read_bytes(), SHARED: (SCRIPTS / SHARED).read_bytes()}


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def run_training(
    runner: CodeRunner, generation: CodeVersion, limits: SandboxLimits
) -> StageContent:
    """Train briefly in the sandbox of this machine."""
    files = training_files(generation)
    try:
        runner.check()
        result = runner.run(files, limits)
    except SandboxError as error:
        return StageContent(not_run=str(error))
    if result.ending is SandboxEnding.NOT_STARTED:
        return StageContent(not_run=result.detail)
    return trained(result)


def training_files(generation: CodeVersion) -> dict[str, str]:
    """The files of a training job, whose entry is `main.py`."""
    return {
        SCRIPT: (SCRIPTS / "train.py").read_text(encoding="utf-8"),
        MODULE: generation.source,
    }


def trained(result: SandboxResult) -> StageContent:
    """The numbers and findings of a training. An exit status of 0 without numbers is no success."""
    numbers = trained_numbers(result.stdout)
    finding = ending_of(result, PipelineStage.EXECUTE) or _failed_exit(
        result, PipelineStage.EXECUTE
    )
    if finding is None and "training_loss" not in numbers:
        text = "it ended with status 0 and reported no training_loss"
        finding = PaperFinding(
            kind=FindingClass.CRASHED, stage=PipelineStage.EXECUTE, evidence=text
        )
    numbers["execution_time_seconds"] = result.duration_seconds
    numbers["execution_success"] = float(finding is None)
    if result.peak_memory_bytes is not None:
        numbers["peak_memory_mb"] = result.peak_memory_bytes / MIB
    text = "trained on synthetic data in the sandbox of this machine (CPU)"
    labels = {"where": "sandbox"}
    findings = (finding,) if finding else ()
    return StageContent(findings=findings, numbers=numbers, detail=text, labels=labels)


def trained_numbers(stdout: bytes) -> dict[str, float]:
    """The last value of each name that a training printed, and its first and last loss.

    They are claims of the code: names of what is measured from outside are left out.
    """
    points, _ = read_points(stdout)
    numbers = {name: value for name, value in summary(points).items() if name not in MEASURED}
    losses = [p.values["training_loss"] for p in points if "training_loss" in p.values]
    if losses:
        numbers |= {"initial_training_loss": losses[0], "final_training_loss": losses[-1]}
    return numbers


def ending_of(result: SandboxResult, stage: PipelineStage) -> PaperFinding | None:
    """The finding of a run that did not end by itself."""
    kinds = {
        SandboxEnding.DEADLINE: FindingClass.TIMED_OUT,
        SandboxEnding.MEMORY: FindingClass.OOM,
        SandboxEnding.DISK_FILES: FindingClass.CRASHED,
        SandboxEnding.CANCELLED: FindingClass.LOST,
    }
    if result.ending in kinds:
        kind = kinds[result.ending]
        return PaperFinding(kind=kind, stage=stage, evidence=result.detail or result.ending.value)
    if any(sign.encode() in result.stderr[-4000:] for sign in OUT_OF_MEMORY):
        return PaperFinding(kind=FindingClass.OOM, stage=stage, evidence=last_line(result.stderr))
    if result.signal is not None:
        evidence = f"it ended by signal {result.signal}"
        return PaperFinding(kind=FindingClass.CRASHED, stage=stage, evidence=evidence)
    return None


def last_line(data: bytes) -> str:
    """The last line with text, without control characters."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    return one_line(next((line for line in reversed(lines) if line), "no message"))


def one_line(text: str) -> str:
    """Foreign text for people: one line, without control characters, not too long."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:MAX_EVIDENCE]


def _failed_exit(result: SandboxResult, stage: PipelineStage) -> PaperFinding | None:
    if result.exit_code == 0:
        return None
    evidence = last_line(result.stderr)
    return PaperFinding(kind=FindingClass.WRONG_IN_EAGER, stage=stage, evidence=evidence)


def _decoded(result: SandboxResult, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(result.files.get("result.json", b"{}"), type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return kind()


def _eager_findings(result: SandboxResult, state: _State) -> list[PaperFinding]:
    if (ending := ending_of(result, PipelineStage.EAGER)) is not None:
        where = f" in {state.phase}" if state.phase else ""
        return [msgspec.structs.replace(ending, evidence=one_line(ending.evidence + where))]
    if state.error is not None:
        kind = FindingClass.WRONG_IN_EAGER
        if any(sign in state.error.message for sign in OUT_OF_MEMORY):
            kind = FindingClass.OOM
        evidence = one_line(f"{state.phase}: {state.error.message}")
        return [
            PaperFinding(
                kind=kind, stage=PipelineStage.EAGER, evidence=evidence, line=state.error.line
            )
        ]
    if state.phase != "done" or result.exit_code != 0:
        evidence = f"it ended with status {result.exit_code}: {last_line(result.stderr)}"
        return [
            PaperFinding(kind=FindingClass.CRASHED, stage=PipelineStage.EAGER, evidence=evidence)
        ]
    return []


def _formula_findings(result: SandboxResult, formulas: Mapping[str, str]) -> list[PaperFinding]:
    """Each formula needs a check that holds; what was not compared does not count as held."""
    checks = _decoded(result, _Compared).checks
    ended = "it was not compared" if result.succeeded else f"not compared: {result.ending}"
    findings = []
    for claim in formulas:
        mine = [check for check in checks if check.claim == claim]
        if mine and all(check.ok for check in mine):
            continue
        why = next((check.why for check in mine if not check.ok), ended)
        evidence = one_line(f"claim {claim}: {why}")
        findings.append(
            PaperFinding(
                kind=FindingClass.UNFAITHFUL, stage=PipelineStage.FAITHFUL, evidence=evidence
            )
        )
    return findings


def _numbers(result: SandboxResult, state: _State) -> dict[str, float]:
    values: dict[str, Any] = {
        "parameters": state.parameters,
        "eager_seconds": state.eager_seconds,
        "loss": state.loss,
        "peak_memory_bytes": result.peak_memory_bytes,
        "seconds": result.duration_seconds,
    }
    return {name: float(value) for name, value in values.items() if value is not None}


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
        evidence = "the job is done and reported no training_loss"
        finding = PaperFinding(
            kind=FindingClass.CRASHED, stage=PipelineStage.EXECUTE, evidence=evidence
        )
    numbers["execution_success"] = float(finding is None)
    if result is not None:
        numbers["execution_time_seconds"] = result.duration_seconds
        if result.peak_memory_bytes is not None:
            numbers["peak_memory_mb"] = result.peak_memory_bytes / MIB
    where = f"job {state.key}, attempt {state.attempt}, {state.state}; synthetic data"
    labels = {"where": "executor"}
    findings = (finding,) if finding else ()
    return StageContent(findings=findings, numbers=numbers, detail=where, labels=labels)


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
    message = state.message or last_line(stderr)
    return PaperFinding(
        kind=kind, stage=PipelineStage.EXECUTE, evidence=one_line(f"{state.state}: {message}")
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
