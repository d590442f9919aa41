"""Runs requests on this machine: a warm server per environment and device, a child per request.

Environments, and devices within them, run one after the other.

Only transient failures are retried: the server died or hung, no process could be forked, or a child
was killed by a signal. A request that was running when its server died is retried without any other
request beside it, so that the request that caused the failure is found, and no other is blamed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Self

import msgspec

from compilewatch import records
from compilewatch.contract import messages, processes
from compilewatch.contract.failures import DISK_FAILURE, place_in_dump
from compilewatch.contract.messages import ARTIFACTS_FOLDER
from compilewatch.environments import Environments
from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed, Running, by_environment, device_of_worker
from compilewatch.launchers.peer import ServerProcess

GRACE_SECONDS = 2.0
"""The time between SIGTERM, which leaves the Python stack in stderr, and SIGKILL, and then again
until the launcher gives up."""

STDERR_TAIL_BYTES = 16 * 1024


Ending = tuple[records.Status, records.Phase, str]
"""Status, phase and detail of the result of a child that wrote none."""


@dataclass(kw_only=True)
class Task:
    """One request until its result, over one or more children.

    `kills` are the steps to end its child, each with its monotonic time; for the signal None the
    launcher gives up.
    """

    request: records.Request
    tier: records.Tier
    folder: Path
    attempts: list[records.Attempt] = field(default_factory=list)
    crashed_before: bool = False
    could_not_write_before: bool = False
    alone: bool = False
    pid: int | None = None
    started_monotonic: float = 0.0
    started_at: str = ""
    oom_kills_before: int = 0
    ending: Ending | None = None
    kills: list[tuple[float, int | None]] = field(default_factory=list)

    def started(self, pid: int, at: float) -> None:
        self.pid = pid
        self.started_monotonic = at
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.oom_kills_before = oom_kills()

    def marks(self) -> messages.Marks:
        """The phases that its child has entered."""
        return messages.read_marks(self.folder) or ((records.Phase.SETUP, self.started_monotonic),)

    def running(self, now: float) -> Running:
        """The phase in which its child is."""
        phase, begun = self.marks()[-1]
        return Running(name=self.request.model.name, doing=phase.value, seconds=now - begun)

    def over_limit(self, now: float) -> Ending | None:
        """The ending of a child that has exceeded a deadline or its memory limit, else None."""
        phase, begun = self.marks()[-1]
        limits = self.request.deadlines
        if now - begun > limits.of(phase):
            late = f"{phase} did not finish within {limits.of(phase):g} s"
            return records.Status.TIMEOUT, phase, late
        if now - self.started_monotonic > limits.total_seconds:
            late = f"did not finish within {limits.total_seconds:g} s in total; was in {phase}"
            return records.Status.TIMEOUT, phase, late
        limit = self.request.memory_limit_bytes
        used = resident_bytes(self.pid) if self.pid is not None else 0
        if used > limit:
            excess = f"used {used / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB allowed, in {phase}"
            return records.Status.OOM, phase, excess
        return None

    def ending_of(self, exited: messages.Exited | None) -> Ending:
        """How a child ended that wrote no result."""
        if self.ending is not None:
            return self.ending
        status, phase = records.Status.CRASHED, self.marks()[-1][0]
        if exited is None:
            return status, phase, f"ended in {phase}"
        if exited.code >= 0:
            return status, phase, f"exit code {exited.code} in {phase}, without a result"
        number = -exited.code
        if number == signal.SIGKILL and oom_kills() > self.oom_kills_before:
            how = f"killed in {phase}: the machine ran out of memory"
            return records.Status.OOM, phase, how
        known = number in set(signal.Signals)
        name = signal.Signals(number).name if known else f"signal {number}"
        return status, phase, f"{name} in {phase}"

    def result(self, ending: Ending) -> records.Result:
        """The result for a child that wrote none, with the end of its output."""
        status, phase, detail = ending
        kind, marks = status.value, self.marks()
        stderr = processes.tail(self.folder / messages.STDERR_FILE, STDERR_TAIL_BYTES)
        folders = getattr(self.request.model.build, "python_path", ())
        file, line, function = place_in_dump(stderr, folders) or (None, None, None)
        ran = self.pid is not None
        return records.Result(
            request=self.request,
            status=status,
            phase=phase,
            tier=self.tier,
            depth=records.Depth.REDUCED if self.tier is records.Tier.REAL else self.request.depth,
            detail=detail,
            durations=messages.durations(marks, time.monotonic()) if ran else {},
            error=records.ErrorRecord(
                type=kind,
                message=detail,
                code=kind,
                tail=stderr,
                file=file,
                line=line,
                function=function,
            ),
            started_at=self.started_at,
        )

    def completed(
        self, result: records.Result, exited: messages.Exited | None, digest: str, scratch: Path
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


MOST_SERVER_DEATHS = 5
"""The number of deaths in a row, without a finished child in between, that are tolerated."""

FREE_BYTES = 4 * 2**20
"""With less free space than this, the disk counts as full: a trace of one model may need it."""

POLL_SECONDS = 0.1
"""How often deadlines and memory are checked. The exit of a child is reported immediately."""


FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals by which code ends itself: native code that fake tensors reach may be the cause."""


