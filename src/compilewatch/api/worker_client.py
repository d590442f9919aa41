"""Calls of a worker that are not requests: example inputs, a script, a check that it works."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.config import Settings
from compilewatch.contract.messages import Readiness
from compilewatch.contract.targets import TARGETS, entry
from compilewatch.environments import (
    Environments,
    Interpreter,
    last_line,
    oneshot,
)
from compilewatch.errors import (
    InputsError,
    InterpreterError,
    LauncherError,
    UsageError,
)
from compilewatch.files import temporary_folder
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.plan import wanted
from compilewatch.records import (
    FactoryBuild,
    ModelSpec,
    Record,
    Request,
    Status,
    Target,
    Tier,
)

T = TypeVar("T")

CHECK_SECONDS = 300.0
"""Long enough for imports from a cold disk."""


_FOR_TORCHS_TESTS = re.compile("TESTING_ONLY|minifier")


class Working(Record, frozen=True, kw_only=True):
    """How long a worker of an environment took to start and to compile a small model.

    `threads` is the number of threads of the worker server: with more than one it cannot fork.
    """

    start_seconds: float
    request_seconds: float
    threads: int


def call_worker(environments: Environments, verb: str, request: Request, kind: type[T]) -> T:
    """Run a verb of `worker.process.oneshot` and return its result.

    Raises InputsError with the message of the model's own error.
    """
    chosen = environments.interpreter(request.target.environment)
    done = oneshot(chosen, verb, msgspec.json.encode(request), request.deadlines.total_seconds)
    if done.returncode != 0:
        raise InputsError(f"{request.model.name}: {last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=kind)


def try_environment(environments: Environments, name: str) -> Working:
    """Start a worker as a sweep does, and let it capture a tiny built-in model.

    Raises InterpreterError, with a message of one line, if that fails.
    """
    factory = "compilewatch.worker.process.warmup:one_layer"
    build = FactoryBuild(factory=factory, inputs=f"{factory}_inputs")
    model = ModelSpec(source="manifest", name="one layer", build=build)
    request = Request(model=model, target=Target(environment=name), key="check", tier=Tier.FAKE)
    began = time.monotonic()
    try:
        with (
            temporary_folder() as scratch,
            LocalLauncher(1, (name,), cache=environments.cache, warn=False) as launcher,
        ):
            (completed,) = launcher.run([request], Path(scratch))
            threads = launcher.server(name).threads
    except (LauncherError, OSError) as error:
        raise InterpreterError(str(error)) from None
    result = completed.result
    if result.status is not Status.PASS:
        raise InterpreterError(
            f"a worker of environment {name!r} starts, but a model of one layer ends with the "
            f"status {result.status} in {result.phase}: {result.detail}"
        )
    spent = sum(result.durations.values())
    total = time.monotonic() - began
    return Working(start_seconds=total - spent, request_seconds=spent, threads=threads)


def working(environments: Environments, name: str, *, fresh: bool = False) -> tuple[Working, str]:
    """The result of `try_environment` and its time (UTC), kept until the environment changes."""

    def check(_: Interpreter) -> Working:
        return try_environment(environments, name)

    return environments.remembered("working", name, Working, check, fresh=fresh)


def readiness(environments: Environments, name: str, *, fresh: bool = False) -> Readiness:
    """What targets lack in an environment, kept until it changes. Raises InterpreterError."""
    check = partial(_check_readiness, name)
    return environments.remembered("readiness", name, Readiness, check, fresh=fresh)[0]


def check_backends(targets: Iterable[Target], settings: Settings) -> None:
    """Raises UsageError for a backend that the targets' environments do not have."""
    environments = Environments(settings.cache_folder)
    for target in targets:
        if target.backend is None or entry(target.name).backends is not None:
            continue
        for name in wanted([target.name], settings.environments):
            known = readiness(environments, name).backends
            if target.backend not in known:
                meant = (backend for backend in known if not _FOR_TORCHS_TESTS.search(backend))
                raise UsageError(
                    f"{target.name} has no backend {target.backend!r} in environment {name!r}; "
                    f"known: {', '.join(meant)}"
                )


def check_nested_graph_breaks(
    targets: Sequence[Target], settings: Settings, *, asked: str | None
) -> None:
    """Raises UsageError where the setting `nested_graph_breaks` cannot be applied.

    That is if it is asked for on the command line and no target has it, or if it is on and a torch
    does not know it. A torch without it does what `off` means.
    """
    if asked in ("on", "off") and all(t.nested_graph_breaks is None for t in targets):
        able = " or ".join(name for name, row in TARGETS.items() if row.nested_graph_breaks)
        raise UsageError(f"--nested-graph-breaks is a setting of the target {able}: name it too")
    local = settings.launcher == "local"  # the nodes of a cluster know what they have
    if not local or not any(target.nested_graph_breaks for target in targets):
        return
    environments = Environments(settings.cache_folder)
    for name in wanted([t.name for t in targets if t.nested_graph_breaks], settings.environments):
        if not readiness(environments, name).nested_graph_breaks:
            raise UsageError(
                f"the torch of environment {name!r} has no setting nested_graph_breaks: "
                "leave out --nested-graph-breaks on"
            )


def _check_readiness(name: str, chosen: Interpreter) -> Readiness:
    try:
        done = oneshot(chosen, "targets", b"", CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise InterpreterError(
            f"environment {name!r} did not respond within {CHECK_SECONDS:g} s"
        ) from None
    if done.returncode != 0:
        raise InterpreterError(f"environment {name!r} is broken: {last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=Readiness)
