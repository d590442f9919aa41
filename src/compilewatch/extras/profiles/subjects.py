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
from compilewatch.extras.profiles.records import EAGER, BatchPoint, target_kind
from compilewatch.launchers.peer import ServerProcess
from compilewatch.records import Status

TARGETS = (EAGER, "inductor", "xla")
"""What inference can be profiled on."""

POLL_SECONDS = 0.5
"""How often the memory of a working subject is checked: often enough, and without disturbing it."""

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
    """The worker server of one environment; `said` is its newest report on each subject."""

    def __init__(self, name: str, targets: Iterable[str], known: Environments, device: str) -> None:
        super().__init__(
            name,
            known.interpreter(name),
            SUBJECTS,
            targets,
            single=True,
            real_device=device != CPU,
        )
        self.said: dict[str, Started | NotStarted | Exited] = {}

    def listen(self, seconds: float) -> None:
        """Take note of what it reports, after waiting up to so long. Raises LauncherError."""
        for report in self.reports(seconds):
            if isinstance(report, Started | NotStarted | Exited):
                self.said[report.folder] = report
        if not self.alive:
            raise LauncherError(
                f"environment {self.name!r}: {self.end_reason}: {self.last_line()} "
                f"(try: compilewatch env check {self.name})"
            )


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

    def start(self, subject: ProfiledSubject, request: core.Request) -> None:
        """Start the process of a subject; `request` is that of its model."""
        subject.start(self.servers[environment_of(subject.target)], request)


class ProfiledSubject:
    """A process with what is known of it so far: its point, and its times by round.

    What it writes is in `folder`. `prepared` is None if it failed before it had a model.
    """

    def __init__(self, target: str, size: int, folder: Path) -> None:
        self.target = target
        self.kind = target_kind(target)
        self.folder = folder
        self.point = BatchPoint(batch_size=size, status=Status.PASS)
        self.prepared: messages.Prepared | None = None
        self.wall: list[tuple[float, ...]] = []
        self.cpu: list[tuple[float, ...]] = []
        self._pipes: list[int] = []
        self._received = b""

    @property
    def alive(self) -> bool:
        return self.point.status is Status.PASS

    def start(self, server: SubjectServer, request: core.Request) -> None:
        """Start its process. `request` has the work `profile`."""
        self._server, self._name = server, str(self.folder)
        self._limit = request.memory_limit_bytes
        self._pipes = [_pipe(self.folder / name) for name in (messages.ORDERS, messages.REPLIES)]
        real = core.Tier.REAL
        server.said.pop(self._name, None)  # of an earlier process
        server.send(Start(folder=self._name, tier=real, request=request))

    def ask(self, step: str, kind: type[T], deadline_seconds: float, **options: Any) -> T:
        """Let it do a step, a method of `worker.subject.ProfiledModel`, and return what it returns.

        Raises SubjectError if it could not; the process has then ended, unless the step raised an
        error. Raises LauncherError if the server has ended or hangs.
        """
        if not self._pipes:
            raise SubjectError(_failed(Status.CRASHED, "its process has ended"))
        orders, replies = self._pipes
        os.write(orders, msgspec.json.encode(messages.Order(step=step, options=options)) + b"\n")
        end = time.monotonic() + deadline_seconds
        while not (line := self._line(replies)):
            failure = self._failure()
            if time.monotonic() > end:
                words = f"did not finish within {deadline_seconds:g} s"
                failure = failure or _failed(Status.TIMEOUT, words)
            if failure is not None:
                self.end()
                raise SubjectError(failure)
            select.select([replies, self._server.fileno()], [], [], POLL_SECONDS)
            self._server.listen(0.0)
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

    def _failure(self) -> messages.ProfileFailure | None:
        """How its process ended, or that it takes too much memory."""
        match self._server.said.get(self._name):
            case NotStarted(reason=reason):
                return _failed(Status.CRASHED, f"no process could be started: {reason}")
            case Exited(code=code) if code >= 0:
                return _failed(Status.CRASHED, f"ended with exit code {code}")
            case Exited(code=code):
                # The kernel's memory killer uses SIGKILL, and so does nobody else here.
                status = Status.OOM if code == -signal.SIGKILL else Status.CRASHED
                return _failed(status, f"ended by {signal.Signals(-code).name}")
            case Started(pid=pid) if (used := resident_bytes(pid) or 0) > self._limit:
                allowed = f"{self._limit / 2**30:.1f} GiB allowed"
                return _failed(Status.OOM, f"used {used / 2**30:.1f} GiB of {allowed}")
        return None

    def measure(self, step: str, deadline_seconds: float, **options: Any) -> None:
        """Let it do a step that adds figures to its point. Raises SubjectError."""
        self.point = self.ask(step, BatchPoint, deadline_seconds, **options)

    def failed(self, error: SubjectError) -> None:
        failure = msgspec.structs.asdict(error.failure)
        self.point = msgspec.structs.replace(self.point, **failure)

    def end(self) -> None:
        """End its process and wait for that; it may have ended before."""
        end = time.monotonic() + END_SECONDS
        with suppress(LauncherError):
            while self._pipes and time.monotonic() < end:
                if isinstance(self._server.said.get(self._name), NotStarted | Exited):
                    break
                self._server.send(Kill(folder=self._name, signal=signal.SIGKILL))
                self._server.listen(POLL_SECONDS)
        while self._pipes:
            os.close(self._pipes.pop())


def _failed(status: Status, detail: str) -> messages.ProfileFailure:
    return messages.ProfileFailure(status=status, phase=core.Phase.PROFILE, detail=detail)


def _pipe(path: Path) -> int:
    """Make a named pipe and open it for both ends, so that neither opening nor reading waits."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
