"""The requests of one environment and device in one run: sent, supervised, retried, completed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from compilewatch.contract.failures import DISK_FAILURE
from compilewatch.contract.messages import (
    NO_RESULT,
    Abandon,
    ChildResult,
    Exited,
    Kill,
    NotStarted,
    Report,
    Start,
    Started,
    read_result,
)
from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed, device_of_worker
from compilewatch.launchers.local.server import ServerProcess
from compilewatch.launchers.local.task import GRACE_SECONDS, ChildEnding, Task
from compilewatch.records import (
    Attempt,
    AttemptCode,
    Request,
    Result,
    Status,
    Tier,
)

if TYPE_CHECKING:
    from compilewatch.launchers.local.launcher import LocalLauncher

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
        self, launcher: LocalLauncher, name: str, requests: deque[Request], scratch: Path
    ) -> None:
        self.launcher = launcher
        self.name = name
        self.requests = requests
        self.targets = sorted({request.target.name for request in requests})
        self.device = requests[0].device
        self.real_device = device_of_worker(requests[0])[1]
        self.scratch = scratch
        self.retries: deque[Task] = deque()
        self.sent: dict[int, Task] = {}
        self.done: list[Completed] = []
        self.deaths_in_a_row = 0

    def run(self, following: LocalExecution | None = None) -> Iterator[Completed]:
        """Yield every result. Closing it early ends the server and deletes the scratch folders.

        The server of the batch that is `following` starts when this one leaves a slot free.
        """
        finished = False
        try:
            yield from self._completed(following)
            finished = True
        finally:
            if not finished:
                self.launcher.close()
                for task in self.sent.values():
                    shutil.rmtree(task.folder, ignore_errors=True)

    def _completed(self, following: LocalExecution | None) -> Iterator[Completed]:
        while self.requests or self.retries or self.sent:
            server = self.launcher.server(
                self.name, self.targets, device=self.device, real_device=self.real_device
            )
            self._send_next(server)
            if following is not None and len(self.sent) < self.launcher.jobs:
                self.launcher.prepare(following)
                following = None
            for report in server.receive(POLL_SECONDS if self.sent else 0.0):
                self._take(report)
            self.launcher.warn_if_slow(server)
            if server.alive:
                self._enforce(server)
            else:
                self._server_died(server)
            self._send_next(server)  # before the caller spends time on the finished results
            done, self.done = self.done, []
            yield from done

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
            self.sent[task.id] = task
            folder = str(task.folder)
            server.send(Start(id=task.id, folder=folder, tier=task.tier, request=task.request))

    def _next(self) -> Task | None:
        if self.retries:
            return self.retries.popleft()
        if not self.requests:
            return None
        request = self.requests.popleft()
        tier = Tier.REAL if request.tier is Tier.REAL else Tier.FAKE
        number, folder = self._place(request)
        return Task(id=number, request=request, tier=tier, folder=folder)

    def _place(self, request: Request) -> tuple[int, Path]:
        number = next(self.launcher.ids)
        return number, self.scratch / f"{request.key[:16]}-{os.getpid()}-{number}"

    def _take(self, report: Report) -> None:
        if not isinstance(report, Started | NotStarted | Exited):
            return
        task = self.sent.get(report.id)
        if task is None:
            return  # the launcher gave up on this child before it ended
        match report:
            case Started(pid=pid, at=at):
                task.started(pid, at)
            case NotStarted(reason=reason):
                self._lost(task, f"no process could be started for it: {reason}")
            case Exited() as exited:
                self._ended(task, exited)

    def _ended(self, task: Task, exited: Exited | None) -> None:
        """Handle the end of a child. A result that it wrote counts, however the child ended."""
        self.deaths_in_a_row = 0
        written = read_result(task.folder)
        if not task.could_not_write_before and _could_not_write(written, exited):
            check_free_space(self.scratch)
            task.could_not_write_before = True  # there is free space now, so it is retried once
            result = written.result if written is not None else None
            self._retry(task, _attempt(task, result) if result is not None else None)
        elif written is not None and written.fake_failure is None:
            self._finish(task, written.result, exited)
        elif written is not None:
            self._retry(task, _attempt(task, written.result, written.fake_failure), tier=Tier.REAL)
        else:
            self._ended_without_result(task, exited)

    def _ended_without_result(self, task: Task, exited: Exited | None) -> None:
        ending = task.ending_of(exited)
        result = task.result(ending, exited)
        by_signal = exited is not None and exited.signal is not None
        if ending.status is not Status.CRASHED or not by_signal:
            self._finish(task, result, exited)
        elif task.crashed_before:
            detail = f"{ending.detail}, twice"
            self._finish(task, msgspec.structs.replace(result, detail=detail), exited)
        else:
            task.crashed_before = True
            assert exited is not None
            by_its_code = exited.signal in FAULTS and task.request.tier is Tier.AUTO
            self._retry(task, _attempt(task, result), tier=Tier.REAL if by_its_code else None)

    def _lost(self, task: Task, why: str) -> None:
        """Retry a lost task alone, since another task may be the cause; fail it the second time."""
        ending = ChildEnding(status=Status.CRASHED, phase=task.phase(), detail=why)
        result = task.result(ending, None)
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
            if task.ending is not None or read_result(task.folder) is not None:
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
                gently = task.ending.status is Status.TIMEOUT
                task.kills = [(now, signal.SIGTERM)] if gently else []
                firmly = now + GRACE_SECONDS if gently else now
                task.kills += [(firmly, signal.SIGKILL), (firmly + GRACE_SECONDS, None)]
            while task.kills and task.kills[0][0] <= now:
                _, which = task.kills.pop(0)
                if which is not None:
                    server.send(Kill(id=task.id, signal=which))
                else:
                    server.send(Abandon(id=task.id))
                    self._ended(task, None)

    def _retry(
        self,
        task: Task,
        attempt: Attempt | None,
        *,
        tier: Tier | None = None,
        alone: bool = False,
    ) -> None:
        """Queue a task for another child, with a new id: reports on the old one may still come."""
        del self.sent[task.id]
        shutil.rmtree(task.folder, ignore_errors=True)
        number, folder = self._place(task.request)
        task.again(number, folder, tier or task.tier, attempt, alone=alone)
        self.retries.append(task)

    def _finish(self, task: Task, result: Result, exited: Exited | None) -> None:
        del self.sent[task.id]
        digest = self.launcher.digest(self.name)
        self.done.append(task.completed(result, exited, digest, self.scratch))


def _could_not_write(written: ChildResult | None, exited: Exited | None) -> bool:
    """Whether the result or the exit status of a child means that the disk failed."""
    if written is None:
        return exited is not None and exited.exit_code == NO_RESULT
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


def _attempt(task: Task, result: Result, fake_failure: str | None = None) -> Attempt:
    needs_values = fake_failure is not None
    return Attempt(
        tier=task.tier,
        status=result.status,
        phase=result.phase,
        code=AttemptCode.FAKE_UNSUPPORTED if needs_values else AttemptCode.TRANSIENT,
        reason=fake_failure or result.detail,
        durations=result.durations,
    )
