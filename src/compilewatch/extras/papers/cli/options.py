"""The options that the verbs of `compilewatch papers` share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from compilewatch.cli import options as cli_options
from compilewatch.config.paths import cache_folder
from compilewatch.config.settings import Settings, load_settings
from compilewatch.errors import UsageError
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.papers.settings import PapersSettings

if TYPE_CHECKING:
    from compilewatch.extras.papers import PaperLibrary, PaperQuery, Provider
    from compilewatch.extras.papers.calls import Budget
    from compilewatch.extras.papers.pipeline_parts import PaperOptions
    from compilewatch.extras.papers.records import PaperSummary

Function = Callable[..., Any]

VARIABLES = {
    "opensearch_endpoint": "OPENSEARCH_ENDPOINT",
    "opensearch_index": "OPENSEARCH_INDEX",
    "model": "BEDROCK_MODEL_ID",
    "region": "AWS_REGION",
}
"""Settings of [papers] that are also read from these variables; the settings have precedence."""


def selection(function: Function) -> Function:
    """The options that select papers."""
    for decorator in (
        click.option("--folder", metavar="DIR", help="A folder of papers: PDF, LaTeX, HTML, text."),
        click.option(
            "--max-papers",
            type=click.IntRange(min=1, max=1000),
            default=1,
            show_default=True,
            help="How many papers at most.",
        ),
        click.option("--random", "draw", is_flag=True, help="Draw papers at random."),
        click.option(
            "--query",
            "text",
            metavar="TEXT",
            help="Words, or a query of OpenSearch's language as JSON.",
        ),
        click.option(
            "--recent-days",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help="Papers of the last N days, newest first.",
        ),
        click.option("--paper-id", metavar="ID", help="One paper."),
    ):
        function = decorator(function)
    return function


def provider_options(function: Function) -> Function:
    """The options that name the language model."""
    for decorator in (
        click.option(
            "--model", metavar="ID", help="Model or inference profile (default: BEDROCK_MODEL_ID)."
        ),
        click.option(
            "--provider",
            type=click.Choice(["bedrock", "scripted"]),
            help="bedrock, or scripted: prepared replies for the papers in inputs/papers.",
        ),
    ):
        function = decorator(function)
    return function


def budget_options(function: Function) -> Function:
    """The limits of what may be paid, which hold before each request."""
    for decorator in (
        click.option(
            "--max-tokens-per-paper",
            type=click.IntRange(min=1),
            help="The most tokens that each paper may use, with earlier runs.",
        ),
        click.option(
            "--max-tokens",
            type=click.IntRange(min=1),
            help="The most tokens that the selected papers may use, with earlier runs.",
        ),
        click.option(
            "--max-usd-per-paper",
            type=click.FloatRange(min=0, min_open=True),
            help="The most that each paper may cost, with what it has cost before.",
        ),
        click.option(
            "--max-usd",
            type=click.FloatRange(min=0, min_open=True),
            help="The most that the selected papers may cost, with what they have cost before.",
        ),
    ):
        function = decorator(function)
    return function


jobs = click.option(
    "--jobs",
    type=click.IntRange(min=1, max=64),
    default=1,
    show_default=True,
    help="How many papers at a time; each may take the memory of a model.",
)


def budget_of(flags: dict[str, Any], settings: Settings) -> tuple[Budget, dict[str, Any]]:
    """The budget of the options, and the other options."""
    from compilewatch.extras.papers.calls import Budget

    names = ("max_usd", "max_tokens", "max_usd_per_paper", "max_tokens_per_paper")
    limits = {name: flags[name] for name in names}
    budget = Budget(**limits, max_repairs=settings.of(PapersSettings).max_repairs)
    return budget, {name: value for name, value in flags.items() if name not in names}


def process(
    settings: Settings, wanted: PaperQuery, chosen: PaperOptions, *, as_json: bool
) -> tuple[PaperSummary, ...]:
    """Find papers, process them and print what became of them. Raises UsageError."""
    from compilewatch.extras.papers.cli.tables import StageLines, print_summaries
    from compilewatch.extras.papers.pipeline_parts import run_papers
    from compilewatch.extras.papers.records import FindingClass
    from compilewatch.extras.papers.store import PaperStore

    library = library_of(settings)
    papers = library.find(wanted)
    if not papers:
        raise UsageError("no paper is selected; `compilewatch papers find` shows what there is")

    def say(line: str) -> None:
        click.echo(line, err=True)

    store = PaperStore(Path(settings.output_dir))
    names = {paper.id for paper in papers}
    earlier = sum(entry.paper in names for entry in store.ledger.entries())
    lines = StageLines(quiet=as_json)
    summaries = run_papers(
        settings, library, provider_of(settings), papers, chosen, observer=lines, say=say
    )
    if as_json:
        cli_options.print_json(summaries)
    else:
        print_summaries(summaries, store.root, damaged=store.damaged(), earlier=earlier)
    if all(one.findings and one.findings[0].kind is FindingClass.UNREADABLE for one in summaries):
        raise UsageError(f"no selected paper can be read: {summaries[0].findings[0].evidence}")
    return summaries


def settings_of(output_dir: str | None = None, **given: Any) -> Settings:
    """The settings with options of these commands, and the variables of the founding system."""
    settings = load_settings({"output_dir": output_dir})
    changes = {name: value for name, value in given.items() if value is not None}
    if "folder" in changes:
        changes["folder"] = str(Path(changes["folder"]).absolute())
        changes.setdefault("library", "folder")
    papers, executor = settings.of(PapersSettings), settings.of(ExecutorSettings)
    for name, variable in VARIABLES.items():
        default = getattr(PapersSettings(), name)
        if name not in changes and getattr(papers, name) == default:
            changes[name] = os.environ.get(variable) or default
    endpoint = executor.endpoint or os.environ.get("TRAINIUM_ENDPOINT", "")
    return settings.replaced(
        msgspec.structs.replace(papers, **changes),
        msgspec.structs.replace(executor, endpoint=endpoint),
    )


def query_of(
    *,
    paper_id: str | None,
    recent_days: float | None,
    text: str | None,
    draw: bool,
    max_papers: int,
    required: bool = True,
) -> PaperQuery:
    """The query that the options describe. Raises UsageError."""
    from compilewatch.extras.papers import PaperQuery

    given = sum(value is not None for value in (paper_id, recent_days, text))
    if given > 1:
        raise UsageError("use one of --paper-id, --recent-days and --query")
    if required and not given and not draw:
        raise UsageError("select papers with --paper-id, --recent-days, --query or --random")
    dsl = None
    if text is not None and text.lstrip().startswith(("{", "[")):
        try:
            dsl = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UsageError(f"--query is not valid JSON: {error}") from None
        if not isinstance(dsl, dict):
            raise UsageError("--query must be a JSON object, such as '{\"match_all\": {}}'")
        if set(dsl) == {"query"}:  # a complete request body
            dsl = dsl["query"]
    if text is not None and not text.strip():
        raise UsageError("--query is empty: give words or a query as JSON")
    return PaperQuery(
        paper_id=paper_id or "",
        recent_days=recent_days,
        text="" if dsl is not None else text or "",
        dsl=dsl,
        random=draw,
        max_papers=max_papers,
    )


def library_of(settings: Settings) -> PaperLibrary:
    from compilewatch.extras.papers.libraries import open_library

    own = settings.of(PapersSettings)
    return open_library(own, cache=settings.cache_folder or cache_folder())


def provider_of(settings: Settings) -> Provider:
    """The language model that the settings name. Raises UsageError if none is named."""
    papers = settings.of(PapersSettings)
    if papers.provider == "scripted":
        from compilewatch.extras.papers.providers.scripted import ScriptedProvider

        return ScriptedProvider(Path(papers.replies_dir))
    if not papers.model:
        raise UsageError(
            "no model is chosen: set BEDROCK_MODEL_ID to one that `compilewatch papers preflight` "
            "lists, or use --provider scripted with the papers in inputs/papers"
        )
    from compilewatch.extras.papers.providers.bedrock import BedrockProvider

    return BedrockProvider(
        papers.model,
        region=papers.region,
        profile=papers.profile,
        endpoint_url=papers.endpoint_url,
    )
