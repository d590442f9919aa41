"""Runs requests on this machine: a warm server per environment, a forked child per request.

Environments take turns, so that no two imports of torch fight for memory. Transient failures are
retried, and only those: the server died or hung, no process could be forked, a child was killed by
a signal. A request that was running when its server died runs next with nothing beside it, so
that the one to blame is found and its neighbours are not blamed.
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
from itertools import count
from pathlib import Path
from typing import Self

import msgspec

from compilewatch.contract.failures import DISK_FAILURE
from compilewatch.contract.messages import (
    NO_RESULT,
    Abandon,
    Answer,
    Exited,
    Kill,
    NotStarted,
    Report,
    Start,
    Started,
    read_answer,
)
from compilewatch.environments import describe, forget, interpreter
from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed, Running, by_environment
from compilewatch.launchers.local.server import ServerProcess
from compilewatch.launchers.local.task import GRACE_SECONDS, Task, Verdict
from compilewatch.records import Attempt, AttemptCode, Environment, Request, Result, Status, Tier

MOST_SERVER_DEATHS = 5
"""In a row, with no child ended in between, before the launcher gives up."""

ROOM_BYTES = 4 * 2**20
"""Less free than this is a full disk: a trace of one model may take as much."""

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How often deadlines and memory are looked at. An exit is reported, and noticed at once."""


class LocalLauncher:
    """`jobs` children at a time. The server stays warm between runs, until `close`.

    `server_patience_seconds` is how long a server may be silent before it counts as hung; `cache`
    is the folder that holds environments (the user's). `warn` logs a server that cannot fork.
    With `single`, for one request, the server is warm for nothing else.
    """

    name = "local"

    def __init__(
        self,
        jobs: int | None = None,
        environments: tuple[str, ...] = ("default",),
        *,
        server_patience_seconds: float = 30.0,
        cache: Path | None = None,
        warn: bool = True,
        single: bool = False,
    ) -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self._names = environments
        self._patience = server_patience_seconds
        self._cache = cache
        self._described: dict[str, Environment] = {}
        self._server: ServerProcess | None = None
        self._batch: _Batch | None = None
        self._ids = count(1)
        self._warn = warn
        self._single = single
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environments(self) -> tuple[Environment, ...]:
        """Raises InterpreterError where one is missing or broken."""
        return tuple(self._describe(name) for name in self._names)

    def close(self) -> None:
        """End the server and whatever it still runs."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Leaving early ends the server as well as its children."""
        for name, asked in by_environment(requests, self._names, "this launcher has").items():
            if asked:
                self._batch = _Batch(self, name, deque(asked), scratch.resolve())
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

    def _describe(self, name: str) -> Environment:
        if name not in self._described:
            self._described[name] = describe(name, self._cache)
        return self._described[name]

    def server(self, name: str, targets: Iterable[str] = ()) -> ServerProcess:
        """The running server of an environment; started, warm for `targets`, if there is none."""
        if self._server is not None and (self._server.name != name or not self._server.alive):
            self.close()
        if self._server is None:
            chosen = interpreter(name, self._cache)
            self._server = ServerProcess(
                name, chosen, self.jobs, self._patience, targets, single=self._single
            )
        return self._server

    def warn_if_slow(self, server: ServerProcess) -> None:
        """Log, once for an environment, that its server cannot fork."""
        if self._warn and server.threads > 1 and server.name not in self._warned:
            self._warned.add(server.name)
            _log.warning(cannot_fork(server.name, server.threads))

    def digest(self, name: str) -> str:
        """The digest that results carry. Raises LauncherError if the environment changed since."""
        known = self._describe(name)
        server = self._server
        if server is not None and server.environment is not None:
            actual = server.environment.digest
            if actual != known.digest:
                forget(name, self._cache)
                raise LauncherError(
                    f"environment {name!r} changed while it was in use "
                    f"(torch {known.torch} -> {server.environment.torch}): start again"
                )
        return known.digest


