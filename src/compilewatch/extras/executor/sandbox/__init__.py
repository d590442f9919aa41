"""Runs code that nobody has reviewed: each command in a sandbox of its own, which leaves nothing.

    from compilewatch.extras.executor import sandbox
    sandbox.check()  # raises SandboxError where code cannot be confined: what is missing
    result = sandbox.run(
        [python, "main.py"], files={"main.py": source}, limits=SandboxLimits(deadline_seconds=60)
    )

The code sees /usr, the interpreter's own folders and `visible`, all read-only, and writes to
folders in memory that end with it. It has no network, no variables but those given, and no process
of ours to see. There is no switch that runs it without all this; docs/executor.md has the threat
model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compilewatch.errors import SandboxError, UsageError
from compilewatch.extras.executor.sandbox.policy import (
    OUTPUT_FOLDER,
    MemoryGuard,
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
    SandboxSpec,
)

__all__ = [
    "OUTPUT_FOLDER",
    "MemoryGuard",
    "SandboxEnding",
    "SandboxLimits",
    "SandboxResult",
    "check",
    "planned",
    "run",
]

MOST_THREADS = 16


def check(python: str | None = None, visible: Sequence[Path | str] = ()) -> None:
    """Prove that code of an interpreter (None: this one) can be confined here.

    `visible` are paths that such code is to read. Raises SandboxError: one line that says what is
    missing and which command installs it. The proof is remembered for the life of the process.
    """
    from compilewatch.extras.executor.sandbox import bubblewrap, probe

    spec = planned(["python"], visible=visible, python=python)
    bubblewrap.check_readable(bubblewrap.visible_paths(spec), bubblewrap.dropped_uid())
    probe.check(spec.python)


def run(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes | str] | None = None,
    limits: SandboxLimits | None = None,
    variables: Mapping[str, str] | None = None,
    visible: Sequence[Path | str] = (),
    python: str | None = None,
    log_folder: Path | None = None,
) -> SandboxResult:
    """Run a command in a sandbox of its own and wait for its end.

    Args:
        command: the program and its arguments. `command[0]` is an absolute path, or "python" for
            the interpreter. It starts in `/job`, beside `files`.
        files: relative path -> content, written below `/job`.
        limits: defaults to `SandboxLimits()`.
        variables: its whole environment, beside a few harmless ones (PATH, HOME, USER, TMPDIR).
        visible: absolute paths outside that it may read, at the same place.
        python: the interpreter, whose installation is visible; None: the one that runs this.
        log_folder: receives `stdout.log` and `stderr.log` while the command runs.

    What it leaves in `/job/out` is in the result's `files`. Raises SandboxError if this machine
    cannot confine it; whatever the command does is a result.
    """
    from compilewatch.extras.executor.sandbox.supervised import Supervised

    spec = planned(
        command,
        files=files,
        limits=limits,
        variables=variables,
        visible=visible,
        python=python,
        log_folder=log_folder,
    )
    check(spec.python)
    result = Supervised(spec).wait()
    if result.ending is SandboxEnding.NOT_STARTED:
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
    log_folder: Path | None = None,
) -> SandboxSpec:
    """The `SandboxSpec` of the arguments of `run`. Raises UsageError for a bad name."""
    python = os.path.abspath(python or sys.executable)
    program, *arguments = command
    contents = {n: c.encode() if isinstance(c, str) else bytes(c) for n, c in (files or {}).items()}
    threads = str(min(len(os.sched_getaffinity(0)), MOST_THREADS))
    environment = {
        "PATH": f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "nobody",  # torch needs a name, and there is no /etc/passwd
        "LOGNAME": "nobody",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": threads,
        **(variables or {}),
    }
    spec = SandboxSpec(
        command=(python if program == "python" else program, *arguments),
        python=python,
        files=contents,
        variables=environment,
        visible=tuple(os.path.abspath(path) for path in visible),
        limits=limits or SandboxLimits(),
        log_folder=str(log_folder) if log_folder is not None else None,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(spec), SandboxSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"cannot be run in a sandbox: {error}") from None
