"""The sweep of one version of a paper's code: each compile target in a sandbox of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from compilewatch.config import Settings
from compilewatch.errors import LauncherError, SandboxError
from compilewatch.extras.papers.execution import one_line
from compilewatch.extras.papers.records import (
    CodeVersion,
    FindingClass,
    PaperFinding,
    PipelineStage,
    StageContent,
)
from compilewatch.extras.papers.source import generated_spec
from compilewatch.extras.papers.store import PaperFolder
from compilewatch.launchers import Completed
from compilewatch.plan import options_of, place, plan, target_sha256, targets_of
from compilewatch.records import (
    Environment,
    Mode,
    Phase,
    Request,
    Result,
    Status,
    digest,
    reason_label,
    source_line,
)


class RequestLauncher(Protocol):
    """What the sweep of a paper needs of a launcher."""

    def environments(self) -> tuple[Environment, ...]: ...

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterable[Completed]: ...


@dataclass(kw_only=True)
class Sweeper:
    """Evaluates a version on compile targets, each in a sandbox of its own.

    Without `named` environments, each target runs in its default environment.
    """

    settings: Settings
    targets: tuple[str, ...]
    launcher: RequestLauncher
    named: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Targets with their code, and the environment: a change of either can change a verdict."""
        try:
            known = [environment.digest for environment in self.launcher.environments()]
        except LauncherError as error:
            known = [str(error)]
        code = {name: target_sha256(name.partition(":")[0]) for name in sorted(self.targets)}
        return digest([code, known])

    def run(self, generation: CodeVersion, folder: PaperFolder) -> StageContent:
        file = _file_of(generation, folder)
        try:
            known = self.launcher.environments()
            placed = place(targets_of(self.targets, [Mode.EVAL], None), self.named, known)
            options = options_of(self.settings, known)
            planned = plan([generated_spec(generation, file)], placed, options)
            results = [
                *planned.skipped,
                *(done.result for done in self.launcher.run(planned.requests, folder.path)),
            ]
        except (SandboxError, LauncherError) as error:
            return StageContent(not_run=str(error))
        stored = folder.write(
            PipelineStage.SWEEP, msgspec.json.encode(results), ".json", what="results"
        )
        findings = tuple(finding for result in results for finding in findings_of(result))
        missing = [r for r in results if not r.is_verdict and not findings_of(r)]
        return StageContent(
            findings=findings,
            detail=", ".join(f"{r.request.target.name} {r.status}" for r in results),
            files=(stored,),
            numbers={
                "targets": float(len(results)),
                "targets_passed": float(sum(r.status is Status.PASS for r in results)),
                "graph_breaks": float(sum(r.graph_breaks or 0 for r in results)),
            },
            labels={r.request.target.name: r.status.value for r in results},
            not_run="" if findings else _not_run(missing),
        )


def _not_run(missing: Iterable[Result]) -> str:
    """Why a sweep is not complete: a target that was not run is never one that passed."""
    return "; ".join(f"{r.request.target.name} was not run: {r.detail}" for r in missing)


def _file_of(generation: CodeVersion, folder: PaperFolder) -> Path:
    """The stored file of a version."""
    for result in reversed(folder.journal()):
        if result.stage is PipelineStage.GENERATE and result.generation == generation.id:
            return folder.path / next(name for name in result.files if name.endswith(".py"))
    raise LauncherError(f"the code {generation.id[:12]} of {generation.paper} is not stored")


MOST_FINDINGS = 20
"""Of one result: they go into a prompt, and generated code decides how many breaks it has."""


def findings_of(result: Result) -> list[PaperFinding]:
    """What a result of the sweep says about the code, the first findings if there are many."""
    target = result.request.target.name
    if result.status is Status.GRAPH_BREAK:
        return [
            _finding(
                FindingClass.GRAPH_BREAK,
                f"{target}: {reason_label(b)} at {b.file}:{b.line}: {source_line(b).strip()} "
                f"{b.explanation}",
                b.line or None,
            )
            for b in result.breaks[:MOST_FINDINGS]
        ]
    kinds = {
        Status.MISMATCH: FindingClass.MISMATCH,
        Status.TIMEOUT: FindingClass.TIMED_OUT,
        Status.OOM: FindingClass.OOM,
        Status.CRASHED: FindingClass.CRASHED,
    }
    kind = kinds.get(result.status)
    if result.status is Status.ERROR:
        compiler = result.phase in (Phase.COMPILE, Phase.COMPARE)
        kind = FindingClass.COMPILER_CANNOT if compiler else FindingClass.WRONG_IN_EAGER
    if kind is None:
        return []
    evidence = result.detail or (result.error.message if result.error else result.status.value)
    return [_finding(kind, f"{target}, {result.phase}: {evidence}")]


def _finding(kind: FindingClass, evidence: str, line: int | None = None) -> PaperFinding:
    return PaperFinding(
        kind=kind, stage=PipelineStage.SWEEP, evidence=one_line(evidence), line=line
    )
