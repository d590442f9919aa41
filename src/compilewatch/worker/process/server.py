"""The warm server: imports once, then forks a child for each request.

`worker.process.server --channel FD --jobs N --environment NAME --device DEVICE --targets A,B`,
started by a launcher with one end of a socket pair as FD; see `protocol` for what is said there.
It has one thread for as long as it lives, so that a fork copies every thread there is. Where the
imports leave more threads than one, a fork is not safe: it then starts a new process for each
request, which imports torch by itself. It outlives whatever its children do, and ends them all
when the launcher goes away.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from compilewatch import files
from compilewatch.contract.messages import (
    START_FILE,
    Abandon,
    Exited,
    Kill,
    Lines,
    NotStarted,
    Order,
    Ping,
    Pong,
    Ready,
    Start,
    Started,
)

_orders = msgspec.json.Decoder(Order)


class Server:
    """Starts up to `jobs` children at a time; further requests wait in its queue.

    The queue lets the next child start the moment one ends, however busy the launcher is. `forks`
    is whether a child may be a fork of this process.
    """

    def __init__(self, channel: socket.socket, jobs: int, *, forks: bool = True) -> None:
        self.lines = Lines(channel)
        self.jobs = jobs
        self.forks = forks
        self.queue: deque[Start] = deque()
        self.live: dict[int, int] = {}
        self.abandoned: set[int] = set()
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the launcher closes its end."""
        waiting = select.poll()
        waiting.register(self.lines.fileno(), select.POLLIN)
        waiting.register(self.wake_read, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in waiting.poll()}
                if self.wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_read, 4096)
                    self._reap()
                if self.lines.fileno() in ready and not self._obey():
                    return
                self._fill_slots()
        except ConnectionError:
            return  # the launcher is gone
        finally:
            self._end_all()

    def _obey(self) -> bool:
        lines = self.lines.receive()
        for line in lines or ():
            match _orders.decode(line):
                case Start() as start:
                    self.queue.append(start)
                case Kill(id=number, signal=which):
                    self._signal(number, which)
                case Abandon(id=number):
                    self.abandoned.add(number)
                case Ping():
                    self.lines.send(Pong())
        return lines is not None

    def _fill_slots(self) -> None:
        while self.queue and len(self.live) - len(self.abandoned) < self.jobs:
            self._start(self.queue.popleft())

    def _start(self, start: Start) -> None:
        at = time.monotonic()
        try:
            pid = self._fork(start) if self.forks else _spawn(start)
        except OSError as error:
            self.lines.send(NotStarted(id=start.id, reason=error.strerror or str(error)))
            return
        self.live[pid] = start.id
        self.lines.send(Started(id=start.id, pid=pid, at=at))

    def _fork(self, start: Start) -> int:
        server_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.lines.channel.close()
            from compilewatch.worker.process import child

            child.main(start, server_pid)
        return pid

    def _signal(self, number: int, which: int) -> None:
        for pid, owner in self.live.items():
            if owner == number:
                _kill_group(pid, which)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            at = time.monotonic()
            number = self.live.pop(pid, None)
            if number is None:
                continue  # an orphan that was adopted and ended
            self.abandoned.discard(number)
            _kill_group(pid, signal.SIGKILL)
            killed = os.WIFSIGNALED(status)
            self.lines.send(
                Exited(
                    id=number,
                    at=at,
                    peak_memory_bytes=usage.ru_maxrss * _MAXRSS_UNIT,
                    exit_code=None if killed else os.WEXITSTATUS(status),
                    signal=os.WTERMSIG(status) if killed else None,
                )
            )
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End what children left behind: as a subreaper this process has adopted it.

        No request starts a daemon that it needs, so an adopted process is always a left-over.
        """
        try:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return
        for pid in map(int, children):
            if pid not in self.live:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        for pid in self.live:
            _kill_group(pid, signal.SIGKILL)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            self._end_orphans()
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                self.live.pop(pid, None)
            else:
                time.sleep(0.005)


def _spawn(start: Start) -> int:
    """Start a process that runs `spawned`, by the very command that this server was started with.

    `posix_spawn` copies no thread and runs none of ours on the way, so it is safe here.
    """
    files.replace(Path(start.folder) / START_FILE, msgspec.json.encode(start))
    package = "compilewatch.worker.process"
    end = sys.orig_argv.index(f"{package}.server")
    command = [*sys.orig_argv[:end], f"{package}.spawned", start.folder, str(os.getpid())]
    return os.posix_spawn(sys.executable, command, os.environ)


_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes but for macOS


def _kill_group(pid: int, which: int) -> None:
    """Signal a child's process group, or the child alone before it has made its own."""
    try:
        os.killpg(pid, which)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)
    except PermissionError:  # macOS says so of a group of zombies
        return


def _threads() -> int:
    tasks = Path("/proc/self/task")
    if tasks.exists():
        return len(list(tasks.iterdir()))
    import threading

    return threading.active_count()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compilewatch.worker.process.server")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--environment", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--targets", default="", help="to be warm for, between commas")
    parser.add_argument("--single", action="store_true", help="one request will come")
    options = parser.parse_args(arguments)
    channel = socket.socket(fileno=options.channel)
    channel.set_inheritable(False)
    with _own_temporary_folder():
        return _serve(channel, options)


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """What server and children make in the temporary folder, gone with the server.

    `import torch` makes a folder there, a killed child leaves its compiler's cache: neither ends in
    a way that would clean up.
    """
    with tempfile.TemporaryDirectory(prefix="compilewatch-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        yield


def _serve(channel: socket.socket, options: argparse.Namespace) -> int:
    from compilewatch.worker.process import child, warmup
    from compilewatch.worker.process.describe import describe

    gc.disable()  # imports make no garbage worth looking for, again and again
    warmup.warm_up(filter(None, options.targets.split(",")), single=options.single)
    child.become_subreaper()
    threads = _threads()
    server = Server(channel, options.jobs, forks=threads == 1)
    # What exists now is never garbage: without this a collection in a child would touch, and so
    # copy, every page of it.
    if not options.single:
        gc.collect()
    gc.freeze()
    gc.enable()
    environment = describe(options.environment, options.device)
    server.lines.send(Ready(environment=environment, threads=threads))
    server.serve()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
