"""Runs the stored jobs, each in a sandbox of its own, and records how each ended."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from compilewatch.errors import CompilewatchError, ExecutorError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.jobs import JobStore
from compilewatch.extras.executor.protocol import (
    Artifact,
    FailureCode,
    JobRequest,
    JobResult,
    JobState,
    JobStatus,
)
from compilewatch.extras.executor.sandbox.policy import (
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
    SandboxSpec,
)
from compilewatch.extras.executor.sandbox.supervised import Supervised
from compilewatch.extras.executor.training_output import read_points
from compilewatch.files import lock, write_atomically

RESULT_FILE = "result.msgpack"
LOCK_FILE = "lock"
OUTPUT = "out"
PROFILE = "profile"
STDOUT, STDERR = "stdout.log", "stderr.log"

OLD_SUPERVISOR_SECONDS = 60.0
"""How long a supervisor of an earlier service may take to end its sandbox."""

PRUNE_SECONDS = 3600.0

_log = logging.getLogger(__name__)

_FAILURES = {
    SandboxEnding.DEADLINE: FailureCode.DEADLINE,
    SandboxEnding.MEMORY: FailureCode.MEMORY,
    SandboxEnding.DISK_FILES: FailureCode.DISK_FILES,
    SandboxEnding.NOT_STARTED: FailureCode.NOT_STARTED,
}


@dataclass(frozen=True, kw_only=True)
class NeuronInspect:
    """Takes Neuron profiles of jobs with `program`; their files are also put below `folder`."""

    program: Path
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How jobs are run: the interpreter, what they can read, and what they can have at most."""

    python: str = sys.executable
    visible: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    concurrency: int = 1
    ceiling: SandboxLimits = field(default_factory=SandboxLimits)
    profiler: NeuronInspect | None = None
    keep_days: float = 30.0


