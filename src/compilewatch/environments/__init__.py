"""Named interpreters that a worker can run in.

An environment is a Python with torch, transformers and msgspec in it. `default` is the one that
runs compilewatch; others lie in the user's cache folder, where `creation` makes them. compilewatch
itself is not installed in them: `worker_command` starts a worker of the parent's own sources. The
parent never imports torch: it asks the interpreter, which answers from package metadata.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from compilewatch.config.paths import cache_folder
from compilewatch.contract import targets
from compilewatch.errors import InterpreterError
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment, Record

STAMP_FILE = "environment.json"

# No device but the CPU is visible: an answer must not depend on the machine that gave it.
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """Where an environment's Python is; `executable` None means the one that runs compilewatch.

    `device` is what its tensors live on, `variables` are set for its workers.
    """

    executable: str | None = None
    device: str = "cpu"
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.executable or sys.executable


INTERPRETERS: dict[str, Interpreter] = {DEFAULT_ENVIRONMENT: Interpreter(variables=CPU_ONLY)}
"""Those that need no making."""


class Stamp(Record, frozen=True, kw_only=True):
    """`environment.json`, written last: an environment without it is unfinished.

    `recipe` digests what it was made from, `python` is the version that it was made with.
    """

    name: str
    recipe: str
    created: str
    python: str
    schema_version: int = 1


WORKER_VARIABLES = {
    # The server must be single-threaded to fork, and children share the machine's cores.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Sets of strings iterate the same way each time: same graph, same first break.
    "PYTHONHASHSEED": "0",
    # Configurations are all a worker needs; children that load weights lift this for themselves.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

CHANGES_ANSWERS = (
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_COMPILE",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "PJRT_",
    "XLA_",
)
"""Prefixes of variables that change what torch answers or writes: not handed on to a worker."""

DESCRIBE_TIMEOUT_SECONDS = 60.0


def environment_folder(name: str, cache: Path | None = None) -> Path:
    """Where a made environment lies; it need not exist. `cache` None means the user's own."""
    return (cache or cache_folder()) / "environments" / name


def read_stamp(name: str, cache: Path | None = None) -> Stamp | None:
    """The stamp of a finished environment, None where it is missing, unfinished or foreign."""
    try:
        stamp = (environment_folder(name, cache) / STAMP_FILE).read_bytes()
        return msgspec.json.decode(stamp, type=Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def available(cache: Path | None = None) -> tuple[str, ...]:
    """The names of all environments there are, the default one first."""
    stamps = sorted(environment_folder("", cache).glob(f"*/{STAMP_FILE}"))
    made = [path.parent.name for path in stamps if read_stamp(path.parent.name, cache)]
    return tuple(dict.fromkeys([*INTERPRETERS, *made]))


def create_command(name: str) -> str:
    """What to type to make an environment."""
    wanted = "" if name in targets.environments() else " --torch VERSION"
    return f"compilewatch env create {name}{wanted}"


def made_interpreter(name: str, cache: Path | None = None) -> Interpreter:
    """The interpreter of a made environment, whether or not it is there yet."""
    python = environment_folder(name, cache) / "venv" / "bin" / "python"
    variables = {**CPU_ONLY, **targets.environment_variables(name)}
    return Interpreter(executable=str(python), variables=variables)


def interpreter(name: str, cache: Path | None = None) -> Interpreter:
    """An environment's interpreter. Raises InterpreterError where there is none of that name."""
    if name in INTERPRETERS:
        return INTERPRETERS[name]
    if read_stamp(name, cache) is None:
        known = ", ".join(available(cache))
        raise InterpreterError(f"no environment {name!r}; known: {known}; {create_command(name)}")
    return made_interpreter(name, cache)


def worker_variables(chosen: Interpreter) -> dict[str, str]:
    """The environment variables of a worker: this process's own, then what a worker needs."""
    own = {n: value for n, value in os.environ.items() if not n.startswith(CHANGES_ANSWERS)}
    return {**own, **WORKER_VARIABLES, **chosen.variables}


def worker_command(chosen: Interpreter, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of `worker.process` in any interpreter."""
    bootstrap = Path(__file__).parents[1] / "worker" / "process" / "bootstrap.py"
    return [chosen.path, "-P", str(bootstrap), f"compilewatch.worker.process.{module}", *arguments]


def describe(name: str, cache: Path | None = None) -> Environment:
    """Ask an environment what it is; about 0.1 s, nothing is imported but package metadata.

    Raises InterpreterError where it does not exist, its Python does not run or lacks what a worker
    needs.
    """
    return describe_interpreter(name, interpreter(name, cache))


def describe_interpreter(name: str, chosen: Interpreter) -> Environment:
    """See `describe`; the interpreter need not be one that has a name yet."""
    try:
        answer = subprocess.run(
            worker_command(chosen, "describe", name, chosen.device),
            env=worker_variables(chosen),
            capture_output=True,
            timeout=DESCRIBE_TIMEOUT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise InterpreterError(
            f"environment {name!r}: {chosen.path} cannot be run: {error.strerror}"
        ) from None
    except subprocess.TimeoutExpired:
        raise InterpreterError(
            f"environment {name!r}: {chosen.path} did not answer in {DESCRIBE_TIMEOUT_SECONDS:g} s"
        ) from None
    if answer.returncode != 0:
        lines = answer.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise InterpreterError(f"environment {name!r} is broken: {lines[-1]}")
    try:
        return msgspec.json.decode(answer.stdout, type=Environment)
    except msgspec.DecodeError:
        raise InterpreterError(
            f"environment {name!r}: {chosen.path} described itself in words that are not ours: "
            "is it a Python?"
        ) from None
