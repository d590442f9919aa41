"""Named Python interpreters in which workers run, and what is known about them.

An environment is a Python with torch, transformers and msgspec. `default` is the interpreter that
runs compilewatch; `creation` creates the others in the user's cache folder. compilewatch itself is
not installed in them: `worker_command` starts a worker from the parent's own sources. The parent
never imports torch: it runs the interpreter, which describes itself from package metadata.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.specifiers import SpecifierSet

from compilewatch import __version__
from compilewatch.config import cache_folder
from compilewatch.contract import processes, targets
from compilewatch.errors import InterpreterError, StoreError
from compilewatch.files import DamagedError, from_json, read_if_whole, write_atomically
from compilewatch.records import DEFAULT_ENVIRONMENT, HARNESS_VERSION, Environment, Record, now

T = TypeVar("T")

STAMP_FILE = "environment.json"

SHARED = "shared"
"""In a virtual environment: a link to another one, whose packages its Python finds too."""

SUPPORTED_TRANSFORMERS = SpecifierSet(">=4.57", prereleases=True)
"""The releases whose files a scan understands; a test reads the wheels of the oldest and newest."""

# Only the CPU is visible, because a result must not depend on the machine that produced it.
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The interpreter of an environment; `executable` None means the one that runs compilewatch.

    `variables` are set for its workers.
    """

    executable: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.executable or sys.executable


INTERPRETERS: dict[str, Interpreter] = {DEFAULT_ENVIRONMENT: Interpreter(variables=CPU_ONLY)}
"""The environments that need not be created."""


class Stamp(Record, frozen=True, kw_only=True):
    """What is read of `environment.json`: the digest of the recipe that it was created from.

    It is written last: an environment without it is incomplete.
    """

    recipe: str


class Fact(Record, frozen=True, kw_only=True):
    """One fact: the digest of what it depends on, the time when it was found, and its value."""

    depends_on: str
    checked_at: str
    value: msgspec.Raw


