"""Creating environments: from locked requirement files, or with releases that a person chooses.

A virtual environment cannot be moved, so it is created in its final place, and its stamp is written
last: without it, nothing uses the environment. If an incomplete attempt or another recipe left an
environment, pip brings it to this recipe and changes only what differs, so that gigabytes are not
downloaded again and a worker that runs in it keeps its interpreter. It is removed only if its
interpreter does not run.

torch takes five gigabytes. An environment that needs a release which another one has gets hard
links to its files: they take no further space, and deleting either environment leaves the other
intact, because pip replaces files and never writes into them. On another file system they are
copied.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from compilewatch.config import cache_folder
from compilewatch.contract import targets
from compilewatch.contract.libraries import PACKAGE_ENVIRONMENTS
from compilewatch.data import REQUIREMENTS
from compilewatch.environments import (
    INTERPRETERS,
    SHARED,
    STAMP_FILE,
    SUPPORTED_TRANSFORMERS,
    Environments,
    Interpreter,
    describe_interpreter,
    last_line,
    module_command,
    package_folder,
)
from compilewatch.errors import InterpreterError, OsErrorsAs, UsageError, did_you_mean
from compilewatch.files import lock, replace
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment

LOG_FILE = "create.log"

TORCH_BYTES = 7 * 2**30
"""What torch 2.13 with its CUDA libraries takes while pip installs it: 5 GiB, and its wheels."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

WHEELS = {
    "neuron": ("Ubuntu 26.04 x86_64", ">=3.12,<3.15"),  # SDK 2.33, quick start of TorchNeuron
    "neuron-xla": ("", ">=3.11,<3.14"),
    "lowering": ("", ">=3.11"),
}
"""Environment -> the system (any, if empty) and the Pythons for which its packages have wheels."""

IMAGES, DLAMI = Path("/opt"), "aws_neuronx_venv_torch_neuronx_*"
"""Where AWS's machine images have releases of TorchNeuron (SDK 2.33, update-dlami)."""

NEURON_FAMILY = ("torch", "torch-neuronx", "neuronx-cc", "nki")
"""What an adopted environment has and keeps."""

TOOL_STAMP = "requirements.sha256"
"""Written last: the digest of the requirements that a tool's environment has."""

INDEX_TIMEOUT_SECONDS = 120.0

Observer = Callable[[str], None]
"""Is called with each line that pip prints."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Input of an environment: pins of torch and Transformers, and requirements.

    Without a pin of Transformers, `requirements` is a locked file, which has one. With it, it is a
    list of names: pip then keeps the locked releases, which are linked into the environment first,
    wherever that Transformers permits them, so that two environments differ as little as possible.
    `chosen` are the pins that a person chose, which need not exist, and `further` the packages that
    a person wants besides, in the releases that pip finds for them. `cuda_build` asks for a torch
    that was built for CUDA, from the usual index. `default_torch` says that the torch is that of
    compilewatch itself. `adopted` is an environment of AWS's machine images: its packages are used
    where they are and stay as they are; what a worker needs besides is installed here.
    """

    torch: str
    requirements: Path
    transformers: str | None = None
    chosen: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    cuda_build: bool = False
    default_torch: bool = False
    adopted: Path | None = None

    @property
    def shares(self) -> bool:
        """Whether packages that another environment has are linked into this one."""
        return bool(self.chosen) or self.cuda_build or self.default_torch

    @property
    def digest(self) -> str:
        """16 hex digits over everything that decides what is installed. Raises InterpreterError."""
        text = f"{self.torch}\0{_requirements(self.requirements)}\0"
        if self.transformers:
            text += f"\0{self.transformers}"
        if self.further:
            text += "\0with " + " ".join(self.further)
        if self.cuda_build:
            text += "\0cuda"
        if self.adopted:
            text += f"\0{self.adopted}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def packages(self) -> tuple[str, ...]:
        """The names of the packages that a worker imports besides torch."""
        text = _requirements(self.requirements)
        return tuple(re.findall(r"^[A-Za-z0-9][A-Za-z0-9._-]*", text, re.MULTILINE))


