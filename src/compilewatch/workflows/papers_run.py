"""The parts of `compilewatch papers run`: the ledger, the sandbox, the sweep and the executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from compilewatch.config.settings import Settings
from compilewatch.errors import ExecutorError, LauncherError, SandboxError
from compilewatch.executor.client import ExecutorClient
from compilewatch.executor.protocol import FailureCode, JobRequest, JobState, State
from compilewatch.launchers import Completed
from compilewatch.launchers.confined import ConfinedLauncher
from compilewatch.papers import Library, Provider
from compilewatch.papers.calls import Budget, Caller
from compilewatch.papers.execution import (
    Ran,
    Runner,
    SandboxRunner,
    last_line,
    run_training,
    training_files,
)
from compilewatch.papers.metric_lines import last_values, points_of
from compilewatch.papers.prices import price_of
from compilewatch.papers.rules import load_rules
from compilewatch.plan.keys import target_sha256
from compilewatch.plan.placement import place
from compilewatch.plan.requests import check_targets, plan, targets_of
from compilewatch.records import Environment, Mode, Phase, Request, Result, Status
from compilewatch.records.clock import now
from compilewatch.records.digests import digest
from compilewatch.records.labels import reason_label, source_line
from compilewatch.records.papers import (
    Finding,
    FindingClass,
    Generation,
    Paper,
    PaperSummary,
    Stage,
)
from compilewatch.sandbox.policy import MIB, Limits
from compilewatch.sources.papers import generated_spec
from compilewatch.store.papers import PROFILER_FOLDER, PaperFolder, PaperStore
from compilewatch.workflows.papers import Observer, Pipeline
from compilewatch.workflows.sweep import options_of

WAIT_SECONDS = 1800.0
"""How long a job may wait in the executor's queue, beside the time that it runs."""


class RequestLauncher(Protocol):
    """What the sweep of a paper needs of a launcher."""

    def environments(self) -> tuple[Environment, ...]: ...

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterable[Completed]: ...


