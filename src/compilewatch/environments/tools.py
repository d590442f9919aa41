"""Environments of programs that are no workers: they have no torch, and no request runs in them.

Each is created on first use from a locked requirements file, in `tools/<name>` of the user's cache
folder, so that the default installation stays small.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from compilewatch.config.paths import cache_folder
from compilewatch.environments.creation import Observer, locked, run_step, runs
from compilewatch.environments.recipes import REQUIREMENTS
from compilewatch.errors import InterpreterError
from compilewatch.files import replace

STAMP_FILE = "requirements.sha256"
"""Written last: the digest of the requirements that are installed."""


def tool_folder(name: str, cache: Path | None = None) -> Path:
    """Return the folder of a tool's environment, existing or not."""
    return (cache or cache_folder()) / "tools" / name


def tool_python(name: str, cache: Path | None = None) -> Path:
    """Return the interpreter of a tool's environment, existing or not."""
    return tool_folder(name, cache) / "venv" / "bin" / "python"


def is_ready(name: str, cache: Path | None = None) -> bool:
    """Whether the environment was created completely from the current requirements."""
    try:
        stamp = (tool_folder(name, cache) / STAMP_FILE).read_text(encoding="ascii")
    except OSError:
        return False
    return stamp == _digest(name) and tool_python(name, cache).exists()


def create_tool(
    name: str, cache: Path | None = None, *, observer: Observer = lambda _: None
) -> Path:
    """Create the environment of a tool unless it is ready, and return its interpreter.

    `observer` is called with each line that pip prints. Raises InterpreterError.
    """
    folder, python = tool_folder(name, cache), tool_python(name, cache)
    wanted = _digest(name)
    with locked(folder):
        if is_ready(name, cache):
            return python
        (folder / STAMP_FILE).unlink(missing_ok=True)
        if not runs(str(python)):
            run_step(name, folder, [sys.executable, "-m", "venv", "--clear", "venv"], observer)
        requirements = REQUIREMENTS / f"{name}.txt"
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        run_step(name, folder, [*command, "-r", str(requirements)], observer)
        run_step(name, folder, [str(python), "-m", "pip", "check"], observer)
        replace(folder / STAMP_FILE, wanted.encode())
    return python


def run_tool(python: Path, arguments: list[str], variables: dict[str, str]) -> int:
    """Run a program of a tool's environment until it ends, and return its exit status."""
    own = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        with subprocess.Popen([str(python), *arguments], env=own | variables) as program:
            try:
                return program.wait()
            except KeyboardInterrupt:
                program.terminate()
                program.wait()
                return 0
    except OSError as error:
        raise InterpreterError(f"{python} cannot be run: {error.strerror}") from None


def _digest(name: str) -> str:
    path = REQUIREMENTS / f"{name}.txt"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InterpreterError(
            f"{path} cannot be read ({error.strerror}): this environment can only be created from "
            "a checkout of compilewatch"
        ) from None
