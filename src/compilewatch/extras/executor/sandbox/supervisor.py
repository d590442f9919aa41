"""Starts one sandbox, holds it to its limits, and ends it; run with `python -c`.

A separate process because bubblewrap dies with the thread that started it, and single-threaded
with an empty environment because bubblewrap's own can be read inside. It reads a `SandboxSpec` from
standard input (4 bytes of length, then msgpack) and writes the `SandboxResult` to standard output.
The end of standard input cancels the run, so that nothing survives the process that wanted it.
"""

import contextlib
import ctypes
import fcntl
import io
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from compilewatch.contract.processes import descendants, field_bytes, is_alive, resident_bytes
from compilewatch.errors import SandboxError, StoreError
from compilewatch.extras.executor.sandbox import init, policy
from compilewatch.files import write_atomically
from compilewatch.records import Record

GRACE_SECONDS = 2.0
"""How long after its deadline a sandbox may take to return what the command left behind."""

START_SECONDS = 30.0
TICK_SECONDS = 0.02
HEADER_BYTES = 2**20
ADDRESS_SPACE_BYTES = 24 * 2**30
"""At least; XLA maps 6 GB that it never uses, and a low limit breaks OpenBLAS."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    """Run what standard input asks for."""
    lock_down()
    spec = msgspec.msgpack.decode(receive_frame(sys.stdin.buffer), type=policy.SandboxSpec)
    folder = Path(spec.folder) if spec.folder is not None else None
    with contextlib.ExitStack() as stack:
        if folder is not None:
            lock = stack.enter_context((folder / policy.LOCK_FILE).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            result = Supervisor(spec).supervise()
            if folder is not None:
                write_atomically(folder / policy.RESULT_FILE, msgspec.msgpack.encode(result))
        except (SandboxError, StoreError, OSError) as error:  # what is not stored is no outcome
            result = policy.SandboxResult(
                ending=policy.SandboxEnding.NOT_STARTED, detail=str(error)
            )
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(msgspec.msgpack.encode(result))
            sys.stdout.buffer.flush()


def lock_down() -> None:
    """Hide this process from others of its user, and adopt what a killed bubblewrap leaves."""
    libc = ctypes.CDLL(None)
    libc.prctl(init.PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent decides, by closing standard input


def end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    """Let the kernel kill this new process when its parent ends; exec(2) keeps the setting."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


class Collected:
    """One stream of the sandbox, up to a limit; what exceeds it is read and dropped."""

    def __init__(self, source: int, limit: int, log: Path | None = None) -> None:
        self.source, self.limit = source, limit
        self.data = bytearray()
        self.truncated = False
        self._log = log.open("wb", buffering=0) if log is not None else None

    def read(self) -> bool:
        """Read once; False at the end of the stream."""
        chunk = os.read(self.source, 1 << 16)
        kept = chunk[: self.limit - len(self.data)]
        self.truncated = self.truncated or len(kept) < len(chunk)
        self.data += kept
        if self._log is not None and kept:
            self._log.write(kept)
        return bool(chunk)


