"""The warm server: imports once, then forks a child for each request.

`worker.process.server --channel FD --jobs N --environment NAME --targets A,B` (and
`--declare JSON` for children that evaluate on a declared device) is started by a launcher with one
end of a socket pair as FD; the messages are those of `contract.messages`. The server always has a
single thread, because a fork copies only the thread that calls it. If the imports leave more than
one thread, a fork is not safe; then the server starts a new process for each request, which imports
torch itself. No failure of a child ends the server. When the launcher ends, the server ends all its
children.
"""

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
from collections.abc import Mapping
from pathlib import Path

import msgspec

from compilewatch import files
from compilewatch.contract import messages
from compilewatch.contract.processes import children
from compilewatch.contract.targets import may_fork
from compilewatch.records import DeclaredDevice
from compilewatch.worker.forked import fork, threads

_orders = msgspec.json.Decoder(messages.Order)


class Server:
    """Starts up to `jobs` children at a time; further requests wait in its queue.

    Because of the queue, the next child starts as soon as one ends, even if the launcher is busy.
    `forks` is whether a child may be a fork of this process, unless its target, with the `packages`
    of the environment, needs a process of its own.
    """

    def __init__(self, channel: socket.socket, jobs: int, *, forks: bool = True) -> None:
        self.lines = messages.Lines(channel)
        self.jobs = jobs
        self.forks = forks
        self.packages: Mapping[str, str] = {}
        self.queue: deque[messages.Start] = deque()
        self.live: dict[int, str] = {}
        self.abandoned: set[str] = set()
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Process messages until the launcher closes its end of the socket."""
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
                if self.lines.fileno() in ready and not self._handle_orders():
                    return
                while self.queue and len(self.live) - len(self.abandoned) < self.jobs:
                    self._start(self.queue.popleft())
        except ConnectionError:
            return  # the launcher has ended
        finally:
            self._end_all()

    def _handle_orders(self) -> bool:
        """Process the orders that have arrived. False if the launcher closed the socket."""
        lines = self.lines.receive()
        for line in lines or ():
            match _orders.decode(line):
                case messages.Start() as start:
                    self.queue.append(start)
                case messages.Kill(folder=folder, signal=which):
                    self._signal(folder, which)
                case messages.Abandon(folder=folder):
                    self.abandoned.add(folder)
                case messages.Ping():
                    self.lines.send(messages.Pong())
        return lines is not None

    def _start(self, start: messages.Start) -> None:
        at = time.monotonic()
        try:
            forks = self.forks and may_fork(start.request.target.name, self.packages)
            pid = self._fork(start) if forks else _spawn(start)
        except OSError as error:
            reason = error.strerror or str(error)
            self.lines.send(messages.NotStarted(folder=start.folder, reason=reason))
            return
        self.live[pid] = start.folder
        self.lines.send(messages.Started(folder=start.folder, pid=pid, at=at))

    def _fork(self, start: messages.Start) -> int:
        from compilewatch.worker.process import child

        server_pid = os.getpid()
        pid = fork()
        if pid == 0:
            self.lines.channel.close()
            child.main(start, server_pid)
        return pid

    def _signal(self, folder: str, which: int) -> None:
        for pid, owner in self.live.items():
            if owner == folder:
                _kill_group(pid, which)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            folder = self.live.pop(pid, None)
            if folder is None:
                continue  # an adopted orphan has ended
            self.abandoned.discard(folder)
            _kill_group(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(status)
            peak = usage.ru_maxrss * _MAXRSS_UNIT
            self.lines.send(messages.Exited(folder=folder, code=code, peak_memory_bytes=peak))
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End the processes that children left behind and this process adopted as a subreaper.

        No request starts a daemon that it needs, so every adopted process is a leftover.
        """
        for pid in children(os.getpid()):
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


def _spawn(start: messages.Start) -> int:
    """Start a process that runs `child`, with the command that started this server.

    `posix_spawn` neither copies threads nor runs Python code in the new process before the
    program starts, so it is safe here.
    """
    files.replace(Path(start.folder) / messages.START_FILE, msgspec.json.encode(start))
    package = "compilewatch.worker.process"
    end = sys.orig_argv.index(f"{package}.server")
    command = [*sys.orig_argv[:end], f"{package}.child", start.folder, str(os.getpid())]
    return os.posix_spawn(sys.executable, command, os.environ)


_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes but for macOS


def _kill_group(pid: int, which: int) -> None:
    """Signal a child's process group, or only the child if it has not created its group yet."""
    try:
        os.killpg(pid, which)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)
    except PermissionError:  # macOS raises this for a group of zombies
        return


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compilewatch.worker.process.server")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--environment", default="default")
    parser.add_argument(
        "--targets", default="", help="comma-separated targets to import modules for"
    )
    parser.add_argument("--declare", help="a DeclaredDevice as JSON, on which children evaluate")
    parser.add_argument("--no-forks", action="store_true", help="start a process per request")
    parser.add_argument("--single", action="store_true", help="there will be only one request")
    options = parser.parse_args(arguments)
    channel = socket.socket(fileno=options.channel)
    channel.set_inheritable(False)
    # `import torch` creates a temporary folder, and a killed child leaves its compiler's cache:
    # both processes end without cleaning up.
    with files.temporary_folder() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        return _serve(channel, options)


def _serve(channel: socket.socket, options: argparse.Namespace) -> int:
    from compilewatch.worker.process import child, warmup
    from compilewatch.worker.process.describe import describe

    gc.disable()  # imports create little garbage; collecting it repeatedly costs time
    device = options.declare and msgspec.json.decode(options.declare, type=DeclaredDevice)
    warmup.warm_up(filter(None, options.targets.split(",")), single=options.single, device=device)
    child.become_subreaper()
    count = threads()
    server = Server(channel, options.jobs, forks=count == 1 and not options.no_forks)
    # The objects that exist now never become garbage. Without this call, a collection in a child
    # would touch, and therefore copy, every page of them.
    if not options.single:
        gc.collect()
    gc.freeze()
    gc.enable()
    environment = describe(options.environment)
    server.packages = environment.packages
    server.lines.send(messages.Ready(environment=environment, threads=count))
    server.serve()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