WORKER_VARIABLES = {
    # A server must be single-threaded to fork, and its children share the machine's cores.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow starts one when it is imported
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Sets of strings then always iterate in the same order: same graph, same first graph break.
    "PYTHONHASHSEED": "0",
    # TorchNeuron would otherwise load its device at each `import torch`, in a server that forks
    # too. The target that needs a device imports its package itself, in a process of its own.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    # A worker only needs configurations. Children that load weights remove this for themselves.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

CHANGES_ANSWERS = (
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE", "TORCH_LOGS", "TORCH_TRACE"),
    *("PJRT_", "XLA_", "TORCH_NEURONX_", "NEURON_CC_FLAGS", "NEURON_COMPILER_OPT_LEVEL"),
)
"""Prefixes of variables that change what torch does; they are not passed on to workers."""

DESCRIBE_TIMEOUT_SECONDS = 60.0

PACKAGE = Path(__file__).parents[1]

BOOTSTRAP = PACKAGE / "worker" / "process" / "bootstrap.py"
"""The file that another Python runs; it loads this package from its folder, then a module."""

FACT_SOURCES = (
    *("contract", "neuron", "worker/model/libraries", "worker/process", "worker/targets"),
)
"""Folders of compilewatch whose code determines facts; a checkout can change without a new version.
"""


def create_command(name: str) -> str:
    """Return the command that creates an environment."""
    options = "" if name in targets.environments() else " --torch VERSION"
    return f"compilewatch env create {name}{options}"


@dataclass(frozen=True)
class Environments:
    """The environments of one cache folder (None: the user's own) and what is known about them.

    `default` needs no folder; `creation` creates and removes the others.
    """

    cache: Path | None = None

    @property
    def _cache(self) -> Path:
        return self.cache or cache_folder()

    def folder(self, name: str) -> Path:
        """Return the folder of a created environment, existing or not."""
        return self._cache / "environments" / name

    def read_stamp(self, name: str) -> Stamp | None:
        """Return the stamp of an environment, None if it is missing, incomplete or unreadable."""
        return read_if_whole(self.folder(name) / STAMP_FILE, Stamp)

    def available(self) -> tuple[str, ...]:
        """Return the names of all existing environments, the default one first."""
        stamps = sorted(self.folder("").glob(f"*/{STAMP_FILE}"))
        created = [path.parent.name for path in stamps if self.read_stamp(path.parent.name)]
        return tuple(dict.fromkeys([*INTERPRETERS, *created]))

    def made_interpreter(self, name: str) -> Interpreter:
        """Return the interpreter of a created environment, existing or not."""
        python = self.folder(name) / "venv" / "bin" / "python"
        variables = {**CPU_ONLY, **targets.environment_variables(name)}
        return Interpreter(executable=str(python), variables=variables)

    def interpreter(self, name: str) -> Interpreter:
        """Return an environment's interpreter. Raises InterpreterError if there is no such name."""
        if name in INTERPRETERS:
            return INTERPRETERS[name]
        if self.read_stamp(name) is None:
            known = ", ".join(self.available())
            raise InterpreterError(
                f"no environment {name!r}; known: {known}; {create_command(name)}"
            )
        return self.made_interpreter(name)

    def transformers_folder(self, name: str) -> Path | None:
        """Return the package folder of an environment's Transformers; None for this interpreter's.

        Raises InterpreterError if the environment does not exist or has no Transformers.
        """
        chosen = self.interpreter(name)
        if chosen.executable is None:
            return None
        venv = self.folder(name) / "venv"
        places = (package_folder(chosen), *(venv / SHARED).glob("lib/python*/site-packages"))
        folder = next((f for p in places if (f := p / "transformers").is_dir()), None)
        if folder is None:
            raise InterpreterError(
                f"environment {name!r} has no transformers; {create_command(name)}"
            )
        return folder

    def describe(self, name: str, *, fresh: bool = False) -> Environment:
        """Describe an environment, from stored facts or in about 0.3 s (see `remembered`).

        Raises InterpreterError if it does not exist, or if its Python does not run or lacks a
        package that a worker needs.
        """
        check = partial(describe_interpreter, name)
        return self.remembered("environment", name, Environment, check, fresh=fresh)[0]

    def remembered(
        self,
        what: str,
        name: str,
        kind: type[T],
        check: Callable[[Interpreter], T],
        *,
        fresh: bool = False,
    ) -> tuple[T, str]:
        """Return the fact `what` about an environment and the time (UTC) when it was found.

        Finding a fact out needs a start of the interpreter, and often an import of torch. It is
        stored in the cache folder, with a digest of everything that it depends on: the interpreter,
        the times of its package folders, this version of compilewatch and the variables that a
        worker would see. `check` is called if none is stored, if any of these has changed, or with
        `fresh`. Its exceptions propagate, and then nothing is stored. Raises InterpreterError if
        the environment does not exist.
        """
        chosen = self.interpreter(name)
        path = self._facts(name, chosen) / f"{what}.json"
        depends_on = _digest(chosen)
        if not fresh:
            with contextlib.suppress(OSError, DamagedError):
                fact = from_json(path.read_bytes(), Fact)
                if fact.depends_on == depends_on:
                    return from_json(bytes(fact.value), kind), fact.checked_at
        value = check(chosen)
        encoded = msgspec.Raw(msgspec.json.encode(value))
        fact = Fact(depends_on=depends_on, checked_at=now(), value=encoded)
        with contextlib.suppress(StoreError):  # without a writable cache, facts are found again
            write_atomically(path, msgspec.json.encode(fact), durable=False)
        return value, fact.checked_at

    def forget(self, name: str) -> None:
        """Delete the stored facts of an environment, so that they are determined again."""
        for path in self._facts(name, self.interpreter(name)).glob("*.json"):
            path.unlink(missing_ok=True)

    def _facts(self, name: str, chosen: Interpreter) -> Path:
        digest = hashlib.sha256(f"{name}\0{chosen.path}".encode()).hexdigest()
        return self._cache / "facts" / f"{name}-{digest[:16]}"


def _digest(chosen: Interpreter) -> str:
    """The digest of everything that a fact about an interpreter depends on."""
    times = []
    for path in _watched(chosen):
        with contextlib.suppress(OSError):
            times.append((str(path), path.stat().st_mtime_ns))
    programs = [shutil.which(name) for name in (os.environ.get("CXX", "g++"), "neuronx-cc")]
    seen = [dict(chosen.variables), os.environ.get("PYTHONPATH", ""), programs]
    facts = [__version__, HARNESS_VERSION, seen, sorted(set(times))]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _watched(chosen: Interpreter) -> Iterator[Path]:
    """The files and folders whose change may change a fact; they need not exist."""
    python = Path(chosen.path)
    yield python
    prefix = python.parent.parent
    if chosen.path == sys.executable:
        prefix = Path(sys.prefix)
        yield from map(Path, site.getsitepackages())
        # A torch that is built in its checkout can change while the package folders do not.
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).with_name("version.py")
    yield prefix / "pyvenv.cfg"
    yield from prefix.glob("lib/python*/site-packages")
    yield from prefix.glob(f"{SHARED}/lib/python*/site-packages")
    yield from map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    yield from Path("/dev").glob("neuron*")
    for folder in FACT_SOURCES:
        yield from (PACKAGE / folder).rglob("*.py")


