"""Runs code that nobody has reviewed: each command in a sandbox of its own, which leaves nothing.

    from compilewatch.extras.executor import sandbox
    sandbox.check()  # raises SandboxError where code cannot be confined: what is missing
    limits = SandboxLimits(deadline_seconds=60)
    result = sandbox.run(sandbox.planned(["python", "x.py"], files={"x.py": text}, limits=limits))

The code sees /usr, the interpreter's own folders and `visible`, all read-only, and writes to
folders in memory that end with it. It has no network, no variables but those given, and no process
of ours to see. There is no switch that runs it without all this; docs/executor.md has the threat
model.
"""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compilewatch.errors import OsErrorsAs, SandboxError, UsageError
from compilewatch.extras.executor.sandbox import policy
from compilewatch.extras.executor.sandbox.policy import SandboxLimits, SandboxResult

MOST_THREADS = 16

_PACKAGES = str(Path(__file__).parents[4])
_START = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); "
    "from compilewatch.extras.executor.sandbox.supervisor import main; main()"
)


def check(python: str | None = None, visible: Sequence[Path | str] = ()) -> policy.MemoryGuard:
    """Prove that code of an interpreter (None: this one) can be confined here.

    `visible` are paths that such code is to read. Returns what limits its memory. Raises
    SandboxError: one line that says what is missing and which command installs it. The proof is
    remembered for the life of the process.
    """
    spec = planned(["python"], visible=visible, python=python)
    policy.check_readable(policy.visible_paths(spec), policy.dropped_uid())
    return prove(spec.python)


def run(spec: policy.SandboxSpec) -> SandboxResult:
    """Run a command in a sandbox of its own and wait for its end.

    Raises SandboxError if this machine cannot confine it; whatever the command does is a result.
    """
    check(spec.python)
    result = Supervised(spec).wait()
    if result.ending is policy.SandboxEnding.NOT_STARTED:
        raise SandboxError(result.detail)
    return result


def planned(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes | str] | None = None,
    limits: SandboxLimits | None = None,
    variables: Mapping[str, str] | None = None,
    visible: Sequence[Path | str] = (),
    python: str | None = None,
    devices: tuple[str, ...] = (),
) -> policy.SandboxSpec:
    """A command and all that it gets, see `SandboxSpec`. Raises UsageError for a bad name.

    `command[0]` is an absolute path, or "python" for the interpreter, which is that of this process
    by default. `variables` are added to a few harmless ones (PATH, HOME, USER, TMPDIR).
    """
    python = os.path.abspath(python or sys.executable)
    program, *arguments = command
    spec = policy.SandboxSpec(
        command=(python if program == "python" else program, *arguments),
        python=python,
        files={n: c.encode() if isinstance(c, str) else bytes(c) for n, c in (files or {}).items()},
        variables={
            "PATH": f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "USER": "nobody",  # torch needs a name, and there is no /etc/passwd
            "LOGNAME": "nobody",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": str(min(len(os.sched_getaffinity(0)), MOST_THREADS)),
            **(variables or {}),
        },
        visible=tuple(os.path.abspath(path) for path in visible),
        devices=devices,
        limits=limits or SandboxLimits(),
    )
    try:
        return msgspec.convert(msgspec.to_builtins(spec), policy.SandboxSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"cannot be run in a sandbox: {error}") from None


class Supervised:
    """One run that has been started. It ends with this process, or when it is cancelled."""

    def __init__(self, spec: policy.SandboxSpec) -> None:
        with OsErrorsAs(SandboxError, "a sandbox cannot be started"):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for the caller
            )
        assert self._process.stdin is not None
        data = msgspec.msgpack.encode(spec)
        with contextlib.suppress(BrokenPipeError):  # `wait` says why
            self._process.stdin.write(len(data).to_bytes(4, "big") + data)
            self._process.stdin.flush()

    def cancel(self) -> None:
        """End the run; `wait` returns its result. A run that has ended is not changed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of a supervisor that ended before it read all
            self._process.stdin.close()

    def wait(self) -> SandboxResult:
        """Wait for the end. Raises SandboxError if the supervisor itself failed."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        try:
            return msgspec.msgpack.decode(self._process.stdout.read(), type=SandboxResult)
        except msgspec.MsgspecError:
            from compilewatch.extras.executor.sandbox.supervisor import remove_old_cgroups

            self._process.kill()
            self._process.wait()
            remove_old_cgroups()
            lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise SandboxError(
                f"the supervisor of a sandbox ended early: {lines[-1] if lines else 'no message'}"
            ) from None
        finally:
            self.cancel()
            self._process.wait()
            self._process.stdout.close()
            self._process.stderr.close()


ATTACKS = """
import ctypes, json, os, socket, sys, time

succeeded = []

def attempt(name, attack):
    try:
        if attack():
            succeeded.append(name)
    except OSError:
        pass

def inherited():
    variables = open("/proc/1/environ", "rb").read().split(bytes(1))
    return {variable.partition(b"=")[0] for variable in variables} - {b"", b"PWD"}

def others():
    return len([p for p in os.listdir("/proc") if p.isdigit()]) > 4

attempt("read the variables of the process that started it", inherited)
attempt("open a network socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("write to /", lambda: open("/planted", "w"))
attempt("write to /usr", lambda: open("/usr/planted", "w"))
attempt("write to its interpreter", lambda: open(sys.prefix + "/planted", "w"))
attempt("make a user namespace", lambda: ctypes.CDLL(None).unshare(0x10000000) == 0)
attempt("trace a process", lambda: ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0)
attempt("see processes outside", others)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.makedirs("out", exist_ok=True)
with open("out/succeeded.json", "w") as file:
    json.dump(succeeded, file)
"""


@functools.cache
def prove(python: str) -> policy.MemoryGuard:
    """Run a few attacks of our own, each of which must fail; returns what limits memory here.

    Raises SandboxError unless code of this interpreter is confined.
    """
    limits = SandboxLimits(
        deadline_seconds=30.0, memory_bytes=512 * 2**20, disk_bytes=2**20, output_bytes=2**16
    )
    command, probe = ["python", "-I", "-S", "probe.py"], {"probe.py": ATTACKS}
    result = Supervised(planned(command, files=probe, limits=limits, python=python)).wait()
    if result.ending is policy.SandboxEnding.NOT_STARTED:
        raise SandboxError(f"unreviewed code cannot be confined: {result.detail}")
    if not result.succeeded:
        lines = result.stderr.decode(errors="replace").strip().splitlines() or [result.detail]
        raise SandboxError(f"the sandbox's own test does not run here: {lines[-1]}")
    try:
        succeeded = msgspec.json.decode(result.files["succeeded.json"], type=list[str])
    except (KeyError, msgspec.MsgspecError):
        raise SandboxError("the sandbox's own test returned nothing") from None
    if result.survivors:
        succeeded.append("outlive the sandbox")
    if succeeded:
        raise SandboxError(
            f"the sandbox does not hold here: code in it can {', '.join(succeeded)}: "
            "update the kernel and bubblewrap"
        )
    return result.memory_guard
