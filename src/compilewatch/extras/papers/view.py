"""What is stored of papers, and what a run of papers would need."""

from __future__ import annotations

from pathlib import Path

import msgspec

from compilewatch.config import Settings
from compilewatch.errors import CompilewatchError, SandboxError, UsageError
from compilewatch.extras.papers import Availability, CallError
from compilewatch.extras.papers.analysis import summarise_paper
from compilewatch.extras.papers.calls import price_of
from compilewatch.extras.papers.execution import SandboxRunner
from compilewatch.extras.papers.prompts import load_rules
from compilewatch.extras.papers.records import (
    CodeVersion,
    PaperFinding,
    PaperSummary,
    PipelineStage,
)
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PaperStore
from compilewatch.records import Record


def summaries(outputs: Path) -> tuple[PaperSummary, ...]:
    """The summaries of all stored papers, sorted by id."""
    store = PaperStore(outputs)
    entries = store.ledger.entries()
    return tuple(summarise_paper(store.folder(name).journal(), entries) for name in store.ids())


def summary_of(outputs: Path, paper: str) -> tuple[PaperSummary, Path]:
    """The summary of a stored paper, and its folder. Raises UsageError if there is none."""
    store = PaperStore(outputs)
    folder = store.known(paper)
    return summarise_paper(folder.journal(), store.ledger.entries()), folder.path


def generation_of(
    outputs: Path, paper: str, number: int | None = None
) -> tuple[CodeVersion, tuple[PaperFinding, ...]]:
    """A version of a paper's code (the last one by default) and the findings about it."""
    folder = PaperStore(outputs).known(paper)
    journal = folder.journal()
    versions = [
        r for r in journal if r.stage is PipelineStage.GENERATE and r.generation and r.files
    ]
    if not versions:
        raise UsageError(f"no code was written for {paper}; see `compilewatch papers check`")
    if number is not None:
        versions = [r for r in versions if r.numbers.get("version") == number]
        if not versions:
            raise UsageError(f"{paper} has no version {number}; see `compilewatch papers show`")
    about = next(name for name in versions[-1].files if name.endswith(".json"))
    generation = msgspec.json.decode(folder.read(about), type=CodeVersion)
    last = {r.stage: r for r in journal if r.generation == generation.id}
    return generation, tuple(finding for r in last.values() for finding in r.findings)


class Preflight(Record, frozen=True, kw_only=True):
    """What a run needs. An empty `problem` means that it is there."""

    provider: str
    model: str
    models: tuple[Availability, ...] = ()
    model_problem: str = ""
    price: str = ""
    rules: str = ""
    sandbox_problem: str = ""

    @property
    def ready(self) -> bool:
        return not self.model_problem and not self.sandbox_problem


def preflight(settings: Settings) -> Preflight:
    """Look up models, prices, rules and the sandbox; nothing is paid."""
    papers = settings.of(PapersSettings)
    models: tuple[Availability, ...] = ()
    problem = ""
    model = "scripted" if papers.provider == "scripted" else papers.model
    try:
        models = _models(settings)
        chosen = next(iter(models), None)
        if not model:
            problem = "no model is chosen: set BEDROCK_MODEL_ID to one of these"
        elif chosen is not None and not chosen.usable:
            problem = chosen.why
    except (CallError, CompilewatchError) as error:
        problem = str(error)
    row = price_of(Path(papers.prices_file), model) if model else None
    try:
        SandboxRunner().check()
        sandbox_problem = ""
    except SandboxError as error:
        sandbox_problem = str(error)
    rules = load_rules(Path(papers.rules_file))
    return Preflight(
        provider=papers.provider,
        model=model,
        models=models,
        model_problem=problem,
        price=f"{row.input_usd:g} and {row.output_usd:g} USD per million tokens, {row.date}"
        if row
        else "unknown: --max-usd cannot be used",
        rules=f"version {rules.version}, {len(rules.rule)} rules",
        sandbox_problem=sandbox_problem,
    )


def _models(settings: Settings) -> tuple[Availability, ...]:
    papers = settings.of(PapersSettings)
    if papers.provider == "scripted":
        return (Availability(model="scripted", name="prepared replies", status="ACTIVE"),)
    from compilewatch.extras.papers.providers.bedrock import BedrockProvider

    provider = BedrockProvider(
        papers.model,
        region=papers.region,
        profile=papers.profile,
        endpoint_url=papers.endpoint_url,
    )
    return provider.available()
