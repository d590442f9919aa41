"""Ask a worker one thing that is not a request: its inputs, a script, whether it works."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch import environments
from compilewatch.errors import InputsError, InterpreterError
from compilewatch.records import Request

T = TypeVar("T")

CHECK_SECONDS = 300.0
"""For the imports of a cold disk and a tiny compile."""


def call_worker(verb: str, request: Request, kind: type[T], cache: Path | None = None) -> T:
    """What `compilewatch.worker.oneshot` answers. Raises InputsError in the model's own words."""
    chosen = environments.interpreter(request.target.environment, cache)
    done = _oneshot(chosen, verb, msgspec.json.encode(request), request.deadlines.total_seconds)
    if done.returncode != 0:
        raise InputsError(f"{request.model.name}: {_last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=kind)


def ask_environment(verb: str, name: str, kind: type[T], cache: Path | None = None) -> T:
    """What an environment answers about itself. Raises InterpreterError."""
    chosen = environments.interpreter(name, cache)
    try:
        done = _oneshot(chosen, verb, b"", CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise InterpreterError(
            f"environment {name!r} did not answer in {CHECK_SECONDS:g} s"
        ) from None
    if done.returncode != 0:
        raise InterpreterError(f"environment {name!r} is broken: {_last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=kind)


def _oneshot(
    chosen: environments.Interpreter, verb: str, asked: bytes, timeout_seconds: float
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        environments.worker_command(chosen, "oneshot", verb),
        input=asked,
        env=environments.worker_variables(chosen),
        capture_output=True,
        check=False,
        timeout=timeout_seconds,
    )


def _last_line(output: bytes) -> str:
    return (output.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