class JobRunner:
    """Runs waiting jobs in threads, oldest first. What an earlier service left is settled first."""

    def __init__(self, store: JobStore, setup: Setup) -> None:
        self._store, self._setup = store, setup
        self._changed = threading.Condition()
        self._stopping = False
        self._active: dict[str, Supervised] = {}
        self._threads: list[threading.Thread] = []
        self._pruned = 0.0

    def start(self) -> None:
        """Settle the jobs that an earlier service left, then run those that wait."""
        for state in self._store.running():
            self._settle_left(state)
        self._prune()
        self._threads = [
            threading.Thread(target=self._work, name=f"job-{n}", daemon=True)
            for n in range(self._setup.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the sandboxes; their jobs wait for the next service."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            for supervised in self._active.values():
                supervised.cancel()
        for thread in self._threads:
            thread.join()

    def wake(self) -> None:
        """Look for a new job."""
        with self._changed:
            self._changed.notify()

    def cancel(self, key: str) -> None:
        """End the sandbox of a job, if it has one."""
        with self._changed:
            supervised = self._active.get(key)
            if supervised is not None:
                supervised.cancel()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                claimed = self._claimed()
                if claimed is None:
                    self._changed.wait(1.0)
                    continue
            if time.monotonic() - self._pruned > PRUNE_SECONDS:
                self._prune()
            state, request = claimed
            try:
                self._run(state, request)
            except (CompilewatchError, OSError) as error:
                # If even this cannot be stored, the next service settles the job.
                with contextlib.suppress(ExecutorError):
                    self._not_started(state, str(error))

    def _claimed(self) -> tuple[JobState, JobRequest] | None:
        """The next job; None if there is none, or while the store cannot be written."""
        try:
            return self._store.claim()
        except ExecutorError as error:
            _log.warning("%s", error)
            return None

    def _prune(self) -> None:
        """Forget the jobs that ended too long ago."""
        self._pruned = time.monotonic()
        before = datetime.now(UTC) - timedelta(days=self._setup.keep_days)
        with contextlib.suppress(ExecutorError):  # the next job says what is wrong
            self._store.prune(before.strftime("%Y-%m-%dT%H:%M:%S"))

    def _run(self, state: JobState, request: JobRequest) -> None:
        folder = self._store.attempt_folder(state)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._changed:
            if self._stopping:
                self._store.interrupted(state)
                return
            supervised = Supervised(self._planned(request, folder))
            self._active[state.key] = supervised
        if self._store.cancelled(state.key):
            supervised.cancel()
        try:
            result = supervised.wait()
        finally:
            with self._changed:
                del self._active[state.key]
        self._settle(state, result)

    def _planned(self, request: JobRequest, folder: Path) -> SandboxSpec:
        setup = self._setup
        command = ["python", request.entry, *request.arguments]
        visible = list(setup.visible)
        if request.profile and setup.profiler is not None:
            program = setup.profiler.program
            command = [
                str(program),
                "inspect",
                "-o",
                f"{sandbox.OUTPUT_FOLDER}/{PROFILE}",
                setup.python,
            ]
            command += [request.entry, *request.arguments]
            # Its libraries lie beside it, in /opt/aws/neuron.
            in_bin = program.parent.name == "bin"
            visible.append(str(program.parent.parent if in_bin else program))
        run = sandbox.planned(
            command,
            files=dict(request.files),
            limits=request.limits,
            variables=dict(setup.variables),
            visible=visible,
            python=setup.python,
            log_folder=folder,
        )
        return msgspec.structs.replace(
            run,
            devices=setup.devices,
            result_file=str(folder / RESULT_FILE),
            lock_file=str(folder / LOCK_FILE),
        )

    def _settle_left(self, state: JobState) -> None:
        """Record what became of a job whose service ended: its supervisor may have finished it."""
        folder = self._store.attempt_folder(state)
        try:
            with (folder / LOCK_FILE).open("a") as lock_file:
                if not lock(lock_file.fileno(), seconds=OLD_SUPERVISOR_SECONDS):
                    raise ExecutorError(
                        f"job {state.key} still runs under an earlier executor: end the processes "
                        "whose command contains compilewatch.extras.executor.sandbox.supervisor"
                    )
            result = msgspec.msgpack.decode((folder / RESULT_FILE).read_bytes(), type=SandboxResult)
        except (FileNotFoundError, msgspec.MsgspecError):
            self._store.interrupted(state)
        else:
            self._settle(state, result)

    def _settle(self, state: JobState, result: SandboxResult) -> None:
        """Store the outcome of an attempt; done again after a crash, it gives the same."""
        if result.ending is SandboxEnding.CANCELLED and not self._store.cancelled(state.key):
            self._store.interrupted(state)
            return
        folder = self._store.attempt_folder(state)
        outcome = msgspec.structs.replace(
            self._result(result), artifacts=self._kept(state.key, folder, result.files)
        )
        final, failure = verdict(result)
        self._store.finish(state, final, failure, outcome)
        with contextlib.suppress(OSError):
            (folder / RESULT_FILE).unlink()

    @staticmethod
    def _result(result: SandboxResult) -> JobResult:
        points, left_out = read_points(result.stdout)
        return JobResult(
            ending=result.ending,
            detail=result.detail,
            exit_code=result.exit_code,
            signal=result.signal,
            duration_seconds=result.duration_seconds,
            peak_memory_bytes=result.peak_memory_bytes,
            memory_guard=result.memory_guard,
            survivors=result.survivors,
            stdout_bytes=len(result.stdout),
            stderr_bytes=len(result.stderr),
            stdout_truncated=result.stdout_truncated,
            stderr_truncated=result.stderr_truncated,
            metrics=points,
            metrics_left_out=left_out,
            artifacts_left_out=result.files_left_out,
        )

    def _kept(self, key: str, folder: Path, files: dict[str, bytes]) -> tuple[Artifact, ...]:
        """Write the artifacts of a job below its folder, and its profile where profiles go."""
        kept = []
        profiler = self._setup.profiler
        for name, content in sorted(files.items()):
            try:
                write_atomically(folder / OUTPUT / name, content, durable=False)
            except CompilewatchError:
                continue  # a file and a folder of one name, from code that wants to confuse us
            if profiler is not None and name.startswith(f"{PROFILE}/"):
                write_atomically(profiler.folder / key / name, content, durable=False)
            digest = hashlib.sha256(content).hexdigest()
            kept.append(Artifact(name=name, size_bytes=len(content), sha256=digest))
        return tuple(kept)

    def _not_started(self, state: JobState, message: str) -> None:
        result = SandboxResult(ending=SandboxEnding.NOT_STARTED, detail=message)
        self._store.finish(state, JobStatus.FAILED, FailureCode.NOT_STARTED, self._result(result))


def verdict(result: SandboxResult) -> tuple[JobStatus, FailureCode | None]:
    """The final state of a job with this result."""
    if result.ending is SandboxEnding.CANCELLED:
        return JobStatus.CANCELLED, FailureCode.CANCELLED
    if result.ending in _FAILURES:
        return JobStatus.FAILED, _FAILURES[result.ending]
    if result.exit_code == 0:
        return JobStatus.DONE, None
    failed_by = FailureCode.SIGNAL if result.exit_code is None else FailureCode.EXIT_STATUS
    return JobStatus.FAILED, failed_by
