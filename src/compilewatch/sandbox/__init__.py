"""Runs code that nobody has reviewed: each command in a sandbox of its own, which leaves nothing.

    from compilewatch import sandbox
    sandbox.check()  # raises SandboxError where code cannot be confined: what is missing
    result = sandbox.run(
        [python, "main.py"], files={"main.py": source}, limits=Limits(deadline_seconds=60)
    )

The code sees /usr, the interpreter's own folders and `visible`, all read-only, and writes to
folders in memory that end with it. It has no network, no variables but those given, and no process
of ours to see. There is no switch that runs it without all this; docs/executor.md has the threat
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from compilewatch.sandbox.policy import Ending, Limits, MemoryGuard, SandboxResult

__all__ = ["Ending", "Limits", "MemoryGuard", "SandboxResult", "check", "run"]


def check(python: str | None = None) -> None:
    """Prove that code of an interpreter (None: this one) can be confined here.

    Raises SandboxError: one line that says what is missing and which command installs it. The proof
    is remembered for the life of the process.
    """
    raise NotImplementedError


def run(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes | str] | None = None,
    limits: Limits | None = None,
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
        limits: defaults to `Limits()`.
        variables: its whole environment, beside a few harmless ones (PATH, HOME, USER, TMPDIR).
        visible: absolute paths outside that it may read, at the same place.
        python: the interpreter, whose installation is visible; None: the one that runs this.
        log_folder: receives `stdout.log` and `stderr.log` while the command runs.

    What it leaves in `/job/out` is in the result's `files`. Raises SandboxError if this machine
    cannot confine it; whatever the command does is a result.
    """
    raise NotImplementedError
