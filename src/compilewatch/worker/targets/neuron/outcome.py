"""Converts the result of a compilation for Neuron to the outcome of a target."""

from __future__ import annotations

from compilewatch.contract.failures import KEPT_CHARACTERS
from compilewatch.neuron import error_classes, neuronx_cc
from compilewatch.records import ErrorRecord, NeuronDetail, NeuronFailure, Status
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import TargetOutcome


def outcome_of(
    subject: Subject, detail: NeuronDetail, log: str, error: ErrorRecord | None
) -> TargetOutcome:
    """A NEFF is a pass, a rejection an error, and a machine with too little memory an `oom`."""
    artifacts: tuple[str, ...] = ()
    if subject.request.keep_artifacts:
        files = (path for path in subject.artifacts.rglob("*") if path.is_file())
        artifacts = tuple(sorted(str(path.relative_to(subject.artifacts)) for path in files))
    problem = detail.failure
    if problem is None:
        return TargetOutcome(
            status=Status.PASS,
            detail=neuronx_cc.described(detail),
            graphs=1,
            details=detail,
            artifacts=artifacts,
        )
    exhausted = problem.kind == error_classes.HOST_MEMORY
    return TargetOutcome(
        status=Status.OOM if exhausted else Status.ERROR,
        detail=neuronx_cc.described(detail),
        details=detail,
        error=error or _error(problem, log),
        artifacts=artifacts,
    )


def _error(problem: NeuronFailure, log: str) -> ErrorRecord:
    exhausted = problem.kind == error_classes.HOST_MEMORY
    code = "out_of_memory" if exhausted else problem.code or f"neuronx_cc_{problem.kind}"
    return ErrorRecord(
        type=neuronx_cc.ROUTE,
        message=" - ".join(filter(None, (problem.message, problem.advice))),
        code=code,
        head=log[:KEPT_CHARACTERS],
        tail=log[KEPT_CHARACTERS:][-KEPT_CHARACTERS:],
    )
