"""Runs generated code: in the sandbox of this machine, or as a job of an executor. Nowhere else.

Where there is no sandbox, the stage is *not run*, with the reason.
"""

from __future__ import annotations

import functools
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import Meta

from compilewatch.errors import SandboxError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox.policy import (
    MIB,
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
)
from compilewatch.extras.executor.training_output import read_points, summary
from compilewatch.extras.papers.records import (
    CodeVersion,
    FindingClass,
    PaperFinding,
    PaperPlan,
    PipelineStage,
    StageContent,
)

SCRIPTS = Path(__file__).with_name("worker")
SCRIPT = "main.py"
MODULE = "generated.py"
SHARED = "challenge.py"

EAGER_LIMITS = SandboxLimits(
    deadline_seconds=120.0,
    memory_bytes=4 * 2**30,
    disk_bytes=64 * MIB,
    output_bytes=32 * MIB,
    log_bytes=MIB,
)
MAX_EVIDENCE = 400

OUT_OF_MEMORY = ("MemoryError", "DefaultCPUAllocator")
"""What Python and torch's allocator say when the limit of memory is reached."""


MEASURED = frozenset(
    {"execution_time_seconds", "execution_success", "peak_memory_mb", "estimated_cost_usd"}
)
"""Numbers of an execution that the code that ran cannot set."""


class CodeRunner(Protocol):
    """Runs `python main.py` beside some files, confined."""

    def check(self) -> None:
        """Raises SandboxError if code cannot be confined here, or has no torch there."""
        ...

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        """Run it and wait for its end. Raises SandboxError; whatever the code does is a result."""
        ...


class SandboxRunner:
    """The sandbox of this machine."""

    def __init__(self, python: str | None = None) -> None:
        self._python = python

    def check(self) -> None:
        sandbox.check(self._python)
        _import_torch(self._python)

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        return sandbox.run(
            ["python", SCRIPT],
            files=files,
            limits=limits,
            variables={"OMP_NUM_THREADS": "2"},
            python=self._python,
        )


@functools.cache
def _import_torch(python: str | None) -> None:
    """Raises SandboxError unless torch can be imported inside: else each paper would be blamed."""
    result = sandbox.run(["python", "-c", "import torch"], limits=EAGER_LIMITS, python=python)
    if result.succeeded:
        return
    said = last_line(result.stderr or result.detail.encode())
    raise SandboxError(
        f"torch cannot be imported in the sandbox ({said}): the environment of "
        f"{python or sys.executable} is not visible there or is broken: run `make setup`"
    )


_Kind = TypeVar("_Kind", "_State", "_Compared")


_Count = Annotated[int, Meta(ge=0, le=2**53)]
"""Of any length, a number could not become a float."""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    line: _Count | None = None


class _Check(msgspec.Struct, frozen=True):
    claim: str
    ok: bool = False
    why: str = ""


class _State(msgspec.Struct, frozen=True):
    """`out/result.json` of `extras/papers/worker/eager.py`, as untrusted data.

    `returned` is what submodules computed, one for each binding; see `compare`.
    """

    phase: str = ""
    parameters: _Count | None = None
    eager_seconds: float | None = None
    loss: float | None = None
    error: _Error | None = None
    returned: msgspec.Raw = msgspec.Raw(b"[]")


class _Compared(msgspec.Struct, frozen=True):
    """`out/result.json` of `worker/reference.py`, which no generated code has touched."""

    checks: tuple[_Check, ...] = ()


