"""Creating an environment from locked requirement files.

A virtual environment cannot be moved, so it is created in its final place, and its stamp is written
last: without it, nothing uses the environment. If an incomplete attempt or another recipe left an
environment, pip brings it to this recipe and changes only what differs, so that gigabytes are not
downloaded again and a worker that runs in it keeps its interpreter. It is removed only if its
interpreter does not run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec

from compilewatch.config.settings import CHECKOUT
from compilewatch.contract import targets
from compilewatch.environments import (
    INTERPRETERS,
    STAMP_FILE,
    Stamp,
    describe_interpreter,
    environment_folder,
    made_interpreter,
    read_stamp,
)
from compilewatch.errors import InterpreterError, UsageError
from compilewatch.files import lock, replace
from compilewatch.records import Environment

REQUIREMENTS = CHECKOUT / "requirements"

INDEXES = {"neuron": "https://pip.repos.neuron.amazonaws.com"}
"""Environment -> a package index that it needs besides the usual one."""

LOG_FILE = "create.log"

Observer = Callable[[str], None]
"""Is called with each line that pip prints."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Input of an environment: the pin of torch, a locked requirements file, a further index."""

    torch: str
    requirements: Path
    index: str | None = None

    @property
    def digest(self) -> str:
        """16 hex digits over everything that decides what is installed. Raises InterpreterError."""
        try:
            locked = self.requirements.read_text(encoding="utf-8")
        except OSError as error:
            raise InterpreterError(
                f"{self.requirements} cannot be read ({error.strerror}): environments can only be "
                "created from a checkout of compilewatch"
            ) from None
        text = "\0".join((self.torch, locked, self.index or ""))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def recipe_of(name: str, torch: str | None = None) -> Recipe:
    """Return the recipe of an environment; `torch` is the version for one without its own recipe.

    Raises UsageError for an invalid name or version.
    """
    if name in INTERPRETERS:
        raise UsageError(f"{name!r} is the interpreter that runs compilewatch: make setup")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is None:
        raise UsageError(f"environment {name!r}: use letters, digits, dots and dashes")
    if name not in targets.environments():
        if torch is None:
            own = ", ".join(sorted(targets.environments()))
            raise UsageError(
                f"environment {name!r} needs --torch VERSION, such as --torch 2.9.0; "
                f"environments with their own recipe: {own}"
            )
        if re.fullmatch(r"\d+\.\d+(\.\d+)?[A-Za-z0-9.+]*", torch) is None:
            raise UsageError(f"--torch {torch}: expected a version such as 2.9.0")
        return Recipe(torch=f"torch=={torch}", requirements=REQUIREMENTS / "worker.txt")
    if torch is not None:
        raise UsageError(f"environment {name!r} has its own version of torch: omit --torch")
    requirements = REQUIREMENTS / f"{name}.txt"
    recipe = Recipe(torch="", requirements=requirements, index=INDEXES.get(name))
    _ = recipe.digest  # raises if the file cannot be read
    pins = re.findall(r"^torch==\S+", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    if len(pins) != 1:
        raise InterpreterError(f"{requirements}: expected one line torch==VERSION")
    return Recipe(torch=pins[0], requirements=requirements, index=recipe.index)


def create(
    name: str,
    recipe: Recipe,
    *,
    python: str | None = None,
    cache: Path | None = None,
    observer: Observer = lambda _: None,
) -> tuple[Environment, bool]:
    """Create an environment unless this recipe already created it; return whether it did.

    `python` is the interpreter to create it with (default: this one). The variable TORCH_INDEX
    names an index from which only torch is installed, as in scripts/setup.sh. Raises
    InterpreterError; the log is in the environment's folder.
    """
    folder = environment_folder(name, cache)
    with locked(folder):
        stamp, wanted = read_stamp(name, cache), recipe.digest
        chosen = made_interpreter(name, cache)
        if stamp is not None and stamp.recipe == wanted:
            with contextlib.suppress(InterpreterError):
                return describe_interpreter(name, chosen), False
        with contextlib.suppress(FileNotFoundError):
            (folder / STAMP_FILE).unlink()
        if not runs(chosen.path):
            shutil.rmtree(folder / "venv", ignore_errors=True)
            observer(f"Creating {folder / 'venv'}")
            run_step(name, folder, [python or sys.executable, "-m", "venv", "venv"], observer)
        for arguments in _installs(recipe):
            command = [chosen.path, "-m", "pip", "install", "--disable-pip-version-check"]
            run_step(name, folder, [*command, *arguments], observer)
        run_step(name, folder, [chosen.path, "-m", "pip", "check"], observer)
        made = describe_interpreter(name, chosen)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        stamp = Stamp(name=name, recipe=wanted, created=now, python=made.python)
        text = msgspec.json.format(msgspec.json.encode(stamp), indent=2) + b"\n"
        replace(folder / STAMP_FILE, text)
        return made, True


def _installs(recipe: Recipe) -> Iterator[list[str]]:
    """Yield the arguments of each `pip install`: torch from its own index, then everything else.

    Each command contains the pin of torch, so that no requirement can install another version.
    """
    if index := os.environ.get("TORCH_INDEX"):
        yield ["--index-url", index, recipe.torch]
    further = ["--extra-index-url", recipe.index] if recipe.index else []
    yield [*further, recipe.torch, "-r", str(recipe.requirements)]


def run_step(name: str, folder: Path, command: list[str], observer: Observer) -> None:
    """Run one step; each line of its output goes to the observer and to the log."""
    # Packages on the PYTHONPATH of the calling shell would count as installed.
    own = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}
    complaints: list[str] = []

    def report(line: str) -> None:
        observer(line)
        if line.strip():
            complaints.append(line.strip())

    try:
        with (folder / LOG_FILE).open("a", encoding="utf-8") as log:
            status = _logged(command, folder, own, log, report)
    except OSError as error:
        raise InterpreterError(
            f"environment {name!r}: {error.filename} cannot be used: {error.strerror}"
        ) from None
    if status != 0:
        errors = [line for line in complaints if line.startswith("ERROR")] or complaints
        told = errors[-1].removeprefix("ERROR: ") if errors else "no message"
        raise InterpreterError(
            f"environment {name!r} could not be created: {told} (log: {folder / LOG_FILE})"
        )


def _logged(
    command: list[str], folder: Path, variables: dict[str, str], log: TextIO, observer: Observer
) -> int:
    """Run a command in a folder and return its exit status. An exception ends the command."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as step:
        assert step.stdout is not None
        try:
            for line in step.stdout:
                log.write(line)
                observer(line.rstrip())
        except BaseException:
            step.kill()
            raise
    return step.returncode


def runs(python: str) -> bool:
    """Whether an interpreter exists, runs and has pip."""
    try:
        command = [python, "-m", "pip", "--version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the environment's folder and create it if needed: two checkouts share one cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise InterpreterError(
            f"{folder} cannot be written ({error.strerror}): set COMPILEWATCH_CACHE to a "
            "writable folder"
        ) from None
    with file:
        lock(file.fileno(), seconds=float("inf"))
        yield