class Supervisor:
    """One run from its start to the proof that nothing of it is left."""

    def __init__(self, spec: policy.SandboxSpec) -> None:
        self.spec = spec
        self.limits = spec.limits
        self.uid = policy.dropped_uid()
        policy.check_readable((*policy.visible_paths(spec), *spec.devices), self.uid)
        try:
            self.guard: Watcher = Cgroup(spec.limits)
        except (OSError, LookupError):
            self.guard = Watcher(spec.limits)
        self.pidfd: int | None = None
        self.first_pid: int | None = None
        self.ending = policy.SandboxEnding.EXITED
        self.detail = ""
        self.hard_deadline = 0.0

    def supervise(self) -> policy.SandboxResult:
        """Start the sandbox, wait for its end and end it where it must."""
        try:
            return self._supervise()
        finally:
            self._kill()
            self.guard.close()

    def _supervise(self) -> policy.SandboxResult:
        limits = self.limits
        out, err, results, go, process = self._start()
        begun = time.monotonic()
        seconds_to_return = GRACE_SECONDS + limits.output_bytes / (64 * 2**20)
        self.hard_deadline = begun + limits.deadline_seconds + seconds_to_return
        if select.select([0], [], [], 0)[0]:  # the caller ended: nothing has run, nothing will
            self._end(policy.SandboxEnding.CANCELLED, "its caller ended before it began")
        else:
            os.write(go, b"1")
        logs = Path(self.spec.folder) if self.spec.folder is not None else None
        stdout = Collected(out, limits.log_bytes, logs / policy.STDOUT if logs else None)
        stderr = Collected(err, limits.log_bytes, logs / policy.STDERR if logs else None)
        framed = limits.output_bytes + 8 * limits.output_files + HEADER_BYTES
        returned = Collected(results, framed)
        self._wait([stdout, stderr, returned])
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        process.kill()
        status = process.wait()
        seconds = time.monotonic() - begun
        return self._result(status, seconds, stdout, stderr, bytes(returned.data))

    def _start(self) -> tuple[int, int, int, int, subprocess.Popen[bytes]]:
        """Start bubblewrap and hold the first process of the sandbox before anything runs in it."""
        spec, bwrap = self.spec, policy.program()
        (out, out_w), (err, err_w), (results, results_w) = (os.pipe() for _ in range(3))
        (info, info_w), (block, block_w), (go, go_w) = (os.pipe() for _ in range(3))
        payload = memory_file(self._payload())
        rules = memory_file(policy.filter_program(any_ioctl=bool(spec.devices)))
        source = Path(init.__file__).read_text(encoding="utf-8")
        inner = [spec.python, "-I", "-S", "-c", source, str(results_w), str(payload)]
        arguments = policy.arguments(spec, inner, seccomp_fd=rules, info_fd=info_w, block_fd=block)
        with self.guard.inside():
            process = subprocess.Popen(
                [bwrap, *arguments],
                stdin=go,
                stdout=out_w,
                stderr=err_w,
                env={},
                cwd="/",
                pass_fds=(results_w, payload, rules, info_w, block),
                user=self.uid,
                group=self.uid,
                extra_groups=None if self.uid is None else [],
                # bubblewrap does the same, but only some milliseconds after its start.
                preexec_fn=partial(end_with_parent, ctypes.CDLL(None), os.getpid()),
            )
        for descriptor in (out_w, err_w, results_w, info_w, block, go, payload, rules):
            os.close(descriptor)
        # To the end: bubblewrap dies of a closed pipe and strands its child.
        child = read_all(info, START_SECONDS)
        try:
            self.first_pid = int(msgspec.json.decode(child)["child-pid"])
            self.pidfd = os.pidfd_open(self.first_pid)
            self.guard.hold(self.first_pid)
        except (msgspec.DecodeError, KeyError, ValueError, OSError) as error:
            process.kill()
            process.wait()
            raise _not_started(read_all(err, 1.0), str(error)) from None
        os.write(block_w, b"1")
        os.close(block_w)
        return out, err, results, go_w, process

    def _payload(self) -> bytes:
        spec, limits = self.spec, self.limits
        limited: list[tuple[int, int]] = [
            (resource.RLIMIT_NPROC, limits.processes),
            (resource.RLIMIT_NOFILE, limits.open_files),
            (resource.RLIMIT_FSIZE, limits.disk_bytes),
            (resource.RLIMIT_CPU, int(limits.deadline_seconds * (os.cpu_count() or 1)) + 10),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 2**16),
            (resource.RLIMIT_DATA, limits.memory_bytes),
        ]
        if not spec.devices:  # the Neuron runtime maps the memory of its devices
            address_space = max(ADDRESS_SPACE_BYTES, 3 * limits.memory_bytes)
            limited.append((resource.RLIMIT_AS, address_space))
        return msgspec.json.encode(
            {
                "command": spec.command,
                "variables": spec.variables,
                "folder": policy.JOB_FOLDER,
                "output": policy.OUTPUT_FOLDER,
                "files": spec.files,
                "deadline_seconds": limits.deadline_seconds,
                "output_files": limits.output_files,
                "output_bytes": limits.output_bytes,
                "rlimits": limited,
            }
        )

    def _wait(self, streams: list[Collected]) -> None:
        """Read the streams until all have ended or the sandbox has to be ended."""
        assert self.pidfd is not None
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream.source, selectors.EVENT_READ, stream)
            selector.register(0, selectors.EVENT_READ, "caller")
            selector.register(self.pidfd, selectors.EVENT_READ, "ended")
            looked, open_streams = 0.0, len(streams)
            while open_streams:
                for key, _ in selector.select(TICK_SECONDS):
                    if isinstance(key.data, Collected):
                        if not key.data.read():
                            selector.unregister(key.fd)
                            open_streams -= 1
                    elif key.data == "caller":
                        selector.unregister(0)
                        self._end(
                            policy.SandboxEnding.CANCELLED, "its caller cancelled it or ended"
                        )
                    else:
                        selector.unregister(self.pidfd)
                now = time.monotonic()
                if now - looked >= TICK_SECONDS:
                    looked = now
                    self._check_limits(now)

    def _check_limits(self, now: float) -> None:
        if self.ending is not policy.SandboxEnding.EXITED or self.first_pid is None:
            return
        if self.guard.exceeded():
            self._end(policy.SandboxEnding.MEMORY)
        elif now > self.hard_deadline:
            self._end(policy.SandboxEnding.DEADLINE)
        elif any(n > self.limits.disk_files for _, n in folder_use(self.first_pid)):
            self._end(policy.SandboxEnding.DISK_FILES)

    def _end(self, ending: policy.SandboxEnding, detail: str = "") -> None:
        limits = {
            policy.SandboxEnding.MEMORY: f"used more than {self.limits.memory_bytes >> 20} MiB",
            policy.SandboxEnding.DEADLINE: f"did not end within {self.limits.deadline_seconds:g} s",
            policy.SandboxEnding.DISK_FILES: f"made more than {self.limits.disk_files} files",
        }
        if self.ending is policy.SandboxEnding.EXITED:  # what ended it first is the reason
            self.ending, self.detail = ending, detail or limits[ending]
        self._kill()

    def _kill(self) -> None:
        """Kill the first process; the kernel kills all others of its namespace with it."""
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _survivors(self) -> int:
        """How many processes are left; the kernel may take a moment to remove the last."""
        until = time.monotonic() + GRACE_SECONDS
        while True:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            left = {*descendants(os.getpid()), *self.guard.pids()} - {self.first_pid}
            first_alive = self.first_pid is not None and is_alive(self.first_pid)
            if (not left and not first_alive) or time.monotonic() > until:
                return len(left) + first_alive
            time.sleep(TICK_SECONDS)

    def _result(
        self, status: int, seconds: float, stdout: Collected, stderr: Collected, returned: bytes
    ) -> policy.SandboxResult:
        survivors = self._survivors()
        if self.ending is policy.SandboxEnding.EXITED and self.guard.exceeded():
            self._end(policy.SandboxEnding.MEMORY)
        if self.ending is policy.SandboxEnding.EXITED and not returned:
            raise _not_started(bytes(stderr.data), "no message")
        header, files = parsed(returned, self.limits.output_files, self.limits.output_bytes)
        # Without a header, the first program was killed from inside.
        code = status if header is None else header.status
        if self.ending is policy.SandboxEnding.EXITED and code is None:
            self._end(policy.SandboxEnding.DEADLINE)
        if self.ending is not policy.SandboxEnding.EXITED:
            code = None
        return policy.SandboxResult(
            ending=self.ending,
            detail=self.detail,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            duration_seconds=seconds,
            peak_memory_bytes=self.guard.peak_bytes(),
            memory_guard=self.guard.kind,
            survivors=survivors,
            stdout=bytes(stdout.data),
            stderr=bytes(stderr.data),
            stdout_truncated=stdout.truncated,
            stderr_truncated=stderr.truncated,
            files=files,
            artifacts_left_out=header.left_out + len(header.files) - len(files) if header else 0,
        )


