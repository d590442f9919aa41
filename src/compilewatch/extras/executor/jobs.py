"""The stored jobs: one SQLite file, in which each job is durable before it is acknowledged."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from compilewatch.errors import ExecutorError
from compilewatch.extras.executor.protocol import (
    ENDED,
    ErrorCode,
    FailureCode,
    JobRequest,
    JobResult,
    JobState,
    JobStatus,
)
from compilewatch.files import lock
from compilewatch.records import now

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


class JobRejectedError(Exception):
    """A call that the service rejects."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobStore:
    """All jobs of one service; safe to use from several threads. Raises ExecutorError.

    Only one process can hold it; `on_wait` is called if another one does, before waiting up to
    `WAIT_SECONDS` for that to end. `folder` also receives what jobs leave behind: see `attempt`.
    """

    def __init__(self, folder: Path, *, on_wait: Callable[[], None] | None = None) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        with ExitStack() as opened:
            try:
                (folder / "jobs").mkdir(parents=True, exist_ok=True, mode=0o700)
                lock_file = opened.enter_context((folder / "service.lock").open("w"))
                if not lock(lock_file.fileno(), seconds=WAIT_SECONDS, on_wait=on_wait):
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
        version = self._base.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
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

    def submit(self, key: str, request: JobRequest) -> tuple[JobState, bool]:
        """Store a job durably; False if it was stored before. Raises JobRejectedError."""
        encoded = msgspec.json.encode(request, order="deterministic")
        digest = hashlib.sha256(encoded).hexdigest()
        with self._transaction() as base:
            row = base.execute("SELECT digest, value FROM jobs WHERE key = ?", (key,)).fetchone()
            if row is not None:
                if row[0] != digest:
                    raise JobRejectedError(
                        ErrorCode.CONFLICT, f"job {key} is another request: choose another key"
                    )
                return msgspec.json.decode(row[1], type=JobState), False
            queued = self._count(JobStatus.QUEUED)
            if queued >= MOST_QUEUED:
                raise JobRejectedError(
                    ErrorCode.BUSY, f"{queued} jobs are waiting: try again later"
                )
            state = JobState(
                key=key, state=JobStatus.QUEUED, submitted_at=now(), paper_id=request.paper_id
            )
            base.execute(
                "INSERT INTO jobs (key, digest, state, request, value) VALUES (?, ?, ?, ?, ?)",
                (key, digest, state.state, encoded, msgspec.json.encode(state)),
            )
            return state, True

    def get(self, key: str) -> JobState:
        """A job. Raises JobRejectedError if there is none."""
        with self._lock:
            row = self._base.execute("SELECT value FROM jobs WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise JobRejectedError(ErrorCode.NOT_FOUND, f"no job {key!r}")
        return msgspec.json.decode(row[0], type=JobState)

    def newest(self, most: int) -> tuple[JobState, ...]:
        """The jobs that were submitted last, the newest first."""
        with self._lock:
            rows = self._base.execute(
                "SELECT value FROM jobs ORDER BY number DESC LIMIT ?", (most,)
            ).fetchall()
        return tuple(msgspec.json.decode(row[0], type=JobState) for row in rows)

    def prune(self, ended_before: str) -> tuple[str, ...]:
        """Forget the jobs that ended before a time, with what they left; returns their keys."""
        old = [
            state.key
            for state in self._all(*ENDED)
            if state.ended_at is not None and state.ended_at < ended_before
        ]
        for key in old:
            shutil.rmtree(self.folder / "jobs" / key, ignore_errors=True)
            with self._transaction() as base:
                base.execute("DELETE FROM jobs WHERE key = ?", (key,))
        return tuple(old)

    def counts(self) -> tuple[int, int]:
        """How many jobs run and how many wait."""
        with self._lock:
            return self._count(JobStatus.RUNNING), self._count(JobStatus.QUEUED)

    def running(self) -> tuple[JobState, ...]:
        """The jobs that are marked as running."""
        return self._all(JobStatus.RUNNING)

    def claim(self) -> tuple[JobState, JobRequest] | None:
        """Mark the oldest waiting job as running, as its next attempt; None if none waits."""
        with self._transaction() as base:
            row = base.execute(
                "SELECT value, request FROM jobs WHERE state = ? ORDER BY number LIMIT 1",
                (JobStatus.QUEUED,),
            ).fetchone()
            if row is None:
                return None
            state = msgspec.json.decode(row[0], type=JobState)
            state = msgspec.structs.replace(
                state, state=JobStatus.RUNNING, attempt=state.attempt + 1, started_at=now()
            )
            self._put(state)
            return state, msgspec.json.decode(row[1], type=JobRequest)

    def cancel(self, key: str) -> JobState:
        """End a waiting job, and record for a running one that it is to be cancelled."""
        with self._transaction() as base:
            state = self.get(key)
            if state.state is JobStatus.QUEUED:
                state = _ended(state, JobStatus.CANCELLED, FailureCode.CANCELLED, "before it began")
                self._put(state)
            elif state.state is JobStatus.RUNNING:
                base.execute("UPDATE jobs SET cancel = 1 WHERE key = ?", (key,))
            return state

    def cancelled(self, key: str) -> bool:
        """Whether somebody has asked to cancel this job."""
        with self._lock:
            row = self._base.execute("SELECT cancel FROM jobs WHERE key = ?", (key,)).fetchone()
            return bool(row and row[0])

    def finish(
        self,
        state: JobState,
        final: JobStatus,
        failure: FailureCode | None,
        result: JobResult | None,
    ) -> JobState:
        """Store the end of a job's attempt, unless it has ended already."""
        with self._transaction():
            known = self.get(state.key)
            if known.state in ENDED or known.attempt != state.attempt:
                return known
            message = result.detail if result is not None else ""
            ended = _ended(known, final, failure, message)
            ended = msgspec.structs.replace(ended, result=result)
            self._put(ended)
            return ended

    def interrupted(self, state: JobState) -> JobState:
        """Let a job wait again whose sandbox ended with the service, or give it up as lost."""
        with self._transaction():
            known = self.get(state.key)
            if known.state is not JobStatus.RUNNING or known.attempt != state.attempt:
                return known
            if self.cancelled(state.key):
                again = _ended(known, JobStatus.CANCELLED, FailureCode.CANCELLED, "while it ran")
            elif known.attempt >= MOST_ATTEMPTS:
                message = f"the service ended during each of its {known.attempt} attempts"
                again = _ended(known, JobStatus.LOST, FailureCode.INTERRUPTED, message)
            else:
                again = msgspec.structs.replace(known, state=JobStatus.QUEUED, started_at=None)
            self._put(again)
            return again

    def _all(self, *states: JobStatus) -> tuple[JobState, ...]:
        marks = ", ".join("?" * len(states))
        query = f"SELECT value FROM jobs WHERE state IN ({marks}) ORDER BY number"
        with self._lock:
            rows = self._base.execute(query, states).fetchall()
        return tuple(msgspec.json.decode(row[0], type=JobState) for row in rows)

    def _count(self, state: JobStatus) -> int:
        row = self._base.execute("SELECT count(*) FROM jobs WHERE state = ?", (state,))
        return int(row.fetchone()[0])

    def _put(self, state: JobState) -> None:
        self._base.execute(
            "UPDATE jobs SET state = ?, value = ? WHERE key = ?",
            (state.state, msgspec.json.encode(state), state.key),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit durably at the end, nested ones with the outermost. Raises ExecutorError."""
        with self._lock:
            if self._base.in_transaction:
                yield self._base
                return
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield self._base
                self._base.commit()
            except sqlite3.Error as error:
                raise ExecutorError(f"{self.folder} cannot be written: {error}") from None
            finally:
                self._base.rollback()


def _ended(
    state: JobState, final: JobStatus, failure: FailureCode | None, message: str
) -> JobState:
    return msgspec.structs.replace(
        state, state=final, failure=failure, message=message, ended_at=now()
    )
