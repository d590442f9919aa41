"""What sandboxed code may have: its limits, what it sees of the machine, and how its run ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from compilewatch.records import Record

Name = Annotated[
    str,
    Meta(
        pattern=r"^(?!.*(^|/)\.)[A-Za-z0-9._+-]{1,100}(/[A-Za-z0-9._+-]{1,100}){0,7}\Z",
        max_length=240,
    ),
]
"""A relative path below a job's folder: at most 8 parts, none of which begins with a dot."""

JOB_FOLDER = "/job"
"""The folder of a job inside, in memory; the command starts there, beside its files."""

OUTPUT_FOLDER = "/job/out"
"""What the command leaves here is returned, within the limits."""

MIB = 2**20


class SandboxLimits(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run may use at most.

    `disk_bytes` limits each of the three folders in memory that can be written (/job, /tmp,
    /dev/shm); what they hold counts as memory too where a cgroup limits it. `log_bytes` limits each
    of stdout and stderr (the rest is dropped), `output_bytes` and `output_files` what is returned
    from `OUTPUT_FOLDER`.
    """

    deadline_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 1800.0
    memory_bytes: Annotated[int, Meta(ge=64 * MIB, le=2**44)] = 8 * 2**30
    processes: Annotated[int, Meta(ge=4, le=4096)] = 64
    open_files: Annotated[int, Meta(ge=32, le=65_536)] = 512
    disk_bytes: Annotated[int, Meta(ge=MIB, le=2**40)] = 1024 * MIB
    disk_files: Annotated[int, Meta(ge=16, le=10_000_000)] = 50_000
    log_bytes: Annotated[int, Meta(ge=1024, le=256 * MIB)] = 4 * MIB
    output_bytes: Annotated[int, Meta(ge=0, le=1024 * MIB)] = 64 * MIB
    output_files: Annotated[int, Meta(ge=0, le=10_000)] = 256


class SandboxEnding(StrEnum):
    """How a run ended. Only `exited` was the command's own doing; the others ended it.

    `not_started`: bubblewrap or the command could not be started, which is our failure, not the
    command's.
    """

    EXITED = "exited"
    DEADLINE = "deadline"
    MEMORY = "memory"
    DISK_FILES = "disk_files"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"


class MemoryGuard(StrEnum):
    """What held the run to its memory limit."""

    CGROUP_V2 = "cgroup_v2"
    CGROUP_V1 = "cgroup_v1"
    SYSTEMD_RUN = "systemd_run"
    WATCHER = "watcher"


class SandboxResult(Record, frozen=True, kw_only=True):
    """What became of one run.

    Measured from outside: `ending`, `duration_seconds`, `peak_memory_bytes`, `survivors` (the
    processes that were left after the end; anything but 0 is a bug). Claims of the code that ran:
    `exit_code`, `signal`, `stdout`, `stderr` and `files` (path below `OUTPUT_FOLDER` -> content);
    treat them as hostile data. `detail` is one line about the ending.
    """

    ending: SandboxEnding
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    memory_guard: MemoryGuard = MemoryGuard.WATCHER
    survivors: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: dict[str, bytes] = {}
    files_left_out: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the command exited with 0, which says nothing about what it did."""
        return self.ending is SandboxEnding.EXITED and self.exit_code == 0


class SandboxSpec(Record, frozen=True, kw_only=True):
    """One command and all that it gets; what is not named here does not exist inside.

    `command[0]` is an absolute path that `visible` (or /usr) contains. `files` are written below
    `JOB_FOLDER`. `visible` are absolute paths outside that can be read inside, at the same place.
    `devices` are device nodes (Neuron only, see docs/executor.md): they weaken the sandbox.
    `python` runs the first program inside. `log_folder`, if any, receives `stdout.log` and
    `stderr.log` while the command runs.
    """

    command: tuple[str, ...]
    python: str
    files: dict[Name, bytes] = {}
    variables: dict[str, str] = {}
    visible: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    limits: SandboxLimits = SandboxLimits()
    log_folder: str | None = None
    result_file: str | None = None
    lock_file: str | None = None