def run_papers(
    settings: Settings,
    library: Library,
    provider: Provider,
    papers: Sequence[Paper],
    *,
    targets: tuple[str, ...] = ("dynamo", "export"),
    max_usd: float | None = None,
    max_tokens: int | None = None,
    observer: Observer = lambda _: None,
    runner: Runner | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[PaperSummary, ...]:
    """Process papers and return their summaries. Only one run writes to a folder at a time."""
    options = settings.papers
    check_targets(targets_of(targets, [Mode.EVAL], False))
    store = PaperStore(Path(settings.output_dir))
    chosen = runner or SandboxRunner()
    try:
        with store.locked():
            caller = Caller(
                ledger=store.ledger,
                provider=provider,
                rules=load_rules(Path(options.rules_file)),
                price=price_of(Path(options.prices_file), provider.model),
                budget=Budget(
                    max_usd=max_usd,
                    max_tokens=max_tokens,
                    max_repairs=options.max_repairs,
                    device_seconds=options.device_seconds,
                ),
                papers=frozenset(paper.id for paper in papers),
                run=now(),
                sleep=sleep,
            )
            launcher = ConfinedLauncher(1, (options.environment,), cache=settings.cache_folder)
            pipeline = Pipeline(
                store=store,
                library=library,
                caller=caller,
                runner=chosen,
                sweeper=Sweeper(settings=settings, targets=targets, launcher=launcher),
                executor=_executor(settings, chosen),
                max_paper_tokens=options.max_paper_tokens,
                observer=observer,
            )
            return pipeline.run(papers)
    finally:
        provider.close()


def _executor(settings: Settings, runner: Runner) -> LocalTraining | RemoteTraining:
    limits = Limits(
        deadline_seconds=settings.papers.device_seconds,
        memory_bytes=settings.memory_limit_bytes,
        disk_bytes=256 * MIB,
    )
    if settings.executor.endpoint:
        return RemoteTraining(settings=settings, limits=limits)
    return LocalTraining(runner=runner, limits=limits)


# --- the sweep of one version ---


@dataclass(kw_only=True)
class Sweeper:
    """Evaluates a version on compile targets, each in a sandbox of its own."""

    settings: Settings
    targets: tuple[str, ...]
    launcher: RequestLauncher

    @property
    def identity(self) -> str:
        """Targets with their code, and the environment: a change of either can change a verdict."""
        try:
            known = [environment.digest for environment in self.launcher.environments()]
        except LauncherError as error:
            known = [str(error)]
        code = {name: target_sha256(name.partition(":")[0]) for name in sorted(self.targets)}
        return digest([code, known])

    def run(self, generation: Generation, folder: PaperFolder) -> Ran:
        file = _file_of(generation, folder)
        try:
            known = self.launcher.environments()
            placed = place(targets_of(self.targets, [Mode.EVAL], False), (known[0].name,), known)
            options = options_of(self.settings, known)
            made = plan([generated_spec(generation, file)], placed, options)
            results = [
                *made.skipped,
                *(done.result for done in self.launcher.run(made.requests, folder.path)),
            ]
        except (SandboxError, LauncherError) as error:
            return Ran(not_run=str(error))
        verdicts = [result for result in results if result.is_verdict]
        stored = folder.write(Stage.SWEEP, msgspec.json.encode(results), ".json", what="results")
        findings = tuple(finding for result in results for finding in findings_of(result))
        if not verdicts and not findings:
            return Ran(not_run="no target could run: " + "; ".join(r.detail for r in results))
        words = ", ".join(f"{r.request.target.name} {r.status}" for r in results)
        return Ran(
            findings=findings,
            detail=words,
            files=(stored,),
            numbers={
                "targets": float(len(results)),
                "targets_passed": float(sum(r.status is Status.PASS for r in results)),
                "graph_breaks": float(sum(r.graph_breaks or 0 for r in results)),
            },
            labels={r.request.target.name: r.status.value for r in results},
        )


def _file_of(generation: Generation, folder: PaperFolder) -> Path:
    """The stored file of a version."""
    for result in reversed(folder.journal()):
        if result.stage is Stage.GENERATE and result.generation == generation.id:
            return folder.path / next(name for name in result.files if name.endswith(".py"))
    raise LauncherError(f"the code {generation.id[:12]} of {generation.paper} is not stored")


def findings_of(result: Result) -> list[Finding]:
    """What a result of the sweep says about the code."""
    target = result.request.target.name
    if result.status is Status.GRAPH_BREAK:
        return [
            _finding(
                FindingClass.GRAPH_BREAK,
                f"{target}: {reason_label(b)} at {b.file}:{b.line}: {source_line(b).strip()} "
                f"{b.explanation}",
                b.line or None,
            )
            for b in result.breaks
        ]
    kinds = {
        Status.MISMATCH: FindingClass.MISMATCH,
        Status.TIMEOUT: FindingClass.TIMED_OUT,
        Status.OOM: FindingClass.OOM,
        Status.CRASHED: FindingClass.CRASHED,
    }
    kind = kinds.get(result.status)
    if result.status is Status.ERROR:
        compiler = result.phase in (Phase.COMPILE, Phase.COMPARE)
        kind = FindingClass.COMPILER_CANNOT if compiler else FindingClass.WRONG_IN_EAGER
    if kind is None:
        return []
    said = result.detail or (result.error.message if result.error else result.status.value)
    return [_finding(kind, f"{target}, {result.phase}: {said}")]


def _finding(kind: FindingClass, evidence: str, line: int | None = None) -> Finding:
    one_line = " ".join(evidence.split())[:400]
    return Finding(kind=kind, stage=Stage.SWEEP, evidence=one_line, line=line)


# --- the execution of one version ---


@dataclass(kw_only=True)
class LocalTraining:
    """Trains briefly on the CPU, in the sandbox of this machine."""

    runner: Runner
    limits: Limits

    @property
    def identity(self) -> str:
        return digest(["local", self.limits.deadline_seconds, 1])

    def run(self, generation: Generation, folder: PaperFolder) -> Ran:
        ran = run_training(self.runner, generation, self.limits)
        return _stored(ran, folder)


@dataclass(kw_only=True)
class RemoteTraining:
    """Trains briefly as a job of an executor, such as one on a Trainium instance."""

    settings: Settings
    limits: Limits

    @property
    def identity(self) -> str:
        return digest([self.settings.executor.endpoint, self.limits, 1])

    def run(self, generation: Generation, folder: PaperFolder) -> Ran:
        request = JobRequest(
            files=training_files(generation),
            limits=self.limits,
            profile=True,
            paper_id=generation.paper[:200],
        )
        key = f"paper-{digest([generation.id, request])[:40]}"
        try:
            with _client(self.settings) as client:
                client.submit(key, request)
                wait = self.limits.deadline_seconds + WAIT_SECONDS
                state = client.wait(key, timeout_seconds=wait)
                ran = job_ran(state, _log(client, key, "stdout"), _log(client, key, "stderr"))
                files = _profiles(client, key, state, folder)
        except ExecutorError as error:
            return Ran(not_run=str(error))
        hours = ran.numbers.get("execution_time_seconds", 0.0) / 3600
        if self.settings.papers.usd_per_hour:
            ran.numbers["estimated_cost_usd"] = hours * self.settings.papers.usd_per_hour
        return _stored(msgspec.structs.replace(ran, files=files), folder)


def _client(settings: Settings) -> ExecutorClient:
    own = settings.executor
    token = own.token
    if not token and own.token_file:
        try:
            token = Path(own.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ExecutorError(f"{own.token_file} cannot be read: {error.strerror}") from None
    certificates = Path(own.certificates) if own.certificates else None
    return ExecutorClient(own.endpoint, token, certificates=certificates)


def _log(client: ExecutorClient, key: str, stream: str) -> bytes:
    return client.log(key, 0, stream=stream).data


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


def job_ran(state: JobState, stdout: bytes, stderr: bytes) -> Ran:
    """What an ended job showed. A status of 0 without numbers is no success."""
    result = state.result
    numbers = last_values(points_of(stdout.decode("utf-8", "replace")))
    finding = _job_finding(state, stderr)
    if finding is None and "training_loss" not in numbers:
        said = "the job is done and reported no training_loss"
        finding = Finding(kind=FindingClass.CRASHED, stage=Stage.EXECUTE, evidence=said)
    numbers["execution_success"] = float(finding is None)
    if result is not None:
        numbers["execution_time_seconds"] = result.duration_seconds
        if result.peak_memory_bytes is not None:
            numbers["peak_memory_mb"] = result.peak_memory_bytes / MIB
    where = f"job {state.key}, attempt {state.attempt}, {state.state}; synthetic data"
    labels = {"where": "executor"}
    found = (finding,) if finding else ()
    return Ran(findings=found, numbers=numbers, detail=where, labels=labels)


def _job_finding(state: JobState, stderr: bytes) -> Finding | None:
    if state.state is State.DONE:
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
    return Finding(kind=kind, stage=Stage.EXECUTE, evidence=f"{state.state}: {said}"[:400])


class _Execution(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int
    detail: str
    findings: tuple[Finding, ...]
    metrics: dict[str, float]


def _stored(ran: Ran, folder: PaperFolder) -> Ran:
    """A run with a file that says what it showed."""
    if ran.not_run:
        return ran
    about = _Execution(
        schema_version=1, detail=ran.detail, findings=ran.findings, metrics=ran.numbers
    )
    data = msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"
    name = folder.write(Stage.EXECUTE, data, ".json", what="execution")
    return msgspec.structs.replace(ran, files=(*ran.files, name))
