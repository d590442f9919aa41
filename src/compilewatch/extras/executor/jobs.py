"""The jobs of an executor: stored in one SQLite file, and run, each in a sandbox of its own.

A job is durable before it is acknowledged, and how each ended is recorded once.
"""

import contextlib
import hashlib
import logging
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException

from compilewatch.config import ExecutorSettings
from compilewatch.errors import CompilewatchError, ExecutorError
from compilewatch.extras.executor import protocol
from compilewatch.extras.executor.protocol import JobState, JobStatus
from compilewatch.extras.executor.sandbox import Supervised, policy
from compilewatch.files import lock, write_atomically
from compilewatch.records import digest, now

MOST_QUEUED = 1000
WAIT_SECONDS = 5.0
"""How long a service waits for an earlier one of its folder to end, as at a restart."""

MOST_ATTEMPTS = 3
"""How often a job that the end of the service interrupts is tried before it is lost."""

SCHEMA_VERSION = 1

_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    cancel INTEGER NOT NULL DEFAULT 0,
    request BLOB NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
"""
_PRUNE = "DELETE FROM jobs WHERE json_extract(CAST(value AS TEXT), '$.ended_at') < ? RETURNING key"


class JobStore:
    """All jobs of one service; safe to use from several threads. Raises ExecutorError.

    Only one process can hold it; another one is waited for, up to `WAIT_SECONDS`. `folder` also
    receives what jobs leave behind: see `attempt_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        with ExitStack() as opened:
            try:
                (folder / "jobs").mkdir(parents=True, exist_ok=True, mode=0o700)
                lock_file = opened.enter_context((folder / "service.lock").open("w"))
                if not lock(lock_file.fileno(), seconds=WAIT_SECONDS):
                    raise ExecutorError(
                        f"another executor uses {folder}: stop it, or use another --state"
                    )
                self._base = sqlite3.connect(folder / "jobs.sqlite", check_same_thread=False)
                opened.callback(self._base.close)
                self._prepare()
            except OSError as error:
                raise ExecutorError(f"{folder} cannot be used: {error.strerror}") from None
            except sqlite3.Error as error:
                raise ExecutorError(f"{folder}/jobs.sqlite cannot be used: {error}") from None
            self._opened = opened.pop_all()

    def _prepare(self) -> None:
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")
        if self._base.execute("PRAGMA user_version").fetchone()[0] > SCHEMA_VERSION:
            raise ExecutorError(
                f"{self.folder} was written by a newer compilewatch: upgrade, or use another "
                "--state"
            )
        self._base.executescript(_TABLE)
        self._base.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Let another process use the folder."""
        with self._lock:
            self._opened.close()

    def attempt_folder(self, state: JobState) -> Path:
        """Where the logs, artifacts and result of a job's attempt are kept."""
        return self.folder / "jobs" / state.key / str(state.attempt)

    def submit(self, key: str, request: protocol.JobRequest) -> tuple[JobState, bool]:
        """Store a job durably; False if it was stored before. Raises HTTPException."""
        sha256 = digest(request)
        with self._transaction() as base:
            row = base.execute("SELECT digest, value FROM jobs WHERE key = ?", (key,)).fetchone()
            if row is not None:
                if row[0] != sha256:
                    raise HTTPException(409, f"job {key} is another request: choose another key")
                return msgspec.json.decode(row[1], type=JobState), False
            _, queued = self.counts()
            if queued >= MOST_QUEUED:
                raise HTTPException(429, f"{queued} jobs are waiting: try again later")
            state = JobState(
                key=key, state=JobStatus.QUEUED, submitted_at=now(), paper_id=request.paper_id
            )
            base.execute(
                "INSERT INTO jobs (key, digest, state, request, value) VALUES (?, ?, ?, ?, ?)",
                (key, sha256, state.state, *map(msgspec.json.encode, (request, state))),
            )
            return state, True

    def get(self, key: str) -> JobState:
        """A job. Raises HTTPException if there is none."""
        for state in self._states("WHERE key = ?", key):
            return state
        raise HTTPException(404, f"no job {key!r}")

    def newest(self, most: int) -> tuple[JobState, ...]:
        """The jobs that were submitted last, the newest first."""
        return self._states("ORDER BY number DESC LIMIT ?", most)

    def running(self) -> tuple[JobState, ...]:
        """The jobs that are marked as running."""
        return self._states("WHERE state = ? ORDER BY number", JobStatus.RUNNING)

    def counts(self) -> tuple[int, int]:
        """How many jobs run and how many wait."""
        with self._lock:
            rows = self._base.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
        return dict(rows).get(JobStatus.RUNNING, 0), dict(rows).get(JobStatus.QUEUED, 0)

    def prune(self, ended_before: str) -> tuple[str, ...]:
        """Forget the jobs that ended before a time, with what they left; returns their keys."""
        with self._transaction() as base:
            rows = base.execute(_PRUNE, (ended_before,)).fetchall()
            for (key,) in rows:
                shutil.rmtree(self.folder / "jobs" / key, ignore_errors=True)
        return tuple(key for (key,) in rows)

    def claim(self) -> tuple[JobState, protocol.JobRequest] | None:
        """Mark the oldest waiting job as running, as its next attempt; None if none waits."""
        with self._transaction() as base:
            row = base.execute(
                "SELECT value, request FROM jobs WHERE state = ? ORDER BY number LIMIT 1",
                (JobStatus.QUEUED,),
            ).fetchone()
            if row is None:
                return None
            state = msgspec.json.decode(row[0], type=JobState)
            attempt = state.attempt + 1
            state = self._put(state, state=JobStatus.RUNNING, attempt=attempt, started_at=now())
            return state, msgspec.json.decode(row[1], type=protocol.JobRequest)

    def cancel(self, key: str) -> JobState:
        """End a waiting job, and record for a running one that it is to be cancelled."""
        with self._transaction() as base:
            state = self.get(key)
            if state.state is JobStatus.QUEUED:
                return self._end(state, JobStatus.CANCELLED, "before it began")
            if state.state is JobStatus.RUNNING:
                base.execute("UPDATE jobs SET cancel = 1 WHERE key = ?", (key,))
            return state

    def cancelled(self, key: str) -> bool:
        """Whether somebody has asked to cancel this job."""
        with self._lock:
            row = self._base.execute("SELECT cancel FROM jobs WHERE key = ?", (key,)).fetchone()
            return bool(row and row[0])

    def settle(self, state: JobState, result: protocol.JobResult | None = None) -> JobState:
        """Store how a job's attempt ended, unless another attempt or an end is stored already.

        Without a result of its own, and if nobody has cancelled the job, its service has ended: it
        waits again, or is given up as lost.
        """
        with self._transaction():
            known = self.get(state.key)
            if known.state is not JobStatus.RUNNING or known.attempt != state.attempt:
                return known
            if result is not None and result.ending is not policy.SandboxEnding.CANCELLED:
                final = JobStatus.DONE if result.succeeded else JobStatus.FAILED
                return self._end(known, final, result.detail, result)
            if self.cancelled(state.key):
                return self._end(known, JobStatus.CANCELLED, "while it ran", result)
            if known.attempt >= MOST_ATTEMPTS:
                message = f"the service ended during each of its {known.attempt} attempts"
                return self._end(known, JobStatus.LOST, message)
            return self._put(known, state=JobStatus.QUEUED, started_at=None)

    def _states(self, condition: str, *values: Any) -> tuple[JobState, ...]:
        with self._lock:
            rows = self._base.execute(f"SELECT value FROM jobs {condition}", values).fetchall()
        return tuple(msgspec.json.decode(row[0], type=JobState) for row in rows)

    def _end(
        self,
        state: JobState,
        final: JobStatus,
        message: str,
        result: protocol.JobResult | None = None,
    ) -> JobState:
        return self._put(state, state=final, ended_at=now(), message=message, result=result)

    def _put(self, known: JobState, /, **changes: Any) -> JobState:
        state = msgspec.structs.replace(known, **changes)
        self._base.execute(
            "UPDATE jobs SET state = ?, value = ? WHERE key = ?",
            (state.state, msgspec.json.encode(state), state.key),
        )
        return state

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit durably at the end. Raises ExecutorError."""
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield self._base
                self._base.commit()
            except sqlite3.Error as error:
                raise ExecutorError(f"{self.folder} cannot be written: {error}") from None
            finally:
                self._base.rollback()


OUTPUT = "out"
PROFILE = "profile"

INSPECT = {"NEURON_RT_INSPECT_ENABLE": "1", "NEURON_RT_INSPECT_DEVICE_PROFILE": "1"}
"""Neuron's runtime profiles a process by itself: tools/neuron-explorer, environment variables."""

OLD_SUPERVISOR_SECONDS = 60.0
"""How long a supervisor of an earlier service may take to end its sandbox."""

_log = logging.getLogger(__name__)


class Setup(NamedTuple):
    """How jobs are run: the settings, and what each job's sandbox is made of.

    The limits of `sandbox` are the most that a job may ask for. Neuron profiles are taken if
    `profiles` is the folder for a copy of their files.
    """

    own: ExecutorSettings
    sandbox: policy.SandboxSpec
    profiles: Path | None = None


class JobRunner:
    """Runs waiting jobs in threads, oldest first. What an earlier service left is settled first."""

    def __init__(self, store: JobStore, setup: Setup) -> None:
        self._store, self._setup = store, setup
        self._changed = threading.Condition()
        self._stopping = False
        self._active: dict[str, Supervised] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Settle the jobs that an earlier service left, then run those that wait."""
        for state in self._store.running():
            self._settle_left(state)
        self._threads = [
            threading.Thread(target=self._work, name=f"job-{n}", daemon=True)
            for n in range(self._setup.own.concurrency)
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
            if (supervised := self._active.get(key)) is not None:
                supervised.cancel()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                claimed = None
                try:
                    claimed = self._store.claim()
                except ExecutorError as error:
                    _log.warning("%s", error)
                if claimed is None:
                    self._changed.wait(1.0)
                    continue
            self._prune()
            state, request = claimed
            try:
                self._run(state, request)
            except (CompilewatchError, OSError) as error:
                failed = policy.SandboxEnding.NOT_STARTED
                # If even this cannot be stored, the next service settles the job.
                with contextlib.suppress(ExecutorError):
                    self._settle(state, policy.SandboxResult(ending=failed, detail=str(error)))

    def _prune(self) -> None:
        """Forget the jobs that ended too long ago."""
        before = datetime.now(UTC) - timedelta(days=self._setup.own.keep_days)
        with contextlib.suppress(ExecutorError):  # the next job says what is wrong
            self._store.prune(before.strftime("%Y-%m-%dT%H:%M:%S"))

    def _run(self, state: JobState, request: protocol.JobRequest) -> None:
        folder = self._store.attempt_folder(state)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._changed:
            if self._stopping:
                self._store.settle(state)
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

    def _planned(self, request: protocol.JobRequest, folder: Path) -> policy.SandboxSpec:
        spec = self._setup.sandbox
        variables = dict(spec.variables)
        if request.profile and self._setup.profiles is not None:
            folder_inside = f"{policy.OUTPUT_FOLDER}/{PROFILE}"
            variables |= INSPECT | {"NEURON_RT_INSPECT_OUTPUT_DIR": folder_inside}
        return msgspec.structs.replace(
            spec,
            command=(spec.python, request.entry, *request.arguments),
            files={name: text.encode() for name, text in request.files.items()},
            limits=request.limits,
            variables=variables,
            folder=str(folder),
        )

    def _settle_left(self, state: JobState) -> None:
        """Record what became of a job whose service ended: its supervisor may have finished it."""
        folder = self._store.attempt_folder(state)
        try:
            with (folder / policy.LOCK_FILE).open("a") as lock_file:
                if not lock(lock_file.fileno(), seconds=OLD_SUPERVISOR_SECONDS):
                    raise ExecutorError(
                        f"job {state.key} still runs under an earlier executor: end the processes "
                        "whose command contains compilewatch.extras.executor.sandbox.supervisor"
                    )
            result = msgspec.msgpack.decode(
                (folder / policy.RESULT_FILE).read_bytes(), type=policy.SandboxResult
            )
        except (FileNotFoundError, msgspec.MsgspecError):
            self._store.settle(state)
        else:
            self._settle(state, result)

    def _settle(self, state: JobState, result: policy.SandboxResult) -> None:
        """Store the outcome of an attempt; done again after a crash, it gives the same."""
        folder = self._store.attempt_folder(state)
        outcome = protocol.JobResult(
            **{name: getattr(result, name) for name in policy.SandboxOutcome.__struct_fields__},
            metrics=protocol.read_metrics(result.stdout),
            artifacts=self._kept(state.key, folder, result.files),
        )
        if self._store.settle(state, outcome).ended:
            with contextlib.suppress(OSError):
                (folder / policy.RESULT_FILE).unlink()

    def _kept(
        self, key: str, folder: Path, files: dict[str, bytes]
    ) -> tuple[protocol.Artifact, ...]:
        """Write the artifacts of a job below its folder, and its profile where profiles go."""
        kept = []
        profiles = self._setup.profiles
        for name, content in sorted(files.items()):
            try:
                write_atomically(folder / OUTPUT / name, content, durable=False)
            except CompilewatchError:
                continue  # a file and a folder of one name, from code that wants to confuse us
            if profiles is not None and name.startswith(f"{PROFILE}/"):
                write_atomically(profiles / key / name, content, durable=False)
            sha256 = hashlib.sha256(content).hexdigest()
            kept.append(protocol.Artifact(name=name, size_bytes=len(content), sha256=sha256))
        return tuple(kept)
