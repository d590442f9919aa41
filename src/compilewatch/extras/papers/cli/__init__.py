"""`compilewatch papers`: research papers to checked, compiled and executed code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from compilewatch.api.selection import environments_for, split
from compilewatch.cli import options
from compilewatch.config import Settings, cache_folder, load_settings
from compilewatch.errors import UsageError
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.papers.settings import PapersSettings

if TYPE_CHECKING:
    from compilewatch.extras.papers import PaperLibrary, PaperQuery, Provider
    from compilewatch.extras.papers.calls import Budget
    from compilewatch.extras.papers.pipeline import PaperOptions
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
    settings: Settings, query: PaperQuery, chosen: PaperOptions, *, as_json: bool
) -> tuple[PaperSummary, ...]:
    """Find papers, process them and print what became of them. Raises UsageError."""
    from compilewatch.extras.papers.cli.tables import StageLines, print_summaries
    from compilewatch.extras.papers.pipeline import run_papers
    from compilewatch.extras.papers.records import FindingClass
    from compilewatch.extras.papers.store import PaperStore

    library = library_of(settings)
    papers = library.find(query)
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
        options.print_json(summaries)
    else:
        print_summaries(summaries, store.root, damaged=store.damaged(), earlier=earlier)
    if all(one.findings and one.findings[0].kind is FindingClass.UNREADABLE for one in summaries):
        raise UsageError(f"no selected paper can be read: {summaries[0].findings[0].evidence}")
    return summaries


def settings_of(output_dir: str | None = None, **overrides: Any) -> Settings:
    """The settings with options of these commands, and the variables of the founding system."""
    settings = load_settings({"output_dir": output_dir})
    changes = {name: value for name, value in overrides.items() if value is not None}
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

    selections = sum(value is not None for value in (paper_id, recent_days, text))
    if selections > 1:
        raise UsageError("use one of --paper-id, --recent-days and --query")
    if required and not selections and not draw:
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


@click.command("find")
@selection
@options.as_json
def find_verb(
    *,
    folder: str | None,
    as_json: bool,
    **query: Any,
) -> int:
    """List the papers that a query selects, without reading or paying anything.

    Without OPENSEARCH_ENDPOINT, papers are searched in the folder inputs/papers/library. The exit
    status is 3 if no paper is found.
    """
    settings = settings_of(folder=folder)
    papers = library_of(settings).find(query_of(**query, required=False))
    if as_json:
        options.print_json(papers)
        return 0 if papers else 3
    from compilewatch.extras.papers.cli.tables import print_found

    print_found(papers)
    return 0 if papers else 3


@click.command("generate")
@selection
@provider_options
@budget_options
@jobs
@options.output
@options.as_json
def generate_verb(
    *,
    folder: str | None,
    provider: str | None,
    model: str | None,
    jobs: int,
    output_dir: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Let the model plan and write the code for papers; nothing is reviewed or run.

    `papers show` prints the code, and `papers run` continues from here without repeating a call.
    The exit status is 1 if there is no code for a paper.
    """
    settings = settings_of(output_dir, folder=folder, provider=provider, model=model)
    budget, query = budget_of(flags, settings)
    paper_query = query_of(**query)
    from compilewatch.extras.papers.pipeline import PaperOptions
    from compilewatch.extras.papers.records import PipelineStage

    chosen = PaperOptions(budget=budget, jobs=jobs, until=PipelineStage.GENERATE)
    summaries = process(settings, paper_query, chosen, as_json=as_json)
    return int(any(one.generation is None for one in summaries))


