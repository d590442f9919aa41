"""Starts one sandbox, holds it to its limits, and ends it; run with `python -m`.

A process of its own because bubblewrap dies with the thread that started it, and single-threaded
with an empty environment because bubblewrap's own can be read inside. It reads a `SandboxSpec` from
standard input and writes the `SandboxResult` to standard output, each as a frame (8 bytes of
length, then msgpack). The end of standard input cancels the run, so that nothing survives the
process that wanted it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from compilewatch.contract.processes import descendants, is_alive
from compilewatch.errors import SandboxError, StoreError
from compilewatch.extras.executor.sandbox import bubblewrap, first, memory
from compilewatch.extras.executor.sandbox.frames import (
    HEADER_BYTES,
    Header,
    memory_file,
    parsed,
    read_all,
    receive_frame,
    send_frame,
)
from compilewatch.extras.executor.sandbox.memory import TICK_SECONDS
from compilewatch.extras.executor.sandbox.policy import (
    JOB_FOLDER,
    OUTPUT_FOLDER,
    SandboxEnding,
    SandboxResult,
    SandboxSpec,
)
from compilewatch.files import write_atomically

GRACE_SECONDS = 2.0
"""How long after its deadline a sandbox may take to return what the command left behind."""

START_SECONDS = 30.0
ADDRESS_SPACE_BYTES = 24 * 2**30
"""At least; XLA maps 6 GB that it never uses, and a low limit breaks OpenBLAS."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


class Collected:
    """One stream of the sandbox, up to a limit; what exceeds it is read and dropped."""

    def __init__(self, source: int, limit: int, log: Path | None = None) -> None:
        self.source, self.limit = source, limit
        self.data = bytearray()
        self.truncated = False
        self._log: BinaryIO | None = log.open("wb", buffering=0) if log is not None else None

    def read(self) -> bool:
        """Read once; False at the end of the stream."""
        chunk = os.read(self.source, 1 << 16)
        kept = chunk[: self.limit - len(self.data)]
        self.truncated = self.truncated or len(kept) < len(chunk)
        self.data += kept
        if self._log is not None and kept:
            self._log.write(kept)
        return bool(chunk)


