"""Runs generated code: in the sandbox of this machine, or as a job of an executor. Nowhere else.

Where there is no sandbox, the stage is *not run*, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

import compilewatch
from compilewatch import sandbox
from compilewatch.errors import SandboxError
from compilewatch.papers.metric_lines import last_values, points_of
from compilewatch.records import Record
from compilewatch.records.papers import (
    Finding,
    FindingClass,
    Generation,
    PaperPlan,
    Stage,
)
from compilewatch.sandbox.policy import MIB, Ending, Limits, SandboxResult

SCRIPTS = Path(compilewatch.__file__).parent / "worker" / "generated"
SCRIPT = "main.py"
MODULE = "generated.py"

EAGER_LIMITS = Limits(
    deadline_seconds=120.0,
    memory_bytes=4 * 2**30,
    disk_bytes=64 * MIB,
    output_bytes=4 * MIB,
    log_bytes=MIB,
)
MAX_EVIDENCE = 400

OUT_OF_MEMORY = ("MemoryError", "DefaultCPUAllocator")
"""What Python and torch's allocator say when the limit of memory is reached."""


class Runner(Protocol):
    """Runs `python main.py` beside some files, confined."""

    def check(self) -> None:
        """Raises SandboxError if code cannot be confined here."""
        ...

    def run(self, files: dict[str, str], limits: Limits) -> SandboxResult:
        """Run it and wait for its end. Raises SandboxError; whatever the code does is a result."""
        ...


class SandboxRunner:
    """The sandbox of this machine."""

    def __init__(self, python: str | None = None) -> None:
        self._python = python

    def check(self) -> None:
        sandbox.check(self._python)

    def run(self, files: dict[str, str], limits: Limits) -> SandboxResult:
        return sandbox.run(
            ["python", SCRIPT],
            files=files,
            limits=limits,
            variables={"OMP_NUM_THREADS": "2"},
            python=self._python,
        )


class Ran(Record, frozen=True, kw_only=True):
    """What a run in the sandbox showed. `not_run` says why there was none."""

    findings: tuple[Finding, ...] = ()
    numbers: dict[str, float] = {}
    labels: dict[str, str] = {}
    files: tuple[str, ...] = ()
    not_run: str = ""
    detail: str = ""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    line: int | None = None


class _Check(msgspec.Struct, frozen=True):
    claim: str
    ok: bool = False
    why: str = ""


class _State(msgspec.Struct, frozen=True):
    """`out/result.json` of `worker/generated/eager.py`, as untrusted data."""

    phase: str = ""
    parameters: int | None = None
    eager_seconds: float | None = None
    loss: float | None = None
    error: _Error | None = None
    checks: tuple[_Check, ...] = ()


def run_eager(
    runner: Runner, generation: Generation, plan: PaperPlan, limits: Limits = EAGER_LIMITS
) -> tuple[Ran, Ran]:
    """Run the code in eager mode; returns what eager mode and what the formulas showed."""
    formulas = {claim.id: claim.formula for claim in plan.claims if claim.formula}
    request = {
        "formulas": formulas,
        "bindings": msgspec.to_builtins(generation.bindings),
    }
    files = {
        SCRIPT: (SCRIPTS / "eager.py").read_text(encoding="utf-8"),
        MODULE: generation.source,
        "request.json": msgspec.json.encode(request).decode(),
    }
    try:
        runner.check()
        result = runner.run(files, limits)
    except SandboxError as error:
        return Ran(not_run=str(error)), Ran(not_run=str(error))
    if result.ending is Ending.NOT_STARTED:
        return Ran(not_run=result.detail), Ran(not_run=result.detail)
    state = _decoded(result)
    eager = Ran(
        findings=tuple(_eager_findings(result, state)),
        numbers=_numbers(result, state),
        detail=f"{state.parameters:,} parameters" if state.parameters is not None else "",
    )
    if eager.findings or state.phase != "done":
        return eager, Ran(not_run="the code does not run in eager mode")
    if not formulas:
        return eager, Ran(detail="the plan gives no formula to compute")
    return eager, Ran(
        findings=tuple(_formula_findings(state, formulas)),
        numbers={"formulas": float(len(formulas))},
        detail=f"formulas computed beside the code: {len(formulas)}",
    )


def run_training(runner: Runner, generation: Generation, limits: Limits) -> Ran:
    """Train briefly in the sandbox of this machine."""
    files = training_files(generation)
    try:
        runner.check()
        result = runner.run(files, limits)
    except SandboxError as error:
        return Ran(not_run=str(error))
    if result.ending is Ending.NOT_STARTED:
        return Ran(not_run=result.detail)
    return trained(result)