def run_eager(
    runner: CodeRunner,
    generation: CodeVersion,
    plan: PaperPlan,
    limits: SandboxLimits = EAGER_LIMITS,
) -> tuple[StageContent, StageContent]:
    """Run the code in eager mode; returns what eager mode and what the formulas showed."""
    formulas = {claim.id: claim.formula for claim in plan.claims if claim.formula}
    # Drawn for each run, so that no code can hold prepared results.
    asked: dict[str, Any] = {"seed": secrets.token_hex(8), "bindings": generation.bindings}
    files = _scripts("eager.py")
    files |= {MODULE: generation.source, "request.json": _json(asked)}
    try:
        runner.check()
        result = runner.run(files, limits)
        if result.ending is SandboxEnding.NOT_STARTED:
            return StageContent(not_run=result.detail), StageContent(not_run=result.detail)
        state = _decoded(result, _State)
        eager = StageContent(
            findings=tuple(_eager_findings(result, state)),
            numbers=_numbers(result, state),
            detail=f"{state.parameters:,} parameters" if state.parameters is not None else "",
        )
        if eager.findings or state.phase != "done":
            return eager, StageContent(not_run="the code does not run in eager mode")
        if not formulas:
            return eager, StageContent(detail="the plan gives no formula to compute")
        returned = {name: data for name, data in result.files.items() if name != "result.json"}
        asked |= {"formulas": formulas, "returned": state.returned}
        return eager, compare(runner, asked, returned, limits)
    except SandboxError as error:
        return StageContent(not_run=str(error)), StageContent(not_run=str(error))


def compare(
    runner: CodeRunner, asked: dict[str, Any], returned: Mapping[str, bytes], limits: SandboxLimits
) -> StageContent:
    """Compare what submodules returned with the formulas, in a sandbox without generated code.

    The formulas are text of a model too, so they are computed within limits. Raises SandboxError.
    """
    formulas = asked["formulas"]
    files = {**returned, **_scripts("reference.py"), "request.json": _json(asked)}
    result = runner.run(files, limits)
    if result.ending is SandboxEnding.NOT_STARTED:
        return StageContent(not_run=result.detail)
    return StageContent(
        findings=tuple(_formula_findings(result, formulas)),
        numbers={"formulas": float(len(formulas))},
        detail=f"formulas computed apart from the code: {len(formulas)}",
    )


def _scripts(name: str) -> dict[str, str | bytes]:
    return {SCRIPT: (SCRIPTS / name).read_bytes(), SHARED: (SCRIPTS / SHARED).read_bytes()}


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def run_training(
    runner: CodeRunner, generation: CodeVersion, limits: SandboxLimits
) -> StageContent:
    """Train briefly in the sandbox of this machine."""
    files = training_files(generation)
    try:
        runner.check()
        result = runner.run(files, limits)
    except SandboxError as error:
        return StageContent(not_run=str(error))
    if result.ending is SandboxEnding.NOT_STARTED:
        return StageContent(not_run=result.detail)
    return trained(result)


def training_files(generation: CodeVersion) -> dict[str, str]:
    """The files of a training job, whose entry is `main.py`."""
    return {
        SCRIPT: (SCRIPTS / "train.py").read_text(encoding="utf-8"),
        MODULE: generation.source,
    }


def trained(result: SandboxResult) -> StageContent:
    """The numbers and findings of a training. An exit status of 0 without numbers is no success."""
    numbers = trained_numbers(result.stdout)
    finding = ending_of(result, PipelineStage.EXECUTE) or _failed_exit(
        result, PipelineStage.EXECUTE
    )
    if finding is None and "training_loss" not in numbers:
        said = "it ended with status 0 and reported no training_loss"
        finding = PaperFinding(
            kind=FindingClass.CRASHED, stage=PipelineStage.EXECUTE, evidence=said
        )
    numbers["execution_time_seconds"] = result.duration_seconds
    numbers["execution_success"] = float(finding is None)
    if result.peak_memory_bytes is not None:
        numbers["peak_memory_mb"] = result.peak_memory_bytes / MIB
    said = "trained on synthetic data in the sandbox of this machine (CPU)"
    labels = {"where": "sandbox"}
    found = (finding,) if finding else ()
    return StageContent(findings=found, numbers=numbers, detail=said, labels=labels)


def trained_numbers(stdout: bytes) -> dict[str, float]:
    """The last value of each name that a training printed, and its first and last loss.

    They are claims of the code: names of what is measured from outside are left out.
    """
    points, _ = read_points(stdout)
    numbers = {name: value for name, value in summary(points).items() if name not in MEASURED}
    losses = [p.values["training_loss"] for p in points if "training_loss" in p.values]
    if losses:
        numbers |= {"initial_training_loss": losses[0], "final_training_loss": losses[-1]}
    return numbers