class LocalExecution:
    """The requests of one environment and device in one run."""

    def __init__(
        self, launcher: LocalLauncher, name: str, requests: deque[records.Request], scratch: Path
    ) -> None:
        self.launcher = launcher
        self.name = name
        self.requests = requests
        self.targets = sorted({request.target.name for request in requests})
        self.device = requests[0].device
        self.real_device = device_of_worker(requests[0])[1]
        self.scratch = scratch
        self.retries: deque[Task] = deque()
        self.sent: dict[str, Task] = {}
        self.done: list[Completed] = []
        self.deaths_in_a_row = 0

    def run(self) -> Iterator[Completed]:
        """Yield every result. Closing it early ends the server and deletes the scratch folders."""
        try:
            while self.requests or self.retries or self.sent:
                server = self.launcher.server(
                    self.name, self.targets, device=self.device, real_device=self.real_device
                )
                self._send_next(server)
                for report in server.reports(POLL_SECONDS if self.sent else 0.0):
                    self._take(report)
                self.launcher.warn_if_slow(server)
                if server.alive:
                    self._enforce(server)
                else:
                    self._server_died(server)
                self._send_next(server)  # before the caller spends time on the finished results
                done, self.done = self.done, []
                yield from done
        except BaseException:
            self.launcher.close()
            for task in self.sent.values():
                shutil.rmtree(task.folder, ignore_errors=True)
            raise

    def _send_next(self, server: ServerProcess) -> None:
        """Keep the server's queue as long as its slots, unless a task must run alone."""
        while server.alive and len(self.sent) < 2 * self.launcher.jobs:
            if any(task.alone for task in self.sent.values()):
                return
            task = self._next()
            if task is None:
                return
            if task.alone and self.sent:
                self.retries.appendleft(task)
                return
            try:
                task.folder.mkdir()
            except OSError as error:
                raise _disk_full(self.scratch, error) from None
            folder = str(task.folder)
            self.sent[folder] = task
            server.send(messages.Start(folder=folder, tier=task.tier, request=task.request))

    def _next(self) -> Task | None:
        if self.retries:
            return self.retries.popleft()
        if not self.requests:
            return None
        request = self.requests.popleft()
        tier = records.Tier.REAL if request.tier is records.Tier.REAL else records.Tier.FAKE
        return Task(request=request, tier=tier, folder=self._folder(request))

    def _folder(self, request: records.Request) -> Path:
        number = next(self.launcher.numbers)
        return self.scratch / f"{request.key[:16]}-{os.getpid()}-{number}"

    def _take(self, report: messages.Report) -> None:
        if not isinstance(report, messages.Started | messages.NotStarted | messages.Exited):
            return
        task = self.sent.get(report.folder)
        if task is None:
            return  # the launcher gave up on this child before it ended
        match report:
            case messages.Started(pid=pid, at=at):
                task.started(pid, at)
            case messages.NotStarted(reason=reason):
                self._lost(task, f"no process could be started for it: {reason}")
            case messages.Exited() as exited:
                self._ended(task, exited)

    def _ended(self, task: Task, exited: messages.Exited | None) -> None:
        """Handle the end of a child. A result that it wrote counts, however the child ended."""
        self.deaths_in_a_row = 0
        written = messages.read_result(task.folder)
        if not task.could_not_write_before and _could_not_write(written, exited):
            check_free_space(self.scratch)
            task.could_not_write_before = True  # there is free space now, so it is retried once
            self._retry(task, _attempt(task, written.result) if written is not None else None)
        elif written is not None and written.fake_failure is None:
            self._finish(task, written.result, exited)
        elif written is not None:
            self._retry(
                task, _attempt(task, written.result, written.fake_failure), tier=records.Tier.REAL
            )
        else:
            self._ended_without_result(task, exited)

    def _ended_without_result(self, task: Task, exited: messages.Exited | None) -> None:
        ending = task.ending_of(exited)
        result = task.result(ending)
        if ending[0] is not records.Status.CRASHED or exited is None or exited.code >= 0:
            self._finish(task, result, exited)
        elif task.crashed_before:
            detail = f"{result.detail}, twice"
            self._finish(task, msgspec.structs.replace(result, detail=detail), exited)
        else:
            task.crashed_before = True
            by_its_code = -exited.code in FAULTS and task.request.tier is records.Tier.AUTO
            self._retry(
                task, _attempt(task, result), tier=records.Tier.REAL if by_its_code else None
            )

    def _lost(self, task: Task, why: str) -> None:
        """Retry a lost task alone, since another task may be the cause; fail it the second time."""
        result = task.result((records.Status.CRASHED, task.marks()[-1][0], why))
        if task.alone:
            detail = f"{why}, twice, the second time without other requests running"
            self._finish(task, msgspec.structs.replace(result, detail=detail), None)
        else:
            self._retry(task, _attempt(task, result), alone=True)

    def _server_died(self, server: ServerProcess) -> None:
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row > MOST_SERVER_DEATHS:
            raise LauncherError(
                f"{server.end_reason}, {self.deaths_in_a_row} times without a result in between "
                f"(try: compilewatch env check {self.name})"
            )
        for task in list(self.sent.values()):
            if task.pid is None:
                self._retry(task, None, alone=task.alone)
                continue
            # The kernel has killed the child with its parent, but not the child's own children.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(task.pid, signal.SIGKILL)
            if task.ending is not None or messages.read_result(task.folder) is not None:
                self._ended(task, None)
            else:
                self._lost(task, server.end_reason)

    def _enforce(self, server: ServerProcess) -> None:
        """End the children that are over a limit: first SIGTERM, then SIGKILL, then give up."""
        now = time.monotonic()
        for task in list(self.sent.values()):
            if task.pid is None:
                continue
            if task.ending is None:
                task.ending = task.over_limit(now)
                if task.ending is None:
                    continue
                # There is no grace period for memory, which would keep growing.
                gently = task.ending[0] is records.Status.TIMEOUT
                task.kills = [(now, signal.SIGTERM)] if gently else []
                firmly = now + GRACE_SECONDS if gently else now
                task.kills += [(firmly, signal.SIGKILL), (firmly + GRACE_SECONDS, None)]
            while task.kills and task.kills[0][0] <= now:
                _, which = task.kills.pop(0)
                if which is not None:
                    server.send(messages.Kill(folder=str(task.folder), signal=which))
                else:
                    server.send(messages.Abandon(folder=str(task.folder)))
                    self._ended(task, None)

    def _retry(
        self,
        task: Task,
        attempt: records.Attempt | None,
        *,
        tier: records.Tier | None = None,
        alone: bool = False,
    ) -> None:
        """Queue a task for another child, in a new folder: reports on the old one may still come.

        `attempt` says how this child ended (None: it never ran).
        """
        del self.sent[str(task.folder)]
        shutil.rmtree(task.folder, ignore_errors=True)
        task.folder = self._folder(task.request)
        task.attempts += [attempt] if attempt is not None else []
        task.tier, task.alone = tier or task.tier, alone
        task.pid, task.ending, task.kills = None, None, []
        self.retries.append(task)

    def _finish(self, task: Task, result: records.Result, exited: messages.Exited | None) -> None:
        del self.sent[str(task.folder)]
        digest = self.launcher.digest(self.name)
        self.done.append(task.completed(result, exited, digest, self.scratch))


