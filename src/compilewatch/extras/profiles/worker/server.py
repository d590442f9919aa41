"""`extras.profiles.worker.server --channel FD --environment NAME`: the profiling server.

It imports torch once, forks a subject for each job, passes every order on to its subject and sends
one reply to each. It is synchronous on purpose: while a subject measures, nothing else of
this profile may run. When the parent ends, the server ends all subjects.
"""

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from compilewatch.contract.failures import error_record, one_line
from compilewatch.contract.messages import Lines, encoded
from compilewatch.contract.processes import resident_bytes
from compilewatch.errors import CompilewatchError, UsageError
from compilewatch.extras.profiles import messages
from compilewatch.records import Phase, Status
from compilewatch.worker import forked
from compilewatch.worker.process import child, warmup
from compilewatch.worker.process.server import own_temporary_folder

POLL_SECONDS = 0.5
"""How often the memory of a working subject is checked: often enough, and without disturbing it."""

_orders = msgspec.json.Decoder(messages.Order)


class _Subject(NamedTuple):
    """A running subject, as the server sees it. `limit` is its memory limit in bytes."""

    pid: int
    lines: Lines
    limit: int

    def kill(self) -> None:
        """End it with everything it started."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait for its end, and return its wait status."""
        self.lines.channel.close()
        return os.waitpid(self.pid, 0)[1]


class ProfilingServer:
    """Starts subjects and passes orders on to them, until the parent closes the socket."""

    def __init__(self, channel: socket.socket) -> None:
        self.lines = Lines(channel)
        self.subjects: dict[int, _Subject] = {}

    def serve(self) -> None:
        try:
            while (received := self.lines.receive()) is not None:
                for line in received:
                    self.lines.channel.sendall(self._reply(line) + b"\n")
        except OSError:
            return  # the parent has ended
        finally:
            for subject in self.subjects.values():
                subject.kill()

    def _reply(self, line: bytes) -> bytes:
        order = _orders.decode(line)
        if order.job is not None:
            try:
                self.subjects[order.subject] = self._fork(order.job)
            except OSError as error:
                return _failed(Status.CRASHED, f"no process could be started: {error.strerror}")
        subject = self.subjects.pop(order.subject, None)
        if order.step == messages.END:
            if subject is not None:
                subject.kill()
            return msgspec.json.encode(messages.StepReply())
        if subject is None:
            return _failed(Status.CRASHED, "its process has ended")
        reply, alive = _asked(subject, line, order.deadline_seconds)
        if alive:
            self.subjects[order.subject] = subject
        return reply

    def _fork(self, job: messages.SubjectJob) -> _Subject:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = forked.fork()
        if pid == 0:
            ours.close()
            self.lines.channel.close()
            for other in self.subjects.values():
                other.lines.channel.close()
            _be_subject(job, theirs, parent)
        theirs.close()
        return _Subject(pid, Lines(ours), job.request.memory_limit_bytes)


def _asked(subject: _Subject, line: bytes, deadline_seconds: float) -> tuple[bytes, bool]:
    """Pass on an order and return the reply, and whether the subject is still alive."""
    with contextlib.suppress(OSError):  # it has ended: the empty reply says so
        subject.lines.channel.sendall(line + b"\n")
    end = time.monotonic() + deadline_seconds
    while True:
        readable, _, _ = select.select([subject.lines], [], [], POLL_SECONDS)
        received = subject.lines.receive() if readable else []
        if received:
            return received[0], True
        if received is None:
            return _ended(subject.wait()), False
        used, limit = resident_bytes(subject.pid) or 0, subject.limit
        if time.monotonic() > end:
            subject.kill()
            detail = f"did not finish within {deadline_seconds:g} s"
            return _failed(Status.TIMEOUT, detail), False
        if used > limit:
            subject.kill()
            detail = f"used {used / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB allowed"
            return _failed(Status.OOM, detail), False


def _ended(status: int) -> bytes:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The kernel's memory killer uses SIGKILL, and so does nobody else here.
        kind = Status.OOM if number == signal.SIGKILL else Status.CRASHED
        return _failed(kind, f"ended by {signal.Signals(number).name}")
    return _failed(Status.CRASHED, f"ended with exit code {os.WEXITSTATUS(status)}")


def _be_subject(job: messages.SubjectJob, channel: socket.socket, parent: int) -> NoReturn:
    """Obey orders until the server closes the socket. Never returns."""
    code = 1
    try:
        folder = Path(job.folder)
        child.become_child(folder, parent, job.request.memory_limit_bytes)
        os.chdir(folder)
        gc.enable()
        from compilewatch.extras.profiles.worker.subject import ProfiledModel

        subject, lines = ProfiledModel(job), Lines(channel)
        while (received := lines.receive()) is not None:
            for line in received:
                order = _orders.decode(line)
                try:
                    reply = _returned(getattr(subject, order.step)(**order.options))
                except BaseException as error:  # noqa: BLE001  (the worker's top)
                    reply = _failure_of(error, subject.phase)
                channel.sendall(reply + b"\n")
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _returned(value: object) -> bytes:
    return msgspec.json.encode(messages.StepReply(value=msgspec.Raw(msgspec.json.encode(value))))


def _failure_of(error: BaseException, phase: Phase) -> bytes:
    code = error_record(error).code
    detail = str(error) if isinstance(error, CompilewatchError) else one_line(error)
    status = Status.OOM if code == "out_of_memory" else Status.ERROR
    if code in ("missing_package", "unknown_architecture"):
        status = Status.UNSUPPORTED
    return _failed(status, detail, phase)


def _failed(status: Status, detail: str, phase: Phase = Phase.PROFILE) -> bytes:
    failure = messages.ProfileFailure(status=status, phase=phase, detail=detail)
    return encoded(messages.StepReply(failure=failure))


def main() -> None:
    parser = argparse.ArgumentParser(prog="compilewatch.extras.profiles.worker.server")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--environment", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--targets", default="")
    options = parser.parse_args()
    channel = socket.socket(fileno=options.channel)
    channel.set_inheritable(False)
    with own_temporary_folder():
        from compilewatch.worker.process.describe import describe

        gc.disable()
        targets = filter(None, options.targets.split(","))
        if options.device == "cuda":
            # A process that has asked CUDA for its devices, as a first backward does, cannot fork.
            warmup.import_modules(targets, warmup.MODULES_OF_EACH)
        else:
            warmup.warm_up(targets, single=True)
        child.become_subreaper()
        gc.collect()
        gc.freeze()
        gc.enable()
        server = ProfilingServer(channel)
        from compilewatch.extras.profiles.worker import measuring

        try:
            measuring.device_of(options.device)
        except UsageError as error:
            channel.sendall(_failed(Status.UNSUPPORTED, str(error)) + b"\n")
            return
        environment = describe(options.environment, options.device)
        channel.sendall(_returned(environment) + b"\n")
        server.serve()


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)
