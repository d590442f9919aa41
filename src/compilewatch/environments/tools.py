"""Environments of programs that are no workers: they have no torch, and no request runs in them.

Each is created on first use from a locked requirements file, in `tools/<name>` of the user's cache
folder, so that the default installation stays small.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from compilewatch.config.paths import cache_folder
from compilewatch.data import REQUIREMENTS
from compilewatch.environments import module_command
from compilewatch.environments.creation import Observer, locked, run_step, runs
from compilewatch.errors import InterpreterError
from compilewatch.files import replace

STAMP_FILE = "requirements.sha256"
"""Written last: the digest of the requirements that are installed."""


@dataclass(frozen=True)
class Tool:
    """The environment of a program in a cache folder (None: the user's own), created or not."""

    name: str
    cache: Path | None = None

    @property
    def folder(self) -> Path:
        return (self.cache or cache_folder()) / "tools" / self.name

    @property
    def python(self) -> Path:
        """The interpreter, existing or not."""
        return self.folder / "venv" / "bin" / "python"

    def is_ready(self) -> bool:
        """Whether the environment was created completely from the current requirements."""
        try:
            stamp = (self.folder / STAMP_FILE).read_text(encoding="ascii")
        except OSError:
            return False
        return stamp == _digest(self.name) and self.python.exists()

    def create(self, *, observer: Observer = lambda _: None) -> None:
        """Create the environment unless it is ready.

        `observer` is called with each line that pip prints. Raises InterpreterError.
        """
        name, folder, python = self.name, self.folder, str(self.python)
        digest = _digest(name)
        with locked(folder):
            if self.is_ready():
                return
            (folder / STAMP_FILE).unlink(missing_ok=True)
            if not runs(python):
                run_step(name, folder, [sys.executable, "-m", "venv", "--clear", "venv"], observer)
            requirements = REQUIREMENTS / f"{name}.txt"
            command = [python, "-m", "pip", "install", "--disable-pip-version-check"]
            run_step(name, folder, [*command, "-r", str(requirements)], observer)
            run_step(name, folder, [python, "-m", "pip", "check"], observer)
            replace(folder / STAMP_FILE, digest.encode())


def run_tool(python: Path, module: str, arguments: list[str], variables: dict[str, str]) -> int:
    """Run a module in a tool's environment until it ends, and return its exit status.

    It can import compilewatch, whose package is loaded as in a worker.
    """
    command = module_command(str(python), module, *arguments)
    own = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        with subprocess.Popen(command, env=own | variables) as program:
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
            f"{path} cannot be read ({error.strerror}): install compilewatch again"
        ) from None
