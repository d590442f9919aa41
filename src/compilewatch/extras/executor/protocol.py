"""What the executor's client and service tell each other, as JSON over HTTP (docs/executor.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from compilewatch.extras.executor.sandbox.policy import (
    MemoryGuard,
    Name,
    SandboxEnding,
    SandboxLimits,
)
from compilewatch.records import Record

PROTOCOL_VERSION = 1

SERVICE = "compilewatch-executor"
"""The field `service` of `GET /health`; anything else at the endpoint is another service."""

MAX_BODY_BYTES = 8 * 2**20

Key = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
"""The name of a job, chosen by its client. Equal submissions under one key are one job."""


class JobStatus(StrEnum):
    """The states of a job; it ends in exactly one of the last four.

    `lost`: the service ended while the job ran, as often as a job is tried.
    """

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


ENDED = frozenset({JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.LOST})


class FailureCode(StrEnum):
    """Why a job did not end as `done`.

    The first two are the code's own; then the limits that ended it. `not_started`: the sandbox
    could not be made. `cancelled`: a client cancelled it. `interrupted`: the service ended.
    """

    EXIT_STATUS = "exit_status"
    SIGNAL = "signal"
    DEADLINE = "deadline"
    MEMORY = "memory"
    DISK_FILES = "disk_files"
    NOT_STARTED = "not_started"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class ErrorCode(StrEnum):
    """Why the service rejects a call; each has its HTTP status in `STATUSES`."""

    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    MEDIA_TYPE = "media_type"
    BUSY = "busy"
    DRAINING = "draining"


STATUSES: dict[ErrorCode, int] = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.MEDIA_TYPE: 415,
    ErrorCode.INVALID: 422,
    ErrorCode.BUSY: 429,
    ErrorCode.DRAINING: 503,
}


class Problem(Record, frozen=True, kw_only=True):
    """The body of every rejection."""

    code: ErrorCode
    message: str


class JobRequest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run `python <entry> <arguments>` beside these text files (`PUT /jobs/{key}`).

    `paper_id` and `title` are for people and are not used otherwise. `profile` asks for a Neuron
    profile, which the service takes if it is enabled there.
    """

    files: Annotated[dict[Name, str], Meta(min_length=1, max_length=256)]
    entry: Name = "main.py"
    arguments: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    limits: SandboxLimits = SandboxLimits()
    profile: bool = False
    paper_id: Annotated[str, Meta(max_length=200)] = ""
    title: Annotated[str, Meta(max_length=500)] = ""


class MetricPoint(Record, frozen=True, kw_only=True):
    """The numbers of one line that the code printed; `step` is its step or epoch, if it had one."""

    step: int | None
    values: dict[str, float]


class Artifact(Record, frozen=True, kw_only=True):
    name: Name
    size_bytes: int
    sha256: str


class JobResult(Record, frozen=True, kw_only=True):
    """What became of a job.

    `ending`, `duration_seconds` and `peak_memory_bytes` were measured outside the sandbox.
    `exit_code`, `metrics` and everything in logs and artifacts are claims of the code that ran.
    """

    ending: SandboxEnding
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration_seconds: float
    peak_memory_bytes: int | None = None
    memory_guard: MemoryGuard
    survivors: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    metrics: tuple[MetricPoint, ...] = ()
    metrics_left_out: int = 0
    artifacts: tuple[Artifact, ...] = ()
    artifacts_left_out: int = 0


class JobState(Record, frozen=True, kw_only=True):
    """A job as the service knows it. `result` and `failure` are set once it has ended.

    Times are RFC 3339 in UTC. `attempt` counts from 1; a job that the end of the service
    interrupted runs again.
    """

    key: str
    state: JobStatus
    attempt: int = 0
    submitted_at: str
    started_at: str | None = None
    ended_at: str | None = None
    failure: FailureCode | None = None
    message: str = ""
    result: JobResult | None = None
    paper_id: str = ""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ENDED


class LogPart(Record, frozen=True, kw_only=True):
    """Part of a log. The next begins at `next_offset`; `ended`: there will be no more."""

    data: bytes
    next_offset: int
    ended: bool


class ServiceHealth(Record, frozen=True, kw_only=True):
    """`GET /health`, which needs no token.

    `running` and `queued` count the jobs of all clients: the instance must not be stopped before
    both are 0.
    """

    service: str
    protocol: int
    version: str
    status: str
    timestamp: str
    running: int
    queued: int
    draining: bool
    concurrency: int
    neuron_available: bool
    profiler_enabled: bool
    working_dir: str
    max_execution_time: float
