"""Evaluates models whose code nobody has reviewed: each request in a sandbox of its own.

The worker runs inside, beside the code, so its result is a claim of a process that the code could
have changed: it is decoded as untrusted data, and how the process ended is measured from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

import compilewatch
from compilewatch.config import Settings
from compilewatch.contract.messages import (
    PHASES_FILE,
    RESULT_FILE,
    START_FILE,
    ChildResult,
    Marks,
    Start,
)
from compilewatch.environments import Environments, Interpreter, module_command
from compilewatch.errors import LauncherError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox.policy import (
    MIB,
    OUTPUT_FOLDER,
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
)
from compilewatch.extras.papers.records import GENERATED_MODULE, SOURCE_FILE
from compilewatch.launchers import Completed, by_environment
from compilewatch.records import (
    Depth,
    Environment,
    ErrorRecord,
    ModelSpec,
    Phase,
    Request,
    Result,
    Status,
    Tier,
)

_PACKAGE = Path(compilewatch.__file__).parent
_LAST_LINE = 300

MOST_RESULT_BYTES = 8 * MIB
"""Of what a request returns: a result is stored, and read by every page about it."""

_STATUSES: dict[SandboxEnding, Status] = {
    SandboxEnding.DEADLINE: Status.TIMEOUT,
    SandboxEnding.MEMORY: Status.OOM,
    SandboxEnding.EXITED: Status.CRASHED,
    SandboxEnding.DISK_FILES: Status.CRASHED,
    SandboxEnding.CANCELLED: Status.CRASHED,
}


class ConfinedLauncher:
    """Runs one request after the other. Raises SandboxError where code cannot be confined."""

    name = "confined"
    jobs = 1

    def __init__(
        self, jobs: int, environments: tuple[str, ...] = ("default",), *, cache: Path | None = None
    ) -> None:
        del jobs
        self._names = environments
        self._known = Environments(cache)

    @classmethod
    def of(cls, settings: Settings, names: tuple[str, ...]) -> Self:
        """The launcher for these environments."""
        return cls(1, names, cache=settings.cache_folder)

    def environments(self) -> tuple[Environment, ...]:
        return tuple(self._known.describe(name) for name in self._names)

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Artifacts are not kept."""
        del scratch
        for name, mine in self._by_environment(requests).items():
            if not mine:
                continue
            used = self._known.interpreter(name)
            sandbox.check(used.path)
            digest = self._known.describe(name).digest
            for request in mine:
                result = evaluate(request, used)
                yield Completed(result=msgspec.structs.replace(result, environment_digest=digest))

    def _by_environment(self, requests: Iterable[Request]) -> dict[str, list[Request]]:
        return by_environment(requests, self._names, "this launcher has", sandboxed=True)

    def close(self) -> None:
        """Do nothing: no process outlives its request."""


def evaluate(request: Request, used: Interpreter) -> Result:
    """Evaluate one request.

    With the tier `auto`, tensors are real: generated models are small and bring their own inputs,
    and a second attempt would import torch again.
    """
    tier = Tier.REAL if request.tier is Tier.AUTO else request.tier
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    inner = msgspec.structs.replace(request, keep_artifacts=False, model=_inside(request.model))
    start = Start(id=1, folder=OUTPUT_FOLDER, tier=tier, request=inner)
    ran = sandbox.run(
        module_command("python", "compilewatch.extras.papers.worker.confined"),
        files={
            START_FILE: msgspec.json.encode(start),
            f"{GENERATED_MODULE}.py": Path(request.model.provenance[SOURCE_FILE]).read_bytes(),
        },
        limits=SandboxLimits(
            deadline_seconds=request.deadlines.total_seconds,
            memory_bytes=max(request.memory_limit_bytes, 64 * MIB),
            disk_bytes=512 * MIB,
            output_bytes=MOST_RESULT_BYTES,
        ),
        visible=_visible(request),
        variables=dict(used.variables),
        python=used.path,
    )
    if ran.ending is SandboxEnding.NOT_STARTED:
        raise LauncherError(f"the sandbox could not start a worker: {ran.detail}")
    child_result = _decoded(ran)
    return msgspec.structs.replace(
        child_result.result if child_result is not None else _without_result(request, tier, ran),
        request=request,
        started_at=started_at,
        peak_memory_bytes=ran.peak_memory_bytes,
        artifacts=(),
        attempts=(),
    )


def _inside(model: ModelSpec) -> ModelSpec:
    """The model as the sandbox sees it, without paths of this machine."""
    return msgspec.structs.replace(model, provenance={}, inputs_file=None)


def _visible(request: Request) -> list[Path]:
    """What the worker reads: its own package, and the project's reviewed data."""
    named = (request.overrides_dir, request.neuron_operators)
    return [_PACKAGE.resolve(), *(Path(path).resolve() for path in named if path)]


def _decoded(ran: SandboxResult) -> ChildResult | None:
    try:
        return msgspec.json.decode(ran.files.get(RESULT_FILE, b""), type=ChildResult)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _phase(ran: SandboxResult) -> Phase:
    try:
        marks = msgspec.json.decode(ran.files.get(PHASES_FILE, b"[]"), type=Marks)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Phase.SETUP
    return marks[-1][0] if marks else Phase.SETUP


def _without_result(request: Request, tier: Tier, ran: SandboxResult) -> Result:
    phase = _phase(ran)
    lines = [line for line in ran.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    message = ran.detail or f"it ended with status {ran.exit_code}, signal {ran.signal}"
    last = "".join(c for c in (lines or [""])[-1] if c.isprintable())[:_LAST_LINE]
    return Result(
        request=request,
        status=_STATUSES[ran.ending],
        phase=phase,
        tier=tier,
        depth=Depth.FULL,
        detail=f"{message}, in {phase}" + (f": {last}" if last else ""),
        error=ErrorRecord(type=ran.ending.value, message=last or message, code=ran.ending.value),
    )
