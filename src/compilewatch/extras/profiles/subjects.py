"""The processes that a profile measures: children of the core's worker servers, which obey orders.

A subject is a process with one built model, on one target at one batch size. It reads its orders
from one named pipe in its folder and writes a reply to each to another. Only one subject works at a
time, so that the rounds of several targets are interleaved; the others wait.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from compilewatch import records as core
from compilewatch.contract.messages import Exited, Kill, NotStarted, Start, Started
from compilewatch.contract.processes import resident_bytes
from compilewatch.contract.targets import CPU, default_environment
from compilewatch.environments import Environments
from compilewatch.errors import LauncherError, UsageError
from compilewatch.extras.profiles import messages
from compilewatch.extras.profiles.records import EAGER, target_kind
from compilewatch.launchers.peer import ServerProcess
from compilewatch.records import Status

TARGETS = (EAGER, "inductor", "xla")
"""What inference can be profiled on."""

POLL_SECONDS = 0.5
"""How often the memory of a working subject is checked: often enough, and without disturbing it."""

PING_SECONDS = 30.0

END_SECONDS = 10.0

SUBJECTS = 64
"""More than live at a time: none waits for a free slot."""

T = TypeVar("T")


def environment_of(target: str) -> str:
    """The environment in which a target is profiled: the one that it names, or its default."""
    kind, _, named = target.partition("@")
    return named or (core.DEFAULT_ENVIRONMENT if kind == EAGER else default_environment(kind))


def canonical(target: str) -> str:
    """The name of a target without an environment that is its default one."""
    kind = target_kind(target)
    return kind if environment_of(target) == environment_of(kind) else target


def check_targets(targets: Sequence[str], device: str = CPU) -> None:
    """Raises UsageError for a target that cannot be profiled, or that is named twice."""
    for name in targets:
        kind, at, environment = name.partition("@")
        if kind not in TARGETS:
            hint = (
                ": profile it on an instance with `compilewatch profile neuron`"
                if kind == "neuron"
                else f"; known: {', '.join(TARGETS)}, each with @ENVIRONMENT"
            )
            raise UsageError(f"inference on {name!r} cannot be profiled here{hint}")
        if at and not environment:
            raise UsageError(f"{name!r} names no environment, such as {kind}@torch-2.13")
        if kind == "xla" and device != CPU:
            raise UsageError(f"xla is profiled on the CPU only: leave out --device {device}")
    if len({canonical(name) for name in targets}) != len(targets) or not targets:
        raise UsageError("--targets names each target once, such as eager,inductor")


class SubjectError(Exception):
    """A subject did not carry out an order; `failure` says why. This is data about the model."""

    def __init__(self, failure: messages.ProfileFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class SubjectServer(ServerProcess):
    """The worker server of one environment; `started` and `ended` are its subjects by number.

    `started` has their processes, `ended` how they ended.
    """

    def __init__(self, name: str, targets: Iterable[str], known: Environments, device: str) -> None:
        super().__init__(
            name,
            known.interpreter(name),
            SUBJECTS,
            PING_SECONDS,
            targets,
            single=True,
            real_device=device != CPU,
        )
        self.started: dict[int, int] = {}
        self.ended: dict[int, messages.ProfileFailure] = {}

    def listen(self, seconds: float) -> None:
        """Take note of what it reports, after waiting up to so long. Raises LauncherError."""
        for report in self.reports(seconds):
            match report:
                case Started():
                    self.started[report.id] = report.pid
                case NotStarted():
                    words = f"no process could be started: {report.reason}"
                    self.ended[report.id] = _failure(Status.CRASHED, words)
                case Exited():
                    self.ended[report.id] = _ended(report)
        if not self.alive:
            raise LauncherError(
                f"environment {self.name!r}: {self.end_reason}: {self.last_line()} "
                f"(try: compilewatch env check {self.name})"
            )


def _failure(status: Status, detail: str) -> messages.ProfileFailure:
    return messages.ProfileFailure(status=status, phase=core.Phase.PROFILE, detail=detail)


def _ended(exited: Exited) -> messages.ProfileFailure:
    if exited.signal is None:
        return _failure(Status.CRASHED, f"ended with exit code {exited.exit_code}")
    # The kernel's memory killer uses SIGKILL, and so does nobody else here.
    status = Status.OOM if exited.signal == signal.SIGKILL else Status.CRASHED
    return _failure(status, f"ended by {signal.Signals(exited.signal).name}")


class Profilers:
    """The worker servers of some targets, one for each environment. A context manager."""

    def __init__(
        self, targets: Sequence[str], environments: Environments, device: str = CPU
    ) -> None:
        self.servers: dict[str, SubjectServer] = {}
        try:
            for name in dict.fromkeys(map(environment_of, targets)):
                kinds = (target_kind(t) for t in targets if environment_of(t) == name)
                compiled = [kind for kind in kinds if kind != EAGER]
                self.servers[name] = SubjectServer(name, compiled, environments, device)
            for server in self.servers.values():
                while server.environment is None:
                    server.listen(POLL_SECONDS)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.close()

    def environment(self, target: str) -> core.Environment:
        """The environment of a target, as its server describes it."""
        environment = self.servers[environment_of(target)].environment
        assert environment is not None
        return environment

    def start(self, target: str, request: core.Request, folder: Path) -> SubjectProcess:
        """Start a subject of a target; what it writes is in the folder."""
        return SubjectProcess(self.servers[environment_of(target)], request, folder)


class SubjectProcess:
    """The process of a subject. `request` is that of its model, with the work `profile`."""

    _numbers = count(1)

    def __init__(self, server: SubjectServer, request: core.Request, folder: Path) -> None:
        self.number = next(self._numbers)
        self.server = server
        self._limit = request.memory_limit_bytes
        self._received = b""
        self._pipes = [_pipe(folder / name) for name in (messages.ORDERS, messages.REPLIES)]
        start = Start(id=self.number, folder=str(folder), tier=core.Tier.REAL, request=request)
        server.send(start)

    def ask(self, step: str, kind: type[T], deadline_seconds: float, **options: Any) -> T:
        """Let it do a step, a method of `worker.subject.ProfiledModel`, and return what it returns.

        Raises SubjectError if it could not; the process has then ended, unless the step raised an
        error. Raises LauncherError if the server has ended or hangs.
        """
        if not self._pipes:
            raise SubjectError(_failure(Status.CRASHED, "its process has ended"))
        orders, replies = self._pipes
        os.write(orders, msgspec.json.encode(messages.Order(step=step, options=options)) + b"\n")
        end = time.monotonic() + deadline_seconds
        while not (line := self._line(replies)):
            failure = self.server.ended.get(self.number) or self._exceeded(end, deadline_seconds)
            if failure is not None:
                self.end()
                raise SubjectError(failure)
            select.select([replies, self.server.fileno()], [], [], POLL_SECONDS)
            self.server.listen(0.0)
        reply = msgspec.json.decode(line, type=messages.StepReply)
        if reply.failure is not None:
            raise SubjectError(reply.failure)
        return msgspec.json.decode(reply.value, type=kind)

    def _line(self, replies: int) -> bytes:
        """The reply, once it is complete."""
        with suppress(BlockingIOError):
            self._received += os.read(replies, 1 << 20)
        if not self._received.endswith(b"\n"):
            return b""
        line, self._received = self._received, b""
        return line

    def _exceeded(self, end: float, deadline_seconds: float) -> messages.ProfileFailure | None:
        pid = self.server.started.get(self.number)
        used = (resident_bytes(pid) or 0) if pid is not None else 0
        if time.monotonic() > end:
            return _failure(Status.TIMEOUT, f"did not finish within {deadline_seconds:g} s")
        if used > self._limit:
            words = f"used {used / 2**30:.1f} GiB of {self._limit / 2**30:.1f} GiB allowed"
            return _failure(Status.OOM, words)
        return None

    def end(self) -> None:
        """End it and wait for that; it may have ended before."""
        end = time.monotonic() + END_SECONDS
        with suppress(LauncherError):
            while self.number not in self.server.ended and time.monotonic() < end:
                self.server.send(Kill(id=self.number, signal=signal.SIGKILL))
                self.server.listen(POLL_SECONDS)
        while self._pipes:
            os.close(self._pipes.pop())


def _pipe(path: Path) -> int:
    """Make a named pipe and open it for both ends, so that neither opening nor reading waits."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