def ending_of(result: SandboxResult, stage: PipelineStage) -> PaperFinding | None:
    """The finding of a run that did not end by itself."""
    kinds = {
        SandboxEnding.DEADLINE: FindingClass.TIMED_OUT,
        SandboxEnding.MEMORY: FindingClass.OOM,
        SandboxEnding.DISK_FILES: FindingClass.CRASHED,
        SandboxEnding.CANCELLED: FindingClass.LOST,
    }
    if result.ending in kinds:
        kind = kinds[result.ending]
        return PaperFinding(kind=kind, stage=stage, evidence=result.detail or result.ending.value)
    if any(sign.encode() in result.stderr[-4000:] for sign in OUT_OF_MEMORY):
        return PaperFinding(kind=FindingClass.OOM, stage=stage, evidence=last_line(result.stderr))
    if result.signal is not None:
        said = f"it ended by signal {result.signal}"
        return PaperFinding(kind=FindingClass.CRASHED, stage=stage, evidence=said)
    return None


def last_line(data: bytes) -> str:
    """The last line with text, without control characters."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    return one_line(next((line for line in reversed(lines) if line), "no message"))


def one_line(text: str) -> str:
    """Foreign text for people: one line, without control characters, not too long."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:MAX_EVIDENCE]


def _failed_exit(result: SandboxResult, stage: PipelineStage) -> PaperFinding | None:
    if result.exit_code == 0:
        return None
    said = last_line(result.stderr)
    return PaperFinding(kind=FindingClass.WRONG_IN_EAGER, stage=stage, evidence=said)


def _decoded(result: SandboxResult, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(result.files.get("result.json", b"{}"), type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return kind()


def _eager_findings(result: SandboxResult, state: _State) -> list[PaperFinding]:
    if (ending := ending_of(result, PipelineStage.EAGER)) is not None:
        where = f" in {state.phase}" if state.phase else ""
        return [msgspec.structs.replace(ending, evidence=one_line(ending.evidence + where))]
    if state.error is not None:
        kind = FindingClass.WRONG_IN_EAGER
        if any(sign in state.error.message for sign in OUT_OF_MEMORY):
            kind = FindingClass.OOM
        said = one_line(f"{state.phase}: {state.error.message}")
        return [
            PaperFinding(kind=kind, stage=PipelineStage.EAGER, evidence=said, line=state.error.line)
        ]
    if state.phase != "done" or result.exit_code != 0:
        said = f"it ended with status {result.exit_code}: {last_line(result.stderr)}"
        return [PaperFinding(kind=FindingClass.CRASHED, stage=PipelineStage.EAGER, evidence=said)]
    return []


def _formula_findings(result: SandboxResult, formulas: Mapping[str, str]) -> list[PaperFinding]:
    """Each formula needs a check that holds; what was not compared does not count as held."""
    checks = _decoded(result, _Compared).checks
    ended = "it was not compared" if result.succeeded else f"not compared: {result.ending}"
    found = []
    for claim in formulas:
        mine = [check for check in checks if check.claim == claim]
        if mine and all(check.ok for check in mine):
            continue
        why = next((check.why for check in mine if not check.ok), ended)
        said = one_line(f"claim {claim}: {why}")
        found.append(
            PaperFinding(kind=FindingClass.UNFAITHFUL, stage=PipelineStage.FAITHFUL, evidence=said)
        )
    return found


def _numbers(result: SandboxResult, state: _State) -> dict[str, float]:
    values: dict[str, Any] = {
        "parameters": state.parameters,
        "eager_seconds": state.eager_seconds,
        "loss": state.loss,
        "peak_memory_bytes": result.peak_memory_bytes,
        "seconds": result.duration_seconds,
    }
    return {name: float(value) for name, value in values.items() if value is not None}
