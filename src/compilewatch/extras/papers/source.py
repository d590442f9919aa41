"""`papers`: the last version of the code of each stored paper, for the sweep in the sandbox.

A version that is wrong in eager mode, or unfaithful to its paper, is listed with the reason why it
is not evaluated: what a compiler says about it would be said about something else.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from compilewatch.errors import SourceError
from compilewatch.extras.executor.sandbox.policy import JOB_FOLDER
from compilewatch.extras.papers.records import (
    GENERATED_MODULE,
    SOURCE_FILE,
    UNREVIEWED,
    CodeVersion,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperFolder, PaperStore
from compilewatch.records import FactoryBuild, ModelSpec

CHECKED = (PipelineStage.STATIC, PipelineStage.REVIEW, PipelineStage.EAGER, PipelineStage.FAITHFUL)
"""The stages that a version must have passed before it is compiled."""


class PapersSource:
    """Generated models, by paper id. They only run in the sandbox."""

    name = UNREVIEWED

    def __init__(self, *, outputs: Path | None = None) -> None:
        self._store = PaperStore(outputs or Path("outputs"))

    def models(self) -> tuple[ModelSpec, ...]:
        candidates = [spec_of(self._store.folder(name)) for name in self._store.ids()]
        specs = tuple(spec for spec in candidates if spec is not None)
        if not specs:
            raise SourceError(
                f"no code of papers is stored in {self._store.root}: start with `compilewatch "
                "papers run`"
            )
        return specs


def spec_of(folder: PaperFolder) -> ModelSpec | None:
    """The model of a paper's last version of the code; None if none was written."""
    journal = folder.journal()
    versions = [
        r for r in journal if r.stage is PipelineStage.GENERATE and r.generation and r.files
    ]
    if not versions:
        return None
    module, about = sorted(versions[-1].files, key=lambda name: not name.endswith(".py"))
    generation = msgspec.json.decode(folder.read(about), type=CodeVersion)
    last = {r.stage: r for r in journal if r.generation == generation.id}
    return generated_spec(generation, folder.path / module, skip_reason=_why_not(last))


def generated_spec(
    generation: CodeVersion, file: Path, *, skip_reason: str | None = None
) -> ModelSpec:
    """The model of a version of the code, with its provenance."""
    return ModelSpec(
        source=UNREVIEWED,
        name=generation.paper,
        # The module exists inside of the sandbox only.
        build=FactoryBuild(
            factory=f"{GENERATED_MODULE}:model",
            inputs=f"{GENERATED_MODULE}:inputs",
            path=JOB_FOLDER,
            source_sha256=generation.id,
        ),
        architecture=f"generation:{generation.id[:12]}",
        family="paper",
        task="paper",
        revision=generation.id,
        skip_reason=skip_reason,
        provenance={
            "paper": generation.paper,
            "paper_sha256": generation.paper_sha256,
            "generation": generation.id,
            "version": str(generation.number),
            "model": generation.model,
            "call": generation.call,
            "prompt_sha256": generation.prompt_sha256,
            "rules_sha256": generation.rules_sha256,
            "parent": generation.parent or "",
            "scripted": str(generation.scripted).lower(),
            SOURCE_FILE: str(file),
        },
    )


def _why_not(last: dict[PipelineStage, StageResult]) -> str | None:
    for stage in CHECKED:
        result = last.get(stage)
        if result is None:
            return f"the stage {stage} was not run"
        if result.outcome is StageOutcome.FAILED:
            finding = result.findings[0]
            return f"{finding.kind.value.replace('_', ' ')}: {finding.evidence}"
        if result.outcome is StageOutcome.NOT_RUN:
            return f"the stage {stage} was not run: {result.detail}"
    return None
