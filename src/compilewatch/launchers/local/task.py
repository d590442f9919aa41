"""One child as its launcher sees it: how long it may go on, and what its silence means."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

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
"""Between SIGTERM, which leaves the Python stack in stderr, and SIGKILL, and again to giving up."""

STDERR_TAIL_BYTES = 16 * 1024


@dataclass(kw_only=True)
class Verdict:
    """Why a child was ended: what its result will be if it wrote none."""

    status: Status
    phase: Phase
    detail: str


@dataclass(kw_only=True)
class Task:
    """One request on its way to an answer, over one or more children.

    `kills` are the steps to end it, each with its monotonic time; the signal None is giving up.
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
    verdict: Verdict | None = None
    kills: list[tuple[float, int | None]] = field(default_factory=list)

    def started(self, pid: int, at: float) -> None:
        self.pid = pid
        self.started_monotonic = at
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.oom_kills_before = oom_kills()

    def again(
        self, number: int, folder: Path, tier: Tier, attempt: Attempt | None, *, alone: bool
    ) -> None:
        """Prepare for another child, keeping what became of this one (None: it never ran)."""
        if attempt is not None:
            self.attempts.append(attempt)
        self.id = number
        self.folder = folder
        self.tier = tier
        self.alone = alone
        self.pid = None
        self.verdict = None
        self.kills = []

    def phase(self) -> Phase:
        marks = read_marks(self.folder)
        return marks[-1][0] if marks else Phase.SETUP

    def running(self, now: float) -> Running:
        """What its child does."""
        marks = read_marks(self.folder) or ((Phase.SETUP, self.started_monotonic),)
        phase, begun = marks[-1]
        return Running(name=self.request.model.name, doing=phase.value, seconds=now - begun)

    def overdue(self, now: float) -> Verdict | None:
        """A verdict where the child has spent its time or its memory."""
        marks = read_marks(self.folder) or ((Phase.SETUP, self.started_monotonic),)
        phase, begun = marks[-1]
        limits = self.request.deadlines
        if now - begun > limits.of(phase):
            detail = f"no end of {phase} after {limits.of(phase):g} s"
            return Verdict(status=Status.TIMEOUT, phase=phase, detail=detail)
        if now - self.started_monotonic > limits.total_seconds:
            detail = f"not done after {limits.total_seconds:g} s in all, then in {phase}"
            return Verdict(status=Status.TIMEOUT, phase=phase, detail=detail)
        limit = self.request.memory_limit_bytes
        used = resident_bytes(self.pid) if self.pid is not None else 0
        if used > limit:
            detail = f"used {used / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB allowed, in {phase}"
            return Verdict(status=Status.OOM, phase=phase, detail=detail)
        return None

    def silence(self, exited: Exited | None) -> Verdict:
        """What the missing result of a child that is gone means."""
        if self.verdict is not None:
            return self.verdict
        phase = self.phase()
        if exited is None:
            return Verdict(status=Status.CRASHED, phase=phase, detail=f"ended in {phase}")
        if exited.signal is None:
            how = f"exit code {exited.exit_code} in {phase}, without a result"
            return Verdict(status=Status.CRASHED, phase=phase, detail=how)
        if exited.signal == signal.SIGKILL and oom_kills() > self.oom_kills_before:
            how = f"killed in {phase}: the machine ran out of memory"
            return Verdict(status=Status.OOM, phase=phase, detail=how)
        how = f"{signal_name(exited.signal)} in {phase}"
        return Verdict(status=Status.CRASHED, phase=phase, detail=how)

    def result(self, verdict: Verdict, exited: Exited | None) -> Result:
        """The result of a child that wrote none, with the end of what it printed."""
        now = exited.at if exited is not None else time.monotonic()
        kind = verdict.status.value
        stderr = file_tail(self.folder / STDERR_FILE)
        folders = getattr(self.request.model.build, "python_path", ())
        file, line, function = place_in_dump(stderr, folders) or (None, None, None)
        return Result(
            request=self.request,
            status=verdict.status,
            phase=verdict.phase,
            tier=self.tier,
            depth=Depth.REDUCED if self.tier is Tier.REAL else self.request.depth,
            detail=verdict.detail,
            durations=self.durations(now),
            error=ErrorRecord(
                type=kind,
                message=verdict.detail,
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
        """The finished answer; the folder is cleared but for the artifacts to hand over."""
        result = msgspec.structs.replace(
            result,
            attempts=tuple(self.attempts),
            peak_memory_bytes=exited.peak_memory_bytes if exited is not None else None,
            environment_digest=digest,
            started_at=result.started_at or self.started_at,
        )
        kept: Path | None = None
        made = self.folder / ARTIFACTS_FOLDER
        if self.request.keep_artifacts and made.is_dir() and any(made.iterdir()):
            kept = scratch / f"{self.folder.name}-{ARTIFACTS_FOLDER}"
            made.rename(kept)
        shutil.rmtree(self.folder, ignore_errors=True)
        return Completed(result=result, artifacts=kept)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process or of the child that has more, 0 where it is gone.

    Not their sum: what a target forks shares its parent's pages. (0 too where there is no /proc.)
    """
    return max(_resident_bytes(each) for each in (str(pid), *_children(pid)))


def _children(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123  (as often)
            return file.read().split()
    except OSError:
        return []


def _resident_bytes(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123  (read ten times a second)
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since boot; 0 if it won't say."""
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


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
