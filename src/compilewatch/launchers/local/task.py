"""One child as its launcher sees it: its limits, and its result if it wrote none."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from compilewatch.contract import processes
from compilewatch.contract.failures import place_in_dump
from compilewatch.contract.messages import (
    ARTIFACTS_FOLDER,
    STDERR_FILE,
    Exited,
    durations,
    read_marks,
)
from compilewatch.launchers import Completed, Running
from compilewatch.records import (
    Attempt,
    Depth,
    ErrorRecord,
    Phase,
    Request,
    Result,
    Status,
    Tier,
)

GRACE_SECONDS = 2.0
"""The time between SIGTERM, which leaves the Python stack in stderr, and SIGKILL, and then again
until the launcher gives up."""

STDERR_TAIL_BYTES = 16 * 1024


@dataclass(kw_only=True)
class ChildEnding:
    """How a child ended or was ended: its result has these values if it wrote none."""

    status: Status
    phase: Phase
    detail: str


@dataclass(kw_only=True)
class Task:
    """One request until its result, over one or more children.

    `kills` are the steps to end its child, each with its monotonic time; for the signal None the
    launcher gives up.
    """

    id: int
    request: Request
    tier: Tier
    folder: Path
    attempts: list[Attempt] = field(default_factory=list)
    crashed_before: bool = False
    could_not_write_before: bool = False
    alone: bool = False
    pid: int | None = None
    started_monotonic: float = 0.0
    started_at: str = ""
    oom_kills_before: int = 0
    ending: ChildEnding | None = None
    kills: list[tuple[float, int | None]] = field(default_factory=list)

    def started(self, pid: int, at: float) -> None:
        self.pid = pid
        self.started_monotonic = at
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.oom_kills_before = oom_kills()

    def again(
        self, number: int, folder: Path, tier: Tier, attempt: Attempt | None, *, alone: bool
    ) -> None:
        """Prepare for another child; `attempt` says how this one ended (None: it never ran)."""
        if attempt is not None:
            self.attempts.append(attempt)
        self.id = number
        self.folder = folder
        self.tier = tier
        self.alone = alone
        self.pid = None
        self.ending = None
        self.kills = []

    def phase(self) -> Phase:
        marks = read_marks(self.folder)
        return marks[-1][0] if marks else Phase.SETUP

    def running(self, now: float) -> Running:
        """The phase in which its child is."""
        marks = read_marks(self.folder) or ((Phase.SETUP, self.started_monotonic),)
        phase, begun = marks[-1]
        return Running(name=self.request.model.name, doing=phase.value, seconds=now - begun)

    def over_limit(self, now: float) -> ChildEnding | None:
        """The ending of a child that has exceeded a deadline or its memory limit, else None."""
        marks = read_marks(self.folder) or ((Phase.SETUP, self.started_monotonic),)
        phase, begun = marks[-1]
        limits = self.request.deadlines
        if now - begun > limits.of(phase):
            detail = f"{phase} did not finish within {limits.of(phase):g} s"
            return ChildEnding(status=Status.TIMEOUT, phase=phase, detail=detail)
        if now - self.started_monotonic > limits.total_seconds:
            detail = f"did not finish within {limits.total_seconds:g} s in total; was in {phase}"
            return ChildEnding(status=Status.TIMEOUT, phase=phase, detail=detail)
        limit = self.request.memory_limit_bytes
        used = resident_bytes(self.pid) if self.pid is not None else 0
        if used > limit:
            detail = f"used {used / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB allowed, in {phase}"
            return ChildEnding(status=Status.OOM, phase=phase, detail=detail)
        return None

    def ending_of(self, exited: Exited | None) -> ChildEnding:
        """How a child ended that wrote no result."""
        if self.ending is not None:
            return self.ending
        phase = self.phase()
        if exited is None:
            return ChildEnding(status=Status.CRASHED, phase=phase, detail=f"ended in {phase}")
        if exited.signal is None:
            how = f"exit code {exited.exit_code} in {phase}, without a result"
            return ChildEnding(status=Status.CRASHED, phase=phase, detail=how)
        if exited.signal == signal.SIGKILL and oom_kills() > self.oom_kills_before:
            how = f"killed in {phase}: the machine ran out of memory"
            return ChildEnding(status=Status.OOM, phase=phase, detail=how)
        how = f"{signal_name(exited.signal)} in {phase}"
        return ChildEnding(status=Status.CRASHED, phase=phase, detail=how)

    def result(self, ending: ChildEnding, exited: Exited | None) -> Result:
        """The result for a child that wrote none, with the end of its output."""
        now = exited.at if exited is not None else time.monotonic()
        kind = ending.status.value
        stderr = file_tail(self.folder / STDERR_FILE)
        folders = getattr(self.request.model.build, "python_path", ())
        file, line, function = place_in_dump(stderr, folders) or (None, None, None)
        return Result(
            request=self.request,
            status=ending.status,
            phase=ending.phase,
            tier=self.tier,
            depth=Depth.REDUCED if self.tier is Tier.REAL else self.request.depth,
            detail=ending.detail,
            durations=self.durations(now),
            error=ErrorRecord(
                type=kind,
                message=ending.detail,
                code=kind,
                tail=stderr,
                file=file,
                line=line,
                function=function,
            ),
            started_at=self.started_at,
        )

    def durations(self, end: float) -> dict[str, float]:
        marks = read_marks(self.folder) or ((Phase.SETUP, self.started_monotonic),)
        return durations(marks, end) if self.pid is not None else {}

    def completed(
        self, result: Result, exited: Exited | None, digest: str, scratch: Path
    ) -> Completed:
        """The finished result. The folder is deleted, except for artifacts to be stored."""
        result = msgspec.structs.replace(
            result,
            attempts=tuple(self.attempts),
            peak_memory_bytes=exited.peak_memory_bytes if exited is not None else None,
            environment_digest=digest,
            started_at=result.started_at or self.started_at,
        )
        kept: Path | None = None
        artifacts = self.folder / ARTIFACTS_FOLDER
        if self.request.keep_artifacts and artifacts.is_dir() and any(artifacts.iterdir()):
            kept = scratch / f"{self.folder.name}-{ARTIFACTS_FOLDER}"
            artifacts.rename(kept)
        shutil.rmtree(self.folder, ignore_errors=True)
        return Completed(result=result, artifacts=kept)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, or of its child that has more; 0 if the process has ended.

    It is not their sum, because a forked process shares the pages of its parent. Without /proc the
    value is 0 too.
    """
    return max(
        processes.resident_bytes(process) or 0 for process in (pid, *processes.children(pid))
    )


def oom_kills() -> int:
    """How many processes the kernel has killed since boot because memory was full; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def file_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - STDERR_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