def _not_started(stderr: bytes, otherwise: str) -> SandboxError:
    """What bubblewrap said when it did not start the first program."""
    lines = stderr.decode(errors="replace").strip().splitlines() or [otherwise]
    return SandboxError(policy.advice(lines[-1].removeprefix("bwrap: ")))


# --- what a sandbox returns ---


class Header(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the first program says about the command; hostile code may have forged it.

    `status` is its exit status, or the negative number of the signal that ended it; None: the
    deadline did.
    """

    status: Annotated[int, Meta(ge=-64, le=255)] | None
    files: list[str]
    left_out: int


def parsed(data: bytes, most_files: int, most_bytes: int) -> tuple[Header | None, dict[str, bytes]]:
    """The header and files that the sandbox returned; no header if they are not as they must be.

    Each is a frame: 4 bytes of length, then the data. A file whose name is no `Name` is left out.
    """
    stream = io.BytesIO(data)
    try:
        receive_frame(stream)  # says that the first program runs
        header = msgspec.json.decode(receive_frame(stream), type=Header)
        files = {name: receive_frame(stream) for name in header.files}
    except (EOFError, ValueError, msgspec.MsgspecError):
        return None, {}
    if len(header.files) > most_files or sum(map(len, files.values())) > most_bytes:
        return None, {}
    return header, {name: content for name, content in files.items() if is_name(name)}


def is_name(text: str) -> bool:
    """Whether the text can name a file outside."""
    try:
        msgspec.convert(text, policy.Name)
    except msgspec.ValidationError:
        return False
    return True


def receive_frame(stream: IO[bytes]) -> bytes:
    """One frame. Raises EOFError if the stream ends before."""
    size = stream.read(4)
    data = stream.read(int.from_bytes(size, "big")) if len(size) == 4 else b""
    if len(size) != 4 or len(data) != int.from_bytes(size, "big"):
        raise EOFError("the stream ended")
    return data


def memory_file(data: bytes) -> int:
    """A file in memory that cannot be changed, open for a child process."""
    descriptor = os.memfd_create("compilewatch", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def read_all(descriptor: int, seconds: float) -> bytes:
    """What a pipe gives until its end, for at most so long."""
    until, data = time.monotonic() + seconds, b""
    while select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(descriptor, 1 << 16)
        if not part or len(data) > HEADER_BYTES:
            break
        data += part
    return data


# --- memory ---

CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids")
_FOLDERS = ("job", "tmp", "dev/shm")


class Watcher:
    """Adds up the memory of the sandbox's processes and folders, 50 times a second.

    What is allocated between two looks goes beyond the limit.
    """

    kind = policy.MemoryGuard.WATCHER

    def __init__(self, limits: policy.SandboxLimits) -> None:
        self.limit = limits.memory_bytes
        self.pid: int | None = None
        self.highest: int | None = None

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """What this process starts meanwhile is held from its birth. Raises OSError."""
        return contextlib.nullcontext()

    def hold(self, pid: int) -> None:
        """Hold this process, the first of the sandbox, before it runs. Raises OSError."""
        self.pid = pid

    def exceeded(self) -> bool:
        """Whether the limit was exceeded since."""
        if self.pid is None:
            return False
        pids = self.pids()
        folders = sum(used for used, _ in folder_use(self.pid))
        total = folders + sum(resident_bytes(pid) or 0 for pid in pids)
        if total > self.limit:
            # Pages that processes share were counted for each; the exact sum is slow to read.
            total = folders + sum(
                field_bytes(pid, "smaps_rollup", "Pss") or resident_bytes(pid) or 0 for pid in pids
            )
        self.highest = max(self.highest or 0, total)
        return total > self.limit

    def peak_bytes(self) -> int | None:
        return self.highest

    def pids(self) -> list[int]:
        """The processes that are held now."""
        return [] if self.pid is None else [self.pid, *descendants(self.pid)]

    def close(self) -> None:
        """Nothing was made."""


class Cgroup(Watcher):
    """Cgroups in the hierarchies `memory` and `pids` of version 1, below our own: root makes them.

    The kernel enforces the limit. Raises OSError or LookupError where they cannot be made.
    """

    kind = policy.MemoryGuard.CGROUP_V1

    def __init__(self, limits: policy.SandboxLimits) -> None:
        super().__init__(limits)
        name = f"compilewatch-{os.getpid()}-{uuid.uuid4().hex}"
        folders = own_cgroups()
        self.memory, self.tasks = (folders[controller] / name for controller in _CONTROLLERS)
        for folder in folders.values():
            remove_old(folder)
        self.memory.mkdir()
        try:
            self.tasks.mkdir()
            (self.memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
            swap = self.memory / "memory.memsw.limit_in_bytes"
            if swap.exists():
                swap.write_text(str(limits.memory_bytes))
            (self.tasks / "pids.max").write_text(str(limits.processes + 8))
        except OSError:
            self.close()
            raise

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        try:
            self.hold(os.getpid())
            yield
        finally:
            for folder in (self.memory, self.tasks):
                (folder.parent / "cgroup.procs").write_text(str(os.getpid()))

    def hold(self, pid: int) -> None:
        for folder in (self.memory, self.tasks):
            (folder / "cgroup.procs").write_text(str(pid))

    def exceeded(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self.memory / "memory.oom_control").read_text().splitlines()
            counts = {name: int(count) for name, count in map(str.split, lines)}
            return counts.get("oom_kill", 0) > 0
        return False

    def peak_bytes(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.memory / "memory.max_usage_in_bytes").read_text())
        return None

    def pids(self) -> list[int]:
        return _pids(self.memory)

    def close(self) -> None:
        for folder in (self.memory, self.tasks):
            _remove(folder)


def folder_use(pid: int) -> Iterator[tuple[int, int]]:
    """The bytes and files of each folder in memory of the sandbox whose first process this is.

    Until bubblewrap has mounted the sandbox's own, a path leads to the folder of this machine,
    which may be in memory, too: what others keep there does not count.
    """
    for name in _FOLDERS:
        with contextlib.suppress(OSError):
            inside = Path(f"/proc/{pid}/root/{name}")
            outside = Path("/") / name
            if outside.exists() and inside.stat().st_dev == outside.stat().st_dev:
                continue
            usage = os.statvfs(inside)
            yield (usage.f_blocks - usage.f_bfree) * usage.f_frsize, usage.f_files - usage.f_ffree


def own_cgroups() -> dict[str, Path]:
    """The folder of this process's cgroup by controller, cgroups(7)."""
    folders = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in _CONTROLLERS:
                folders[controller] = CGROUPS / controller / path.lstrip("/")
    return folders


def remove_old_cgroups() -> None:
    """End what supervisors left that were killed before they could."""
    with contextlib.suppress(OSError):
        for folder in own_cgroups().values():
            remove_old(folder)


def remove_old(place: Path) -> None:
    """End and remove the sandboxes of a cgroup whose supervisors have ended."""
    for folder in place.glob("compilewatch-*-*"):
        if is_alive(folder.name.split("-")[1]):
            continue
        for pid in _pids(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _remove(folder)


def _pids(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    return []


def _remove(folder: Path) -> None:
    """Remove a cgroup, which the kernel rejects for a moment after the end of its processes."""
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(TICK_SECONDS)
        else:
            return


if __name__ == "__main__":
    main()