@click.command("run")
@selection
@provider_options
@budget_options
@click.option(
    "--repairs",
    "max_repairs",
    type=click.IntRange(min=0, max=3),
    help="How often the code of a paper may be repaired (default 3).",
)
@click.option(
    "--device-seconds", type=click.FloatRange(min=1), help="Time limit of training a model."
)
@click.option(
    "--max-device-seconds",
    type=click.FloatRange(min=1),
    help="The most time that the selected papers may be trained, with earlier runs.",
)
@click.option(
    "--targets", metavar="A,B", help="Compile targets of the sweep (default dynamo,export)."
)
@click.option(
    "--trainium",
    is_flag=True,
    help="Start the Trainium instance when a model is to be trained; afterwards stop it, unless "
    "anybody's job runs.",
)
@click.option(
    "--state",
    metavar="FILE",
    help="What `trainium down --state` needs to stop the instance if this run is killed.",
)
@jobs
@options.output
@options.as_json
def run_verb(
    *,
    folder: str | None,
    provider: str | None,
    model: str | None,
    max_repairs: int | None,
    device_seconds: float | None,
    max_device_seconds: float | None,
    targets: str | None,
    trainium: bool,
    state: str | None,
    jobs: int,
    output_dir: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Read papers, let the model write code for them, check it, compile it and execute it.

    Stages that have a result are not repeated, and calls that have a reply are not sent again:
    running the same command again continues where it was. The exit status is 1 if something is
    wrong with a paper's code, and 3 if a stage was not run.
    """
    settings = settings_of(
        output_dir,
        folder=folder,
        provider=provider,
        model=model,
        max_repairs=max_repairs,
        device_seconds=device_seconds,
    )
    budget, query = budget_of(flags, settings)
    paper_query = query_of(**query)
    from compilewatch.extras.papers.cli.tables import exit_status
    from compilewatch.extras.papers.pipeline import PaperOptions

    names = tuple(split(targets) or ("dynamo", "export"))
    environment = settings.of(PapersSettings).environment
    named = (environment,) if environment else ()
    chosen = PaperOptions(
        targets=names,
        environments=named or environments_for(names, settings),
        named=named,
        budget=budget,
        max_device_seconds=max_device_seconds,
        jobs=jobs,
        trainium=trainium,
        state=Path(state) if state else None,
    )
    return exit_status(process(settings, paper_query, chosen, as_json=as_json))


@click.command("check")
@click.argument("paper")
@options.output
@options.as_json
def check_verb(*, paper: str, output_dir: str | None, as_json: bool) -> int:
    """Show the outcome of each stage of a paper, with its evidence.

    The exit status is 1 if something is wrong, and 3 if a stage was not run.
    """
    settings = settings_of(output_dir)
    from compilewatch.extras.papers.cli.tables import exit_status, print_check
    from compilewatch.extras.papers.view import summary_of

    summary, folder = summary_of(Path(settings.output_dir), paper)
    if as_json:
        options.print_json(summary)
    else:
        print_check(summary, folder)
    return exit_status((summary,))


@click.command("list")
@options.output
@options.as_json
def list_verb(*, output_dir: str | None, as_json: bool) -> int:
    """List the stored papers with what became of them and what they cost."""
    settings = settings_of(output_dir)
    from compilewatch.extras.papers.cli.tables import print_summaries
    from compilewatch.extras.papers.store import PaperStore
    from compilewatch.extras.papers.view import summaries

    papers = summaries(Path(settings.output_dir))
    if as_json:
        options.print_json(papers)
    else:
        outputs = Path(settings.output_dir)
        print_summaries(papers, outputs / "papers", damaged=PaperStore(outputs).damaged())
    return 0


@click.command("show")
@click.argument("paper")
@click.option("--version", "number", type=click.IntRange(min=0), help="A version (default: last).")
@options.output
@options.as_json
def show_verb(*, paper: str, number: int | None, output_dir: str | None, as_json: bool) -> int:
    """Print the code of a paper, with the findings about it and its provenance."""
    settings = settings_of(output_dir)
    from compilewatch.extras.papers.cli.tables import print_generation
    from compilewatch.extras.papers.view import generation_of

    generation, findings = generation_of(Path(settings.output_dir), paper, number)
    if as_json:
        options.print_json(generation)
    else:
        print_generation(generation, findings)
    return 0


@click.command("publish")
@options.output
@options.as_json
def publish_verb(*, output_dir: str | None, as_json: bool) -> int:
    """Write the report page, and send metrics to the services that are set.

    The services are the Pushgateway, Loki and CloudWatch (`cloudwatch.enabled`). Publishing again
    changes nothing. The exit status is 3 if a service did not accept the metrics.
    """
    settings = settings_of(output_dir)
    from compilewatch.extras.papers.publication import publish_papers

    published = publish_papers(Path(settings.output_dir), settings)
    if as_json:
        options.print_json({"lines": published.lines, "failures": published.failures})
    else:
        for line in published.lines:
            click.echo(line)
        for note in published.notes:
            click.echo(f"compilewatch: {note}", err=True)
    return 3 if published.failures else 0


@click.command("preflight")
@provider_options
@options.as_json
def preflight_verb(*, provider: str | None, model: str | None, as_json: bool) -> int:
    """Show which models can be used, and whether generated code can be confined here.

    With BEDROCK_MODEL_ID or --model, only that model is looked up; nothing is paid. The exit status
    is 1 if something is missing.
    """
    settings = settings_of(provider=provider, model=model)
    from compilewatch.extras.papers.cli.tables import print_preflight
    from compilewatch.extras.papers.view import preflight

    report = preflight(settings)
    if as_json:
        options.print_json(report)
    else:
        print_preflight(report)
    return 0 if report.ready else 1


command = click.Group(
    "papers",
    help="""Turn research papers into PyTorch code that is checked, compiled and executed.

    Papers come from an OpenSearch index (OPENSEARCH_ENDPOINT) or a folder. A model of Bedrock
    (BEDROCK_MODEL_ID) plans, writes and reviews the code, which only runs in a sandbox. Each stage
    is stored in outputs/papers/. Not yet tested on AWS; see docs/papers.md.
    """,
    commands=[
        find_verb,
        generate_verb,
        run_verb,
        check_verb,
        list_verb,
        show_verb,
        publish_verb,
        preflight_verb,
    ],
)