def recipe_of(
    name: str,
    torch: str | None = None,
    transformers: str | None = None,
    further: Sequence[str] = (),
) -> Recipe:
    """Return the recipe of an environment; the versions are for one without its own recipe.

    Without `torch`, it has the torch of compilewatch's own lock, and without `transformers` the
    Transformers of that lock. `further` are names of packages, such as timm. Raises UsageError for
    an invalid name or version.
    """
    if name in INTERPRETERS:
        raise UsageError(f"{name!r} is the interpreter that runs compilewatch: make setup")
    if NAME.fullmatch(name) is None:
        raise UsageError(f"environment {name!r}: use letters, digits, dots and dashes")
    own_torch = REQUIREMENTS / "default.txt"
    versions = {"torch": torch, "transformers": transformers}
    chosen_versions = {package: v for package, v in versions.items() if v is not None}
    if name in targets.environments():
        for package in chosen_versions:
            raise UsageError(
                f"environment {name!r} has its own version of {package}: omit --{package}"
            )
        if further:
            raise UsageError(f"environment {name!r} has its own packages: omit --with")
        if name != targets.CUDA_BUILD:
            locked_file = REQUIREMENTS / f"{name}.txt"
            return Recipe(
                torch=_pin_of_torch(locked_file),
                requirements=locked_file,
                default_torch=name in (*PACKAGE_ENVIRONMENTS, "lowering"),
                adopted=_dlami() if name == "neuron" else None,
            )
        if sys.platform != "linux":
            raise UsageError(
                f"environment {name!r} needs Linux: there are no CUDA wheels for others"
            )
        requirements = REQUIREMENTS / "worker.txt"
        return Recipe(torch=_pin_of_torch(own_torch), requirements=requirements, cuda_build=True)
    if not chosen_versions and not further:
        own = ", ".join(sorted(targets.environments()))
        raise UsageError(
            f"environment {name!r} needs --torch VERSION, such as --torch 2.9.0, --transformers "
            f"VERSION, or --with PACKAGE; environments with their own recipe: {own}"
        )
    for package, version in chosen_versions.items():
        if re.fullmatch(r"\d+\.\d+(\.\d+)?[A-Za-z0-9.+]*", version) is None:
            raise UsageError(f"--{package} {version}: expected a version such as 2.9.0")
    if transformers is not None and transformers not in SUPPORTED_TRANSFORMERS:
        raise UsageError(
            f"--transformers {transformers}: compilewatch supports {SUPPORTED_TRANSFORMERS} only"
        )
    for package in further:
        if NAME.fullmatch(package) is None:
            raise UsageError(f"--with {package}: expected the name of a package, such as timm")
    chosen = {package: f"{package}=={version}" for package, version in chosen_versions.items()}
    return Recipe(
        torch=chosen.get("torch") or _pin_of_torch(own_torch),
        requirements=REQUIREMENTS / ("worker.in" if transformers else "worker.txt"),
        transformers=chosen.get("transformers"),
        chosen=tuple(chosen.values()),
        further=tuple(sorted(further)),
        default_torch=not chosen,
    )


def _dlami() -> Path | None:
    """The newest environment with TorchNeuron of a machine image of AWS; None elsewhere."""
    return max(
        (python.parents[1] for python in IMAGES.glob(f"{DLAMI}/bin/python")),
        key=lambda folder: [int(number) for number in re.findall(r"\d+", folder.name)],
        default=None,
    )


def _check_wheels(name: str, python: str | None) -> None:
    """Raise InterpreterError where an environment's packages are known to have no wheels."""
    system, pythons = WHEELS[name]
    release = {"NAME": platform.system()}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    here = f"{release['NAME']} {release.get('VERSION_ID', '')} {platform.machine()}"
    if not here.startswith(system):
        raise InterpreterError(
            f"environment {name!r} needs {system} or AWS's machine image ({IMAGES / DLAMI}); "
            f"this is {here}: compilewatch env create lowering gives a forecast"
        )
    version = runs(python) if python else platform.python_version()
    if version and not SpecifierSet(pythons).contains(version, prereleases=True):
        raise InterpreterError(
            f"environment {name!r} needs Python {pythons}, and {python or sys.executable} is "
            f"{version}: name another one with --python"
        )


