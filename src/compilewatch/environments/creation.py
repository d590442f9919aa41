"""Creating an environment from locked requirement files, or with chosen releases.

A virtual environment cannot be moved, so it is created in its final place, and its stamp is written
last: without it, nothing uses the environment. If an incomplete attempt or another recipe left an
environment, pip brings it to this recipe and changes only what differs, so that gigabytes are not
downloaded again and a worker that runs in it keeps its interpreter. It is removed only if its
interpreter does not run. Packages that another environment has are shared with it (`sharing`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec

from compilewatch.environments import (
    INTERPRETERS,
    STAMP_FILE,
    Environments,
    Interpreter,
    Stamp,
    describe_interpreter,
    package_folder,
)
from compilewatch.environments.recipes import NAME, Recipe
from compilewatch.environments.releases import check_release
from compilewatch.environments.sharing import release_in, share
from compilewatch.errors import InterpreterError, UsageError, did_you_mean
from compilewatch.files import lock, replace
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment

LOG_FILE = "create.log"

TORCH_BYTES = 7 * 2**30
"""What torch 2.13 with its CUDA libraries takes while pip installs it: 5 GiB, and its wheels."""

Observer = Callable[[str], None]
"""Is called with each line that pip prints."""


def create(
    environments: Environments,
    name: str,
    recipe: Recipe,
    *,
    python: str | None = None,
    observer: Observer = lambda _: None,
) -> tuple[Environment, bool]:
    """Create an environment unless this recipe already created it; return whether it did.

    `python` is the interpreter to create it with (default: this one). The variable TORCH_INDEX
    names an index from which only torch is installed, as in scripts/setup.sh. Raises
    InterpreterError; the log is in the environment's folder. Raises UsageError for a release that
    does not exist, and then nothing was created.
    """
    folder = environments.folder(name)
    known = environments.read_stamp(name)
    if known is None or known.recipe != recipe.digest:
        for package, version in (pin.split("==") for pin in recipe.chosen):
            check_release(package, version, python)
    with locked(folder):
        stamp, digest = environments.read_stamp(name), recipe.digest
        chosen = environments.made_interpreter(name)
        if stamp is not None and stamp.recipe == digest:
            with contextlib.suppress(InterpreterError):
                return describe_interpreter(name, chosen), False
        with contextlib.suppress(FileNotFoundError):
            (folder / STAMP_FILE).unlink()
        if not runs(chosen.path):
            shutil.rmtree(folder / "venv", ignore_errors=True)
            observer(f"Creating {folder / 'venv'}")
            own = package_folder(INTERPRETERS[DEFAULT_ENVIRONMENT])
            # Linking this interpreter's pip takes less time than unpacking another one.
            links = recipe.shares and python is None and release_in(own, "pip") is not None
            command = [python or sys.executable, "-m", "venv", "venv"]
            run_step(name, folder, command + ["--without-pip"] * bool(links), observer)
        if recipe.shares:
            _share(environments, name, recipe, chosen, observer)
            _check_room(name, recipe, chosen)
        for arguments in _installs(recipe):
            command = [chosen.path, "-m", "pip", "install", "--disable-pip-version-check"]
            if recipe.shares:
                command.append("--no-compile")  # Python compiles what the few models import
            run_step(name, folder, [*command, *arguments], observer)
        run_step(name, folder, [chosen.path, "-m", "pip", "check"], observer)
        environment = describe_interpreter(name, chosen)
        if recipe.cuda_build and environment.cuda is None:
            raise InterpreterError(
                f"environment {name!r}: pip installed torch {environment.torch}, which is not a "
                "CUDA build: use a package index that has CUDA builds, such as https://pypi.org/simple"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        stamp = Stamp(name=name, recipe=digest, created=now, python=environment.python)
        text = msgspec.json.format(msgspec.json.encode(stamp), indent=2) + b"\n"
        replace(folder / STAMP_FILE, text)
        return environment, True


def remove(environments: Environments, name: str) -> None:
    """Delete a created environment, finished or not. Files that others share are left to them.

    Raises UsageError for a name that is not one of them.
    """
    folder = environments.folder(name)
    if name in INTERPRETERS or NAME.fullmatch(name) is None or not folder.is_dir():
        known = [
            environment
            for environment in environments.available()
            if environment not in INTERPRETERS
        ]
        raise UsageError(
            f"no created environment {name!r}{did_you_mean(name, known)}; see compilewatch env list"
        )
    with locked(folder):
        (folder / STAMP_FILE).unlink(missing_ok=True)  # first: nothing uses what is half deleted
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise InterpreterError(
                f"environment {name!r}: {error.filename} cannot be deleted: {error.strerror}"
            ) from None


def _share(
    environments: Environments, name: str, recipe: Recipe, created: Interpreter, observer: Observer
) -> None:
    """Link what other environments of the same Python have: torch, then the locked packages."""
    into = package_folder(created)
    version = recipe.torch.partition("==")[2]
    names = environments.available()
    others = [package_folder(environments.interpreter(folder)) for folder in names]
    # Compiled packages only work with the version of Python that they were installed for.
    alike = [
        folder for folder in others if folder.parent.name == into.parent.name and folder != into
    ]
    owners = (folder for folder in alike if release_in(folder, "torch") == version)
    owner = next((folder for folder in owners if not recipe.cuda_build or _for_cuda(folder)), None)
    try:
        if release_in(into, "pip") is None:
            share(package_folder(INTERPRETERS[DEFAULT_ENVIRONMENT]), into, ["pip", "setuptools"])
        if owner is not None and share(owner, into, ["torch"]):
            observer(f"Installing torch {version}: shared with {owner}")
        if alike and alike[0] == others[0]:
            share(alike[0], into, [folder for folder in recipe.packages if folder != "torch"])
    except OSError as error:
        raise InterpreterError(
            f"environment {name!r}: {error.filename} cannot be created: {error.strerror}"
        ) from None


def _for_cuda(folder: Path) -> bool:
    """Whether the torch of a package folder is a CUDA build, as its `version.py` says."""
    with contextlib.suppress(OSError):
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
        return re.search(r"^cuda\b.*= *['\"]", text, re.MULTILINE) is not None
    return False


def _check_room(name: str, recipe: Recipe, created: Interpreter) -> None:
    """Raise InterpreterError if torch has to be downloaded and there is no room for it."""
    into = package_folder(created)
    free = shutil.disk_usage(into).free
    if (
        release_in(into, "torch") is None
        and free < TORCH_BYTES
        and (recipe.cuda_build or "TORCH_INDEX" not in os.environ)
    ):
        raise InterpreterError(
            f"environment {name!r} needs about {TORCH_BYTES / 2**30:.0f} GiB for {recipe.torch}, "
            f"which no other environment has; {free / 2**30:.1f} GiB are free in {into}"
        )


def _installs(recipe: Recipe) -> Iterator[list[str]]:
    """Yield the arguments of each `pip install`: torch from its own index, then everything else.

    Each command contains the pin of torch, so that no requirement can install another version.
    """
    index = os.environ.get("TORCH_INDEX")
    if index and not recipe.cuda_build:
        yield ["--index-url", index, recipe.torch]
    further = ["--extra-index-url", recipe.index] if recipe.index else []
    if recipe.transformers is None:
        yield [*further, recipe.torch, "-r", str(recipe.requirements), *recipe.further]
    else:
        names = [package for package in recipe.packages if package != "transformers"]
        yield [*further, recipe.torch, recipe.transformers, *names, *recipe.further]


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