def _could_not_write(written: messages.ChildResult | None, exited: messages.Exited | None) -> bool:
    """Whether the result or the exit status of a child means that the disk failed."""
    if written is None:
        return exited is not None and exited.code == messages.NO_RESULT
    return written.result.error is not None and written.result.error.code == DISK_FAILURE


def check_free_space(scratch: Path) -> None:
    """Raise LauncherError if `scratch` or the temporary folder has no space for a child's files.

    A failure because of a full disk says nothing about the model and must not become its result.
    """
    for folder in (scratch, Path(tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(FREE_BYTES))
        except OSError as error:
            raise _disk_full(folder, error) from None


def _disk_full(folder: Path, error: OSError) -> LauncherError:
    return LauncherError(
        f"{folder} cannot be written ({error.strerror}): free some space there, then continue "
        "with: compilewatch sweep --resume"
    )


def _attempt(
    task: Task, result: records.Result, fake_failure: str | None = None
) -> records.Attempt:
    codes = records.AttemptCode
    return records.Attempt(
        tier=task.tier,
        status=result.status,
        phase=result.phase,
        code=codes.TRANSIENT if fake_failure is None else codes.FAKE_UNSUPPORTED,
        reason=fake_failure or result.detail,
        durations=result.durations,
    )


_log = logging.getLogger(__name__)


class LocalLauncher:
    """Runs up to `jobs` children at a time. The server stays warm between runs, until `close`.

    `cache` is the folder that holds environments (by default the user's). With `warn`, a server
    that cannot fork is logged. With `single`, the server only imports what one request needs.
    """

    name = "local"

    def __init__(
        self,
        jobs: int | None = None,
        environments: tuple[str, ...] = ("default",),
        *,
        cache: Path | None = None,
        warn: bool = True,
        single: bool = False,
    ) -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self._names = environments
        self._known = Environments(cache)
        self._described: dict[str, records.Environment] = {}
        self._server: ServerProcess | None = None
        self._batch: LocalExecution | None = None
        self.numbers = count(1)
        self._warn = warn
        self._single = single
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environments(self) -> tuple[records.Environment, ...]:
        """Its environments. Raises InterpreterError if one is missing or broken."""
        return tuple(self._describe(name) for name in self._names)

    def close(self) -> None:
        """End the server and its children."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def run(self, requests: Iterable[records.Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Closing the generator early ends the server and its children."""
        groups = by_environment(requests, self._names, "this launcher has")
        for name, group in groups.items():
            for _, part in groupby(group, key=device_of_worker):
                self._batch = LocalExecution(self, name, deque(part), scratch.resolve())
                yield from self._batch.run()

    def running(self) -> list[Running]:
        """See `Launcher`."""
        batch, server = self._batch, self._server
        if batch is None or server is None or not server.alive:
            return []
        if server.environment is None:
            return [Running(name="", doing="starting worker", seconds=server.age_seconds())]
        now = time.monotonic()
        return [task.running(now) for task in list(batch.sent.values()) if task.pid is not None]

    def _describe(self, name: str) -> records.Environment:
        if name not in self._described:
            self._described[name] = self._known.describe(name)
        return self._described[name]

    def server(
        self,
        name: str,
        targets: Iterable[str] = (),
        *,
        device: records.DeclaredDevice | None = None,
        real_device: bool = False,
    ) -> ServerProcess:
        """The running server of an environment and device, started for `targets` if need be."""
        if self._server is not None and not self._server.suits(name, device, real_device):
            self.close()
        if self._server is None:
            self._server = ServerProcess(
                name,
                self._known.interpreter(name),
                self.jobs,
                targets,
                single=self._single,
                device=device,
                real_device=real_device,
            )
        return self._server

    def warn_if_slow(self, server: ServerProcess) -> None:
        """Log once per environment that its server cannot fork."""
        expected = server.threads == 1 or server.real_device
        if self._warn and not expected and server.name not in self._warned:
            self._warned.add(server.name)
            _log.warning(cannot_fork(server.name, server.threads))

    def digest(self, name: str) -> str:
        """The environment's digest for results. Raises LauncherError if it changed meanwhile."""
        known = self._describe(name)
        server = self._server
        if server is not None and server.environment is not None:
            actual = server.environment.digest
            if actual != known.digest:
                self._known.forget(name)
                changed = records.environment_differences(known, server.environment)
                raise LauncherError(
                    f"environment {name!r} changed while it was in use "
                    f"({', '.join(changed) or 'other files'}): start a new run"
                )
        return known.digest


def cannot_fork(environment: str, threads: int) -> str:
    """One sentence on the consequence of a server with several threads."""
    return (
        f"environment {environment!r}: importing torch and transformers there starts "
        f"{threads - 1} more threads, so workers cannot be forked: each request starts a new "
        "process, which takes several seconds more"
    )