def _requirements(path: Path) -> str:
    with OsErrorsAs(InterpreterError, f"{path} cannot be read, install compilewatch again"):
        return path.read_text(encoding="utf-8")


def _pin_of_torch(locked_file: Path) -> str:
    pins: list[str] = re.findall(r"^torch==\S+", _requirements(locked_file), re.MULTILINE)
    if len(pins) != 1:
        raise InterpreterError(f"{locked_file}: expected one line torch==VERSION")
    return pins[0]


def releases(package: str, python: str | None = None) -> tuple[Version, ...]:
    """Return the final releases of a package with a wheel for this Python, oldest first.

    pip lists them, so that its configuration (index, certificates, local folders) applies; releases
    that were withdrawn (yanked) are not listed. torch is searched in TORCH_INDEX where that is set.
    Raises InterpreterError if the index lists none, which it also does where it is unreachable.
    """
    command = [python or sys.executable, "-m", "pip", "index", "versions", package]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1"]
    if package == "torch" and (index := os.environ.get("TORCH_INDEX")):
        command += ["--index-url", index]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INDEX_TIMEOUT_SECONDS
        )
        output, complaints = done.stdout, done.stderr
    except OSError as error:
        raise InterpreterError(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired as error:
        output, complaints = "", str(error)
    line = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if line is not None:
        versions: set[Version] = set()
        for text in line[1].split(","):
            with contextlib.suppress(InvalidVersion):
                versions.add(Version(text.strip()))
        return tuple(sorted(version for version in versions if not version.is_prerelease))
    unreachable = "Retrying" in complaints or "timed out" in complaints
    if not unreachable and "No matching distribution" not in complaints:
        last = last_line(complaints.encode())
        raise InterpreterError(f"{command[0]} cannot list the releases of {package}: {last}")
    why = "cannot be reached" if unreachable else "lists no wheel of it for this Python"
    raise InterpreterError(
        f"the releases of {package} are not known, because the package index {why}: check the "
        "network and pip's settings (pip config list)"
    )


def check_release(package: str, version: str, python: str | None = None) -> None:
    """Raise UsageError if the index has no wheel of this release for this Python."""
    known = releases(package, python)
    # A local version such as 2.9.0+cpu is the same release as 2.9.0 of another index.
    if release_of(version) not in {release.public for release in known}:
        near = did_you_mean(version, map(str, known), most=3)
        raise UsageError(
            f"{package} {version} does not exist, was withdrawn, or has no wheel for this "
            f"Python{near}; the newest is {known[-1]}"
        )


def release_of(version: str) -> str:
    """Return the release of a version: `2.15.0` of `2.15.0+cu132`."""
    return Version(version).public


def packages_in(folder: Path) -> dict[str, metadata.Distribution]:
    """Return the distributions that are installed in a package folder, by canonical name."""
    packages: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=[str(folder)]):
        # An interrupted installation may leave metadata without a name. A package with an address
        # was installed from a folder, where it may change.
        name = distribution.metadata["Name"]
        if name and distribution.read_text("direct_url.json") is None:
            packages.setdefault(canonicalize_name(name), distribution)
    return packages


def release_in(folder: Path, package: str) -> str | None:
    """Return the version of a package in a package folder, None if it is not there."""
    distribution = next(iter(metadata.distributions(name=package, path=[str(folder)])), None)
    return distribution.version if distribution is not None else None


def share(source: Path, into: Path, roots: Iterable[str]) -> tuple[str, ...]:
    """Link packages and all that they need into another package folder; return their names.

    Packages that are installed there already are left as they are, and so is what `source` lacks.
    Raises OSError, such as on a full disk.
    """
    known, present = packages_in(source), packages_in(into)
    missing = tuple(name for name in needed(known, roots) if name not in present)
    for name in missing:
        # But for scripts, which name an interpreter. Metadata comes last: without it a package is
        # not installed, and an interrupted link is begun again.
        files = known[name].files or ()
        for file in sorted(files, key=lambda f: any(p.endswith(".dist-info") for p in f.parts)):
            if ".." in file.parts or file.is_absolute() or not (source / file).is_file():
                continue
            link = into / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)  # an interrupted copy may have left a part of it
            try:
                os.link(source / file, link)
            except OSError:
                shutil.copy2(source / file, link)
    return missing


