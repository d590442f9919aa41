"""Ask a worker one thing that is not a request: its inputs, a script, whether it works."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch import environments
from compilewatch.config.settings import Settings
from compilewatch.contract.messages import Readiness
from compilewatch.contract.targets import entry
from compilewatch.environments.facts import remembered
from compilewatch.errors import InputsError, InterpreterError, LauncherError, UsageError
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.plan.placement import wanted
from compilewatch.records import ChaosBuild, ModelSpec, Record, Request, Status, Target, Tier

T = TypeVar("T")

CHECK_SECONDS = 300.0
"""For the imports of a cold disk."""


_FOR_TORCHS_TESTS = re.compile("TESTING_ONLY|minifier")


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


def working(name: str, cache: Path | None = None, *, fresh: bool = False) -> tuple[Working, str]:
    """What `try_environment` found and when (UTC), kept until the environment changes."""
    chosen = environments.interpreter(name, cache)
    ask = partial(try_environment, name, cache)
    return remembered("working", name, chosen, Working, ask, cache=cache, fresh=fresh)


def readiness(name: str, cache: Path | None = None, *, fresh: bool = False) -> Readiness:
    """What targets lack in an environment, kept until it changes. Raises InterpreterError."""
    chosen = environments.interpreter(name, cache)
    ask = partial(_ask_readiness, name, chosen)
    return remembered("readiness", name, chosen, Readiness, ask, cache=cache, fresh=fresh)[0]


def check_backends(targets: Iterable[Target], settings: Settings) -> None:
    """Raises UsageError for a backend that the targets' environments do not have."""
    for target in targets:
        if target.backend is None or entry(target.name).backends is not None:
            continue
        for name in wanted([target.name], settings.environments):
            known = readiness(name, settings.cache_folder).backends
            if target.backend not in known:
                meant = (each for each in known if not _FOR_TORCHS_TESTS.search(each))
                raise UsageError(
                    f"{target.name} has no backend {target.backend!r} in environment {name!r}; "
                    f"known: {', '.join(meant)}"
                )


def _ask_readiness(name: str, chosen: environments.Interpreter) -> Readiness:
    try:
        done = _oneshot(chosen, "targets", b"", CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise InterpreterError(
            f"environment {name!r} did not answer in {CHECK_SECONDS:g} s"
        ) from None
    if done.returncode != 0:
        raise InterpreterError(f"environment {name!r} is broken: {_last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=Readiness)


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
