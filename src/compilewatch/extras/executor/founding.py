"""The calls of the system that the executor replaces, as thin forms of jobs.

`POST /execute` and `POST /execute_batch` respond when the scripts have ended, with the fields that
existing clients read. A script that was submitted before, for the same paper and with the same
timeout, is not run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from compilewatch.extras.executor.protocol import FailureCode, JobRequest, JobState, JobStatus
from compilewatch.extras.executor.runner import PROFILE, NeuronInspect
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from compilewatch.extras.executor.training_output import summary
from compilewatch.records import Record

DEFAULT_TIMEOUT_SECONDS = 1800.0


class Execute(Record, frozen=True, kw_only=True):
    """The body of `POST /execute`."""

    paper_id: Annotated[str, Meta(min_length=1, max_length=200)]
    code: Annotated[str, Meta(min_length=1)]
    timeout: Annotated[float, Meta(gt=0)] | None = None
    paper_title: Annotated[str, Meta(max_length=500)] | None = None


class ExecuteBatch(Record, frozen=True, kw_only=True):
    """The body of `POST /execute_batch`."""

    batch: Annotated[list[Execute], Meta(min_length=1, max_length=100)]
    timeout: Annotated[float, Meta(gt=0)] | None = None


def job_of(asked: Execute, timeout: float | None, ceiling: SandboxLimits) -> tuple[str, JobRequest]:
    """The key and the request of a script."""
    seconds = min(timeout or DEFAULT_TIMEOUT_SECONDS, ceiling.deadline_seconds)
    default = SandboxLimits()
    smaller = {
        field.name: min(getattr(default, field.name), getattr(ceiling, field.name))
        for field in msgspec.structs.fields(SandboxLimits)
    }
    request = JobRequest(
        files={"main.py": asked.code},
        limits=SandboxLimits(**{**smaller, "deadline_seconds": seconds}),
        paper_id=asked.paper_id,
        title=asked.paper_title or "",
        profile=True,
    )
    digest = hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
    return f"execute-{digest[:40]}", request


def answer(
    asked: Execute, state: JobState, stdout: bytes, stderr: bytes, profiler: NeuronInspect | None
) -> dict[str, Any]:
    """The response for one script that has ended."""
    result = state.result
    peak = result.peak_memory_bytes if result is not None else None
    names = [each.name for each in result.artifacts] if result is not None else []
    profile = [name for name in names if name.startswith(f"{PROFILE}/")]
    made: dict[str, Any] = {
        "success": state.state is JobStatus.DONE,
        "paper_id": asked.paper_id,
        "job": state.key,
        "execution_time": result.duration_seconds if result is not None else 0.0,
        "return_code": _return_code(state),
        "stdout": stdout.decode(errors="replace"),
        "stderr": stderr.decode(errors="replace"),
        "timeout": state.failure is FailureCode.DEADLINE,
        "peak_memory_mb": peak / 2**20 if peak is not None else None,
        "detailed_metrics": summary(result.metrics) if result is not None else {},
        "profiler": {
            "profiler_enabled": profiler is not None,
            "profiler_output_dir": str(profiler.folder / state.key) if profiler else None,
            "profiler_files": profile,
            "profiler_subdirs": sorted({name.rpartition("/")[0] for name in profile}),
            "total_files": len(profile),
        },
        "lines_of_code": sum(1 for line in asked.code.splitlines() if line.strip()),
        "has_training_loop": ".backward(" in asked.code,
        "has_evaluation": ".eval(" in asked.code,
        "uses_distributed_training": "torch.distributed" in asked.code,
    }
    if state.state is not JobStatus.DONE:
        timed_out = state.failure is FailureCode.DEADLINE
        made["error_type"] = "timeout" if timed_out else "execution_error"
        made["error_message"] = state.message or (state.failure or state.state).value
    return made


def batch_answer(asked: ExecuteBatch, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The response for several scripts; of two with one paper's id, the later one is shown."""
    successful = sum(1 for each in answers if each["success"])
    return {
        "success": successful == len(answers),
        "batch_size": len(answers),
        "successful": successful,
        "failed": len(answers) - successful,
        "results": {
            script.paper_id: each for script, each in zip(asked.batch, answers, strict=True)
        },
    }


def _return_code(state: JobState) -> int:
    """The exit code, negative for a signal, and -1 where something else ended the script."""
    result = state.result
    if result is None or (result.exit_code is None and result.signal is None):
        return -1
    return result.exit_code if result.exit_code is not None else -(result.signal or 1)