def needed(known: Mapping[str, metadata.Distribution], roots: Iterable[str]) -> tuple[str, ...]:
    """Return the names of packages and of everything that they require, as far as it is known."""
    waiting = [(str(canonicalize_name(name)), frozenset[str]()) for name in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if name not in known or (name, extras) in seen:
            continue
        seen.add((name, extras))
        for text in known[name].requires or ():
            with contextlib.suppress(InvalidRequirement):
                required = Requirement(text)
                marker = required.marker
                if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
                    waiting.append((canonicalize_name(required.name), frozenset(required.extras)))
    return tuple(sorted({name for name, _ in seen}))


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
    folder, digest = environments.folder(name), recipe.digest
    stamp = environments.read_stamp(name)
    if stamp is None or stamp.recipe != digest:
        for package, version in (pin.split("==") for pin in recipe.chosen):
            check_release(package, version, python)
        if name in WHEELS and recipe.adopted is None:
            _check_wheels(name, python)
    with locked(folder):
        stamp = environments.read_stamp(name)
        chosen = environments.made_interpreter(name)
        if stamp is not None and stamp.recipe == digest:
            with contextlib.suppress(InterpreterError):
                return describe_interpreter(name, chosen), False
        (folder / STAMP_FILE).unlink(missing_ok=True)
        if recipe.adopted is not None or not runs(chosen.path):
            shutil.rmtree(folder / "venv", ignore_errors=True)
            observer(f"Creating {folder / 'venv'}")
            own = package_folder(INTERPRETERS[DEFAULT_ENVIRONMENT])
            # Linking this interpreter's pip takes less time than unpacking another one.
            links = recipe.shares and python is None and release_in(own, "pip") is not None
            if recipe.adopted is not None:
                links, python = True, str(recipe.adopted / "bin" / "python")
            command = [python or sys.executable, "-m", "venv", "venv"]
            run_step(name, folder, command + ["--without-pip"] * bool(links), observer)
        if recipe.adopted is not None:
            observer(f"Installing beside {recipe.adopted}")
            _adopt(recipe.adopted, folder / "venv")
        if recipe.shares:
            _share(environments, name, recipe, chosen, observer)
        pip = [chosen.path, "-m", "pip"]
        for arguments in _installs(recipe):
            command = [*pip, "install", "--disable-pip-version-check"]
            if recipe.shares:
                command.append("--no-compile")  # Python compiles what the few models import
            run_step(name, folder, [*command, *arguments], observer)
        if recipe.adopted is None:
            run_step(name, folder, [*pip, "check"], observer)
        environment = describe_interpreter(name, chosen)
        if recipe.cuda_build and environment.cuda is None:
            raise InterpreterError(
                f"environment {name!r}: pip installed torch {environment.torch}, which is not a "
                "CUDA build: use a package index that has CUDA builds, such as "
                "https://pypi.org/simple"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"name": name, "recipe": digest, "created": now, "python": environment.python}
        text = json.dumps(facts | {"schema_version": 1}, indent=2)
        replace(folder / STAMP_FILE, f"{text}\n".encode())
        return environment, True


def ensure(
    environments: Environments,
    torch: str,
    transformers: str,
    observer: Observer = lambda _: None,
) -> Environment:
    """Return an environment with these releases, and create it if there is none.

    Neither compilewatch's own interpreter, which has further packages, nor those of targets, whose
    packages change what torch does, is one: two environments that are compared must be alike.
    Raises UsageError for a release that does not exist, and InterpreterError.
    """
    for name in environments.available():
        if name not in INTERPRETERS and name not in targets.environments():
            with contextlib.suppress(InterpreterError):
                environment = environments.describe(name)
                known = (release_of(environment.torch), environment.transformers)
                if known == (torch, transformers):
                    return environment
    name = f"torch-{torch}-transformers-{transformers}"
    recipe = recipe_of(name, torch, transformers)
    return create(environments, name, recipe, observer=observer)[0]


def remove(environments: Environments, name: str) -> None:
    """Delete a created environment, finished or not. Files that others share are left to them.

    Raises UsageError for a name that is not one of them.
    """
    folder = environments.folder(name)
    if name in INTERPRETERS or NAME.fullmatch(name) is None or not folder.is_dir():
        known = [known for known in environments.available() if known not in INTERPRETERS]
        raise UsageError(
            f"no created environment {name!r}{did_you_mean(name, known)}; see compilewatch env list"
        )
    with locked(folder):
        (folder / STAMP_FILE).unlink(missing_ok=True)  # first: nothing uses what is half deleted
        with OsErrorsAs(InterpreterError, f"environment {name!r}: {folder} cannot be deleted"):
            shutil.rmtree(folder)


def sizes_of(environments: Environments, name: str) -> tuple[int, int]:
    """Return the bytes of a created environment: of its own files, and of those with more links."""
    own = shared = 0
    for folder, _, files in os.walk(environments.folder(name)):
        for file in files:
            status = os.lstat(os.path.join(folder, file))  # noqa: PTH118  of 30,000 files
            if status.st_nlink > 1:
                shared += status.st_size
            else:
                own += status.st_size
    return own, shared


def _adopt(other: Path, venv: Path) -> None:
    """Let an environment's Python find packages of another one, and programs of Neuron."""
    own, packages = (next(folder.glob("lib/python*/site-packages")) for folder in (venv, other))
    (venv / SHARED).symlink_to(other)
    (own / "shared.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    for program in other.glob("bin/neuron*"):
        (venv / "bin" / program.name).symlink_to(program)


def _share(
    environments: Environments, name: str, recipe: Recipe, created: Interpreter, observer: Observer
) -> None:
    """Link what other environments of the same Python have: torch, then the locked packages.

    Raises InterpreterError, also if torch has to be downloaded and there is no room for it.
    """
    into = package_folder(created)
    version = recipe.torch.partition("==")[2]
    names = environments.available()
    others = [package_folder(environments.interpreter(other)) for other in names]
    # Compiled packages only work with the version of Python that they were installed for.
    alike = [other for other in others if other.parent.name == into.parent.name and other != into]

    def has_cuda_build(folder: Path) -> bool:
        with contextlib.suppress(OSError):
            text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
            return re.search(r"^cuda\b.*= *['\"]", text, re.MULTILINE) is not None
        return False

    owners = (folder for folder in alike if release_in(folder, "torch") == version)
    owner = next((o for o in owners if not recipe.cuda_build or has_cuda_build(o)), None)
    with OsErrorsAs(InterpreterError, f"environment {name!r} cannot be created"):
        if release_in(into, "pip") is None:
            share(package_folder(INTERPRETERS[DEFAULT_ENVIRONMENT]), into, ["pip", "setuptools"])
        if owner is not None and share(owner, into, ["torch"]):
            observer(f"Installing torch {version}: shared with {owner}")
        if alike and alike[0] == others[0]:
            share(alike[0], into, [package for package in recipe.packages if package != "torch"])
    free = shutil.disk_usage(into).free
    from_usual_index = recipe.cuda_build or "TORCH_INDEX" not in os.environ
    if from_usual_index and free < TORCH_BYTES and release_in(into, "torch") is None:
        raise InterpreterError(
            f"environment {name!r} needs about {TORCH_BYTES / 2**30:.0f} GiB for {recipe.torch}, "
            f"which no other environment has; {free / 2**30:.1f} GiB are free in {into}"
        )


def _installs(recipe: Recipe) -> Iterator[list[str]]:
    """Yield the arguments of each `pip install`: torch from its own index, then everything else.

    Each command contains the pin of torch, so that no requirement can install another version.
    """
    index = os.environ.get("TORCH_INDEX")
    if index and not recipe.cuda_build and recipe.adopted is None:
        yield ["--index-url", index, recipe.torch]
    if recipe.adopted is not None:
        lines = re.findall(r"^\w.*", _requirements(recipe.requirements), re.MULTILINE)
        yield [line for line in lines if Requirement(line).name not in NEURON_FAMILY]
    elif recipe.transformers is None:
        yield [recipe.torch, "-r", str(recipe.requirements), *recipe.further]
    else:
        names = [package for package in recipe.packages if package != "transformers"]
        yield [recipe.torch, recipe.transformers, *names, *recipe.further]


def run_step(name: str, folder: Path, command: list[str], observer: Observer) -> None:
    """Run one step in a folder; each line of its output goes to the observer and to the log.

    Raises InterpreterError if it fails. An exception of the observer ends the step.
    """
    lines: list[str] = []
    with (
        OsErrorsAs(InterpreterError, f"environment {name!r} cannot be created"),
        (folder / LOG_FILE).open("a", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=_own_variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as step,
    ):
        try:
            for line in step.stdout or ():
                log.write(line)
                observer(line.rstrip())
                lines += [line.strip()] if line.strip() else []
        except BaseException:
            step.kill()
            raise
    if step.returncode != 0:
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        reason = errors[-1].removeprefix("ERROR: ")
        raise InterpreterError(
            f"environment {name!r} could not be created: {reason} (log: {folder / LOG_FILE})"
        )


def _own_variables() -> dict[str, str]:
    """The variables of this process, without packages of its shell, which would count too."""
    return {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}


def runs(python: str) -> str:
    """Return the version (`3.12`) of an interpreter that exists, runs and has pip; or ""."""
    try:
        command = [python, "-m", "pip", "--version"]  # pip 26.1 from FOLDER (python 3.12)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.rpartition("(python ")[2].rstrip(")\n")


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


@dataclass(frozen=True)
class Tool:
    """The environment of a program that is no worker, such as the monitor page: it has no torch.

    It is in a cache folder (None: the user's own), created on first use or not, from a locked
    requirements file, so that the default installation stays small.
    """

    name: str
    cache: Path | None = None

    @property
    def folder(self) -> Path:
        return (self.cache or cache_folder()) / "tools" / self.name

    @property
    def python(self) -> Path:
        """The interpreter, existing or not."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def _digest(self) -> str:
        text = _requirements(REQUIREMENTS / f"{self.name}.txt")
        return hashlib.sha256(text.encode()).hexdigest()

    def is_ready(self) -> bool:
        """Whether the environment was created completely from the current requirements."""
        try:
            stamp = (self.folder / TOOL_STAMP).read_text(encoding="ascii")
        except OSError:
            return False
        return stamp == self._digest and self.python.exists()

    def create(self, *, observer: Observer = lambda _: None) -> None:
        """Create the environment unless it is ready.

        `observer` is called with each line that pip prints. Raises InterpreterError.
        """
        name, folder, python, digest = self.name, self.folder, str(self.python), self._digest
        with locked(folder):
            if self.is_ready():
                return
            (folder / TOOL_STAMP).unlink(missing_ok=True)
            if not runs(python):
                run_step(name, folder, [sys.executable, "-m", "venv", "--clear", "venv"], observer)
            requirements = REQUIREMENTS / f"{name}.txt"
            command = [python, "-m", "pip", "install", "--disable-pip-version-check"]
            run_step(name, folder, [*command, "-r", str(requirements)], observer)
            run_step(name, folder, [python, "-m", "pip", "check"], observer)
            replace(folder / TOOL_STAMP, digest.encode())


def run_tool(python: Path, module: str, arguments: list[str], variables: dict[str, str]) -> int:
    """Run a module in a tool's environment until it ends, and return its exit status.

    It can import compilewatch, whose package is loaded as in a worker.
    """
    command = module_command(str(python), module, *arguments)
    with (
        OsErrorsAs(InterpreterError, f"{python} cannot be run"),
        subprocess.Popen(command, env=_own_variables() | variables) as program,
    ):
        try:
            return program.wait()
        except KeyboardInterrupt:
            program.terminate()
            program.wait()
            return 0