def training_files(generation: Generation) -> dict[str, str]:
    """The files of a training job, whose entry is `main.py`."""
    return {
        SCRIPT: (SCRIPTS / "train.py").read_text(encoding="utf-8"),
        MODULE: generation.source,
    }


def trained(result: SandboxResult) -> Ran:
    """The numbers and findings of a training. An exit status of 0 without numbers is no success."""
    numbers = last_values(points_of(result.stdout.decode("utf-8", "replace")))
    finding = ending_of(result, Stage.EXECUTE) or _failed_exit(result, Stage.EXECUTE)
    if finding is None and "training_loss" not in numbers:
        said = "it ended with status 0 and reported no training_loss"
        finding = Finding(kind=FindingClass.CRASHED, stage=Stage.EXECUTE, evidence=said)
    numbers["execution_time_seconds"] = result.duration_seconds
    numbers["execution_success"] = float(finding is None)
    if result.peak_memory_bytes is not None:
        numbers["peak_memory_mb"] = result.peak_memory_bytes / MIB
    said = "trained on synthetic data in the sandbox of this machine (CPU)"
    labels = {"where": "sandbox"}
    found = (finding,) if finding else ()
    return Ran(findings=found, numbers=numbers, detail=said, labels=labels)


def ending_of(result: SandboxResult, stage: Stage) -> Finding | None:
    """The finding of a run that did not end by itself."""
    kinds = {
        Ending.DEADLINE: FindingClass.TIMED_OUT,
        Ending.MEMORY: FindingClass.OOM,
        Ending.DISK_FILES: FindingClass.CRASHED,
        Ending.CANCELLED: FindingClass.LOST,
    }
    if result.ending in kinds:
        kind = kinds[result.ending]
        return Finding(kind=kind, stage=stage, evidence=result.detail or result.ending.value)
    if any(sign.encode() in result.stderr[-4000:] for sign in OUT_OF_MEMORY):
        return Finding(kind=FindingClass.OOM, stage=stage, evidence=last_line(result.stderr))
    if result.signal is not None:
        said = f"it ended by signal {result.signal}"
        return Finding(kind=FindingClass.CRASHED, stage=stage, evidence=said)
    return None


def last_line(data: bytes) -> str:
    """The last line with text, without control characters."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    text = next((line for line in reversed(lines) if line), "no message")
    return "".join(c for c in text if c.isprintable())[:MAX_EVIDENCE]


def _failed_exit(result: SandboxResult, stage: Stage) -> Finding | None:
    if result.exit_code == 0:
        return None
    said = last_line(result.stderr)
    return Finding(kind=FindingClass.WRONG_IN_EAGER, stage=stage, evidence=said)


def _decoded(result: SandboxResult) -> _State:
    try:
        return msgspec.json.decode(result.files.get("result.json", b"{}"), type=_State)
    except (msgspec.MsgspecError, UnicodeError):
        return _State()


def _eager_findings(result: SandboxResult, state: _State) -> list[Finding]:
    if (ending := ending_of(result, Stage.EAGER)) is not None:
        where = f" in {state.phase}" if state.phase else ""
        return [msgspec.structs.replace(ending, evidence=f"{ending.evidence}{where}")]
    if state.error is not None:
        kind = FindingClass.WRONG_IN_EAGER
        if any(sign in state.error.message for sign in OUT_OF_MEMORY):
            kind = FindingClass.OOM
        said = f"{state.phase}: {' '.join(state.error.message.split())}"[:MAX_EVIDENCE]
        return [Finding(kind=kind, stage=Stage.EAGER, evidence=said, line=state.error.line)]
    if state.phase != "done" or result.exit_code != 0:
        said = f"it ended with status {result.exit_code}: {last_line(result.stderr)}"
        return [Finding(kind=FindingClass.CRASHED, stage=Stage.EAGER, evidence=said)]
    return []


def _formula_findings(state: _State, formulas: dict[str, str]) -> list[Finding]:
    """Each formula needs a check that holds; what the code left out does not count as held."""
    found = []
    for claim in formulas:
        mine = [check for check in state.checks if check.claim == claim]
        if mine and all(check.ok for check in mine):
            continue
        why = next((check.why for check in mine if not check.ok), "it was not compared")
        said = f"claim {claim}: {' '.join(why.split())}"[:MAX_EVIDENCE]
        found.append(Finding(kind=FindingClass.UNFAITHFUL, stage=Stage.FAITHFUL, evidence=said))
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