def package_folder(chosen: Interpreter) -> Path:
    """Return the folder that contains an interpreter's torch; it need not exist.

    Raises InterpreterError if compilewatch's own interpreter has no torch.
    """
    if chosen.executable is None:
        try:
            return Path(str(metadata.distribution("torch").locate_file("")))
        except metadata.PackageNotFoundError:
            raise InterpreterError("torch is not installed here: pip install torch") from None
    library = Path(chosen.executable).parent.parent / "lib"
    return next(library.glob("python*/site-packages"), library)


def worker_variables(chosen: Interpreter, *, devices: bool = False) -> dict[str, str]:
    """Return the environment variables of a worker: those of this process, then its own.

    With `devices`, no CUDA device that this process sees is hidden from it.
    """
    own = {n: value for n, value in os.environ.items() if not n.startswith(CHANGES_ANSWERS)}
    chosen_variables = {
        n: v for n, v in chosen.variables.items() if not (devices and n in CPU_ONLY)
    }
    return {**own, **WORKER_VARIABLES, **chosen_variables}


def worker_command(chosen: Interpreter, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of `worker.process` in any interpreter."""
    return module_command(chosen.path, f"compilewatch.worker.process.{module}", *arguments)


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs any module in an interpreter that can import this package.

    The interpreter need not have compilewatch installed; it gets nothing else of the parent's.
    """
    return [python, "-P", str(BOOTSTRAP), module, *arguments]


def oneshot(
    chosen: Interpreter, verb: str, request: bytes, timeout_seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a verb of `worker.process.oneshot`. Raises subprocess.TimeoutExpired."""
    command = worker_command(chosen, "oneshot", verb)
    variables = worker_variables(chosen)
    return processes.run(command, seconds=timeout_seconds, content=request, env=variables)


def last_line(output: bytes) -> str:
    """Return the last line of an output, in which the reason of a failure stands."""
    return (output.decode(errors="replace").strip().splitlines() or ["no message"])[-1]


def answer(name: str, chosen: Interpreter, kind: type[T], seconds: float, *command: str) -> T:
    """Run a module of `worker.process` in an environment's interpreter, and return what it prints.

    Raises InterpreterError.
    """
    where = f"environment {name!r}: {chosen.path}"
    try:
        started = worker_command(chosen, *command)
        done = processes.run(started, seconds=seconds, env=worker_variables(chosen))
        if done.returncode != 0:
            raise InterpreterError(f"environment {name!r} is broken: {last_line(done.stderr)}")
        return from_json(done.stdout, kind)
    except OSError as error:
        raise InterpreterError(f"{where} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InterpreterError(f"{where} did not respond in {seconds:g} s") from None
    except DamagedError:
        raise InterpreterError(
            f"{where} printed nothing that can be read: is it a Python?"
        ) from None


def describe_interpreter(name: str, chosen: Interpreter) -> Environment:
    """Describe an interpreter, which need not have a name yet; see `Environments.describe`."""
    return answer(name, chosen, Environment, DESCRIBE_TIMEOUT_SECONDS, "describe", name)


class EnvironmentState(StrEnum):
    """`unfinished`: its creation was interrupted; `broken`: it does not respond."""

    READY = "ready"
    BROKEN = "broken"
    UNFINISHED = "unfinished"
    NOT_CREATED = "not_created"


class ListedEnvironment(Record, frozen=True, kw_only=True):
    """One environment. `environment` is its description, None unless it is ready."""

    name: str
    state: EnvironmentState
    environment: Environment | None = None
    advice: str = ""


def listing(environments: Environments, *, fresh: bool = False) -> tuple[ListedEnvironment, ...]:
    """The existing environments, then the unfinished ones, then those that targets would need."""
    listed: list[ListedEnvironment] = []
    known = set(environments.available())
    for name in environments.available():
        try:
            described = environments.describe(name, fresh=fresh)
            state, advice = EnvironmentState.READY, ""
            if name == DEFAULT_ENVIRONMENT and described.cuda is not None:
                known.add(targets.CUDA_BUILD)  # it is for what a CPU build cannot do
        except InterpreterError as error:
            command = "make setup" if name in INTERPRETERS else create_command(name)
            described, state, advice = None, EnvironmentState.BROKEN, f"{error}; {command}"
        listed.append(
            ListedEnvironment(name=name, state=state, environment=described, advice=advice)
        )
    begun = sorted(path.parent.name for path in environments.folder("").glob("*/venv"))
    for name in dict.fromkeys([*begun, *targets.environments()]):
        if name not in known:
            state = EnvironmentState.UNFINISHED if name in begun else EnvironmentState.NOT_CREATED
            listed.append(ListedEnvironment(name=name, state=state, advice=create_command(name)))
    return tuple(listed)
