"""Named interpreters that a worker can run in.

An environment is a Python with torch, transformers, msgspec and compilewatch installed in it. The
parent never imports torch: it asks the interpreter, which answers from package metadata.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from compilewatch.errors import InterpreterError
from compilewatch.records import Environment


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


INTERPRETERS: dict[str, Interpreter] = {
    # No device but the CPU is visible: an answer must not depend on the machine that gave it.
    "default": Interpreter(variables={"CUDA_VISIBLE_DEVICES": ""}),
}

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
)
"""Prefixes of variables that change what torch answers or writes: not handed on to a worker."""

DESCRIBE_TIMEOUT_SECONDS = 60.0


def interpreter(name: str) -> Interpreter:
    """One entry of the table. Raises InterpreterError for a name that is not in it."""
    if name not in INTERPRETERS:
        known = ", ".join(sorted(INTERPRETERS))
        raise InterpreterError(f"no environment {name!r}; known: {known}")
    return INTERPRETERS[name]


def worker_variables(name: str) -> dict[str, str]:
    """The environment variables of a worker: this process's own, then what a worker needs."""
    own = {n: value for n, value in os.environ.items() if not n.startswith(CHANGES_ANSWERS)}
    return {**own, **WORKER_VARIABLES, **interpreter(name).variables}


def describe(name: str) -> Environment:
    """Ask an environment what it is; about 0.1 s, nothing is imported but package metadata.

    Raises InterpreterError where its Python does not run or lacks what a worker needs.
    """
    chosen = interpreter(name)
    command = [chosen.path, "-P", "-m", "compilewatch.worker.describe", name, chosen.device]
    try:
        answer = subprocess.run(
            command,
            env=worker_variables(name),
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
            f"environment {name!r}: {chosen.path} described itself in words of another version: "
            "install this compilewatch there"
        ) from None
