"""Ask a worker one thing that is not a request: its inputs, a script, whether it works."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch import environments
from compilewatch.errors import InputsError, InterpreterError, LauncherError
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import ChaosBuild, ModelSpec, Record, Request, Status, Target, Tier

T = TypeVar("T")

CHECK_SECONDS = 300.0
"""For the imports of a cold disk."""


class Working(Record, frozen=True, kw_only=True):
    """A worker of an environment started and compiled something; how long that took.

    `threads` is how many the worker server has: with more than one it cannot fork.
    """

    start_seconds: float
    request_seconds: float
    threads: int


def call_worker(verb: str, request: Request, kind: type[T], cache: Path | None = None) -> T:
    """Run a verb of `worker.process.oneshot` and return its answer.

    Raises InputsError with the model's own message.
    """
    chosen = environments.interpreter(request.target.environment, cache)
    done = _oneshot(chosen, verb, msgspec.json.encode(request), request.deadlines.total_seconds)
    if done.returncode != 0:
        raise InputsError(f"{request.model.name}: {_last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=kind)


def try_environment(name: str, cache: Path | None = None) -> Working:
    """Start a worker as a sweep does and have it capture a tiny model of ours.

    Raises InterpreterError where that fails, in one line.
    """
    model = ModelSpec(source="chaos", name="ok", build=ChaosBuild(behaviour="ok"))
    request = Request(model=model, target=Target(environment=name), key="check", tier=Tier.FAKE)
    began = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
            LocalLauncher(1, (name,), cache=cache, warn=False) as launcher,
        ):
            (completed,) = launcher.run([request], Path(scratch))
            threads = launcher.server(name).threads
    except (LauncherError, OSError) as error:
        raise InterpreterError(str(error)) from None
    result = completed.result
    if result.status is not Status.PASS:
        raise InterpreterError(
            f"a worker of environment {name!r} starts, but a model of one layer ends as "
            f"{result.status} in {result.phase}: {result.detail}"
        )
    spent = sum(result.durations.values())
    total = time.monotonic() - began
    return Working(start_seconds=total - spent, request_seconds=spent, threads=threads)


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