class _Batch:
    """The requests of one environment in one run."""

    def __init__(
        self, launcher: LocalLauncher, name: str, requests: deque[Request], scratch: Path
    ) -> None:
        self.launcher = launcher
        self.name = name
        self.requests = requests
        self.targets = sorted({request.target.name for request in requests})
        self.scratch = scratch
        self.retries: deque[Task] = deque()
        self.sent: dict[int, Task] = {}
        self.done: list[Completed] = []
        self.deaths_in_a_row = 0

    def run(self) -> Iterator[Completed]:
        """Yield every answer; left early, the server is ended and nothing stays in scratch."""
        finished = False
        try:
            yield from self._answers()
            finished = True
        finally:
            if not finished:
                self.launcher.close()
                for task in self.sent.values():
                    shutil.rmtree(task.folder, ignore_errors=True)

    def _answers(self) -> Iterator[Completed]:
        while self.requests or self.retries or self.sent:
            server = self.launcher.server(self.name, self.targets)
            self._send_next(server)
            for report in server.receive(POLL_SECONDS if self.sent else 0.0):
                self._take(report)
            self.launcher.warn_if_slow(server)
            if server.alive:
                self._enforce(server)
            else:
                self._server_died(server)
            self._send_next(server)  # before the caller takes its time over what is done
            done, self.done = self.done, []
            yield from done

    def _send_next(self, server: ServerProcess) -> None:
        """Keep the server's queue as long as its slots, unless somebody must run alone."""
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
                raise _no_room(self.scratch, error) from None
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
        number = next(self.launcher._ids)
        return number, self.scratch / f"{request.key[:16]}-{os.getpid()}-{number}"

    def _take(self, report: Report) -> None:
        if not isinstance(report, Started | NotStarted | Exited):
            return
        task = self.sent.get(report.id)
        if task is None:
            return  # given up before it ended after all
        match report:
            case Started(pid=pid, at=at):
                task.started(pid, at)
            case NotStarted(reason=reason):
                self._lost(task, f"no process could be made for it: {reason}")
            case Exited() as exited:
                self._ended(task, exited)

    def _ended(self, task: Task, exited: Exited | None) -> None:
        """A child is gone: its result stands if it wrote one, however it then ended."""
        self.deaths_in_a_row = 0
        answer = read_answer(task.folder)
        if not task.could_not_write_before and _could_not_write(answer, exited):
            check_room(self.scratch)
            task.could_not_write_before = True  # there is room now: once more
            result = answer.result if answer is not None else None
            self._retry(task, _attempt(task, result) if result is not None else None)
        elif answer is not None and answer.fake_failure is None:
            self._finish(task, answer.result, exited)
        elif answer is not None:
            self._retry(task, _attempt(task, answer.result, answer.fake_failure), tier=Tier.REAL)
        else:
            self._fell_silent(task, exited)

    def _fell_silent(self, task: Task, exited: Exited | None) -> None:
        verdict = task.silence(exited)
        result = task.result(verdict, exited)
        by_signal = exited is not None and exited.signal is not None
        if verdict.status is not Status.CRASHED or not by_signal:
            self._finish(task, result, exited)
        elif task.crashed_before:
            detail = f"{verdict.detail}, twice"
            self._finish(task, msgspec.structs.replace(result, detail=detail), exited)
        else:
            task.crashed_before = True
            self._retry(task, _attempt(task, result))

    def _lost(self, task: Task, why: str) -> None:
        """Through no known fault of its own: once more, alone, and if it happens again it was."""
        verdict = Verdict(status=Status.CRASHED, phase=task.phase(), detail=why)
        result = task.result(verdict, None)
        if task.alone:
            detail = f"{why}, twice, the second time with nothing else running"
            self._finish(task, msgspec.structs.replace(result, detail=detail), None)
        else:
            self._retry(task, _attempt(task, result), alone=True)

    def _server_died(self, server: ServerProcess) -> None:
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row > MOST_SERVER_DEATHS:
            raise LauncherError(
                f"{server.gone_because}, {self.deaths_in_a_row} times with nothing done in between "
                f"(try: compilewatch env check {self.name})"
            )
        for task in list(self.sent.values()):
            if task.pid is None:
                self._retry(task, None, alone=task.alone)
                continue
            # The kernel has killed the child with its parent, but not what the child had forked.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(task.pid, signal.SIGKILL)
            if task.verdict is not None or read_answer(task.folder) is not None:
                self._ended(task, None)
            else:
                self._lost(task, server.gone_because)

    def _enforce(self, server: ServerProcess) -> None:
        """End the children whose time or memory is spent, more and more firmly."""
        now = time.monotonic()
        for task in list(self.sent.values()):
            if task.pid is None:
                continue
            if task.verdict is None:
                task.verdict = task.overdue(now)
                if task.verdict is None:
                    continue
                # Memory is growing while we wait: no grace for that.
                gently = task.verdict.status is Status.TIMEOUT
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
        """Queue a task for another child, under a new id: the old one may still be heard of."""
        del self.sent[task.id]
        shutil.rmtree(task.folder, ignore_errors=True)
        number, folder = self._place(task.request)
        task.again(number, folder, tier or task.tier, attempt, alone=alone)
        self.retries.append(task)

    def _finish(self, task: Task, result: Result, exited: Exited | None) -> None:
        del self.sent[task.id]
        digest = self.launcher.digest(self.name)
        self.done.append(task.completed(result, exited, digest, self.scratch))


def _could_not_write(answer: Answer | None, exited: Exited | None) -> bool:
    """Whether a child says, or its end suggests, that the machine's disk failed it."""
    if answer is None:
        return exited is not None and exited.exit_code == NO_RESULT
    return answer.result.error is not None and answer.result.error.code == DISK_FAILURE


def check_room(scratch: Path) -> None:
    """Raise LauncherError where `scratch` or the temporary folder has no room for a child's files.

    What a full disk did to a child says nothing about its model, and must not be stored as if.
    """
    for folder in (scratch, Path(tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(ROOM_BYTES))
        except OSError as error:
            raise _no_room(folder, error) from None


def _no_room(folder: Path, error: OSError) -> LauncherError:
    return LauncherError(
        f"{folder} cannot be written ({error.strerror}): free some space there, then continue "
        "with: compilewatch sweep --resume"
    )


def cannot_fork(environment: str, threads: int) -> str:
    """The consequence of a server with several threads, in one sentence."""
    return (
        f"environment {environment!r}: importing torch and transformers there starts "
        f"{threads - 1} more threads, so workers cannot be forked: each request starts a process "
        "of its own, which takes several seconds more"
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