def main() -> None:
    """Run what standard input asks for."""
    lock_down()
    run = msgspec.msgpack.decode(receive_frame(sys.stdin.buffer), type=SandboxSpec)
    with contextlib.ExitStack() as stack:
        if run.lock_file is not None:
            lock = stack.enter_context(open(run.lock_file, "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            result = Supervisor(run).supervise()
        except (SandboxError, OSError) as error:
            result = SandboxResult(ending=SandboxEnding.NOT_STARTED, detail=str(error))
        if run.result_file is not None:
            try:
                write_atomically(Path(run.result_file), msgspec.msgpack.encode(result))
            except StoreError as error:  # an outcome that is not stored is none
                result = SandboxResult(ending=SandboxEnding.NOT_STARTED, detail=str(error))
        with contextlib.suppress(BrokenPipeError):
            send_frame(sys.stdout.buffer, msgspec.msgpack.encode(result))


def lock_down() -> None:
    """Hide this process from others of its user, and adopt what a killed bubblewrap leaves."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent decides, by closing standard input


def end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    """Let the kernel kill this new process when its parent ends; exec(2) keeps the setting."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


class Supervisor:
    """One run from its start to the proof that nothing of it is left."""

    def __init__(self, run: SandboxSpec) -> None:
        self.run = run
        self.limits = run.limits
        self.uid = bubblewrap.dropped_uid()
        visible = (*bubblewrap.visible_paths(run), *run.devices)
        bubblewrap.check_readable(visible, self.uid)
        self.guard = memory.guard(run.limits)
        self.pidfd: int | None = None
        self.first_pid: int | None = None
        self.ending = SandboxEnding.EXITED
        self.detail = ""
        self.deadline = 0.0
        self.hard_deadline = 0.0

    def supervise(self) -> SandboxResult:
        """Start the sandbox, wait for its end and end it where it must."""
        try:
            return self._supervise()
        finally:
            self._kill()
            self.guard.close()

    def _supervise(self) -> SandboxResult:
        out, err, results, go, process = self._start()
        begun = time.monotonic()
        self.deadline = begun + self.limits.deadline_seconds
        seconds_to_return = GRACE_SECONDS + self.limits.output_bytes / (64 * 2**20)
        self.hard_deadline = self.deadline + seconds_to_return
        if select.select([0], [], [], 0)[0]:  # the caller ended: nothing has run, nothing will
            self._end(SandboxEnding.CANCELLED, "its caller ended before it began")
        else:
            os.write(go, b"1")
        logs = Path(self.run.log_folder) if self.run.log_folder is not None else None
        stdout = Collected(out, self.limits.log_bytes, logs / "stdout.log" if logs else None)
        stderr = Collected(err, self.limits.log_bytes, logs / "stderr.log" if logs else None)
        framed = self.limits.output_bytes + 8 * self.limits.output_files + HEADER_BYTES
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
        run, bwrap = self.run, bubblewrap.program()
        out, out_w = os.pipe()
        err, err_w = os.pipe()
        results, results_w = os.pipe()
        info, info_w = os.pipe()
        block, block_w = os.pipe()
        go, go_w = os.pipe()
        payload = memory_file(self._payload())
        rules = memory_file(bubblewrap.filter_program(any_ioctl=bool(run.devices)))
        source = Path(first.__file__).read_text(encoding="utf-8")
        inner = [run.python, "-I", "-S", "-c", source, str(results_w), str(payload)]
        command = [*self.guard.prefix(), bwrap]
        command += bubblewrap.arguments(
            run, inner, seccomp_fd=rules, info_fd=info_w, block_fd=block
        )
        with self.guard.inside():
            process = subprocess.Popen(
                command,
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
            message = read_all(err, 1.0).decode(errors="replace").strip().splitlines()
            said_last = message[-1].removeprefix("bwrap: ") if message else f"{error}"
            raise SandboxError(bubblewrap.advice(said_last)) from None
        os.write(block_w, b"1")
        os.close(block_w)
        return out, err, results, go_w, process

    def _payload(self) -> bytes:
        run, limits = self.run, self.limits
        processor_seconds = int(limits.deadline_seconds * (os.cpu_count() or 1)) + 10
        address_space = max(ADDRESS_SPACE_BYTES, 3 * limits.memory_bytes)
        limited: list[tuple[int, int]] = [
            (resource.RLIMIT_NPROC, limits.processes),
            (resource.RLIMIT_NOFILE, limits.open_files),
            (resource.RLIMIT_FSIZE, limits.disk_bytes),
            (resource.RLIMIT_CPU, processor_seconds),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 2**16),
            (resource.RLIMIT_DATA, limits.memory_bytes),
        ]
        if not run.devices:  # the Neuron runtime maps the memory of its devices
            limited.append((resource.RLIMIT_AS, address_space))
        return msgspec.json.encode(
            {
                "command": run.command,
                "variables": run.variables,
                "folder": JOB_FOLDER,
                "output": OUTPUT_FOLDER,
                "files": run.files,
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
                        self._end(SandboxEnding.CANCELLED, "its caller cancelled it or ended")
                    else:
                        selector.unregister(self.pidfd)
                now = time.monotonic()
                if now - looked >= TICK_SECONDS:
                    looked = now
                    self._check_limits(now)

    def _check_limits(self, now: float) -> None:
        if self.ending is not SandboxEnding.EXITED or self.first_pid is None:
            return
        limits = self.limits
        if self.guard.exceeded():
            self._end(SandboxEnding.MEMORY, f"used more than {limits.memory_bytes / 2**20:.0f} MiB")
        elif now > self.hard_deadline:
            self._end(SandboxEnding.DEADLINE, f"did not end within {limits.deadline_seconds:g} s")
        elif any(n > limits.disk_files for _, n in memory.folder_use(self.first_pid)):
            self._end(SandboxEnding.DISK_FILES, f"made more than {limits.disk_files} files")

    def _end(self, ending: SandboxEnding, detail: str) -> None:
        if self.ending is SandboxEnding.EXITED:  # what ended it first is the reason
            self.ending, self.detail = ending, detail
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
            self._reap()
            left = {*descendants(os.getpid()), *self.guard.pids()} - {self.first_pid}
            first_alive = self.first_pid is not None and is_alive(self.first_pid)
            if (not left and not first_alive) or time.monotonic() > until:
                return len(left) + first_alive
            time.sleep(TICK_SECONDS)

    @staticmethod
    def _reap() -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _result(
        self, status: int, seconds: float, stdout: Collected, stderr: Collected, returned: bytes
    ) -> SandboxResult:
        survivors = self._survivors()
        if self.ending is SandboxEnding.EXITED and self.guard.exceeded():
            self._end(
                SandboxEnding.MEMORY, f"used more than {self.limits.memory_bytes / 2**20:.0f} MiB"
            )
        if self.ending is SandboxEnding.EXITED and not returned:
            lines = stderr.data.decode(errors="replace").strip().splitlines() or ["no message"]
            raise SandboxError(bubblewrap.advice(lines[-1].removeprefix("bwrap: ")))
        header, files = parsed(returned, self.limits.output_files, self.limits.output_bytes)
        if self.ending is SandboxEnding.EXITED and header is not None and header.timed_out:
            self._end(
                SandboxEnding.DEADLINE, f"did not end within {self.limits.deadline_seconds:g} s"
            )
        exited = self.ending is SandboxEnding.EXITED
        left_out = header.left_out + len(header.files) - len(files) if header is not None else 0
        return SandboxResult(
            ending=self.ending,
            detail=self.detail,
            exit_code=_exit_code(header, status) if exited else None,
            signal=header.signal if exited and header is not None else None,
            duration_seconds=seconds,
            peak_memory_bytes=self.guard.peak_bytes(),
            memory_guard=self.guard.kind,
            survivors=survivors,
            stdout=bytes(stdout.data),
            stderr=bytes(stderr.data),
            stdout_truncated=stdout.truncated,
            stderr_truncated=stderr.truncated,
            files=files,
            files_left_out=left_out,
        )


def _exit_code(header: Header | None, status: int) -> int | None:
    """The command's exit code; None where a signal ended it."""
    if header is None:  # the first program was killed from inside
        return status
    return header.exit_code


if __name__ == "__main__":
    main()
