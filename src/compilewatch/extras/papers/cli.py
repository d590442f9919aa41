"""`compilewatch papers`: research papers to checked, compiled and executed code."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from compilewatch.api.choose import environments_for, split
from compilewatch.cli import options
from compilewatch.config import Settings, cache_folder, load_settings
from compilewatch.errors import CompilewatchError, SandboxError, UsageError
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.papers import Availability, CallError, PaperLibrary, PaperQuery, Provider
from compilewatch.extras.papers.records import (
    CodeVersion,
    FindingClass,
    Paper,
    PaperFinding,
    PaperSummary,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.store import PaperStore
from compilewatch.records import Record
from compilewatch.report.terminal import console, plain, plain_table
from compilewatch.report.wording import plural

if TYPE_CHECKING:
    from compilewatch.extras.papers.calls import Budget
    from compilewatch.extras.papers.pipeline import PaperOptions
    from compilewatch.extras.papers.providers import BedrockProvider

Function = Callable[..., Any]

VARIABLES = {
    "opensearch_endpoint": "OPENSEARCH_ENDPOINT",
    "opensearch_index": "OPENSEARCH_INDEX",
    "model": "BEDROCK_MODEL_ID",
    "region": "AWS_REGION",
}
"""Settings of [papers] that are also read from these variables; the settings have precedence."""


def _together(*options_: Function) -> Function:
    """One decorator that adds several options, which `--help` shows in this order."""
    return lambda function: functools.reduce(lambda f, add: add(f), reversed(options_), function)


selection = _together(
    click.option("--paper-id", metavar="ID", help="One paper."),
    click.option(
        "--recent-days",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="Papers of the last N days, newest first.",
    ),
    click.option(
        "--query",
        "text",
        metavar="TEXT",
        help="Words, or a query of OpenSearch's language as JSON.",
    ),
    click.option("--random", "draw", is_flag=True, help="Draw papers at random."),
    click.option(
        "--max-papers",
        type=click.IntRange(min=1, max=1000),
        default=1,
        show_default=True,
        help="How many papers at most.",
    ),
    click.option("--folder", metavar="DIR", help="A folder of papers: PDF, LaTeX, HTML, text."),
)
"""The options that select papers."""

provider_options = _together(
    click.option(
        "--provider",
        type=click.Choice(["bedrock", "scripted"]),
        help="bedrock, or scripted: prepared replies for the papers in inputs/papers.",
    ),
    click.option(
        "--model", metavar="ID", help="Model or inference profile (default: BEDROCK_MODEL_ID)."
    ),
)
"""The options that name the language model."""

_DOLLARS, _TOKENS = click.FloatRange(min=0, min_open=True), click.IntRange(min=1)
BUDGET: dict[str, tuple[click.FloatRange | click.IntRange, str]] = {
    "max_usd": (
        _DOLLARS,
        "The most that the selected papers may cost, with what they have cost before.",
    ),
    "max_usd_per_paper": (
        _DOLLARS,
        "The most that each paper may cost, with what it has cost before.",
    ),
    "max_tokens": (
        _TOKENS,
        "The most tokens that the selected papers may use, with earlier runs.",
    ),
    "max_tokens_per_paper": (
        _TOKENS,
        "The most tokens that each paper may use, with earlier runs.",
    ),
}
"""The limits of what may be paid, which hold before each request."""

budget_options = _together(
    *(
        click.option(f"--{name.replace('_', '-')}", type=kind, help=text)
        for name, (kind, text) in BUDGET.items()
    )
)

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

    limits = {name: flags[name] for name in BUDGET}
    budget = Budget(**limits, max_repairs=settings.of(PapersSettings).max_repairs)
    return budget, {name: value for name, value in flags.items() if name not in BUDGET}


def process(
    settings: Settings, query: PaperQuery, chosen: PaperOptions, *, as_json: bool
) -> tuple[PaperSummary, ...]:
    """Find papers, process them and print what became of them. Raises UsageError."""
    from compilewatch.extras.papers.pipeline import run_papers

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
        from compilewatch.extras.papers.providers import ScriptedProvider

        return ScriptedProvider(Path(papers.replies_dir))
    if not papers.model:
        raise UsageError(
            "no model is chosen: set BEDROCK_MODEL_ID to one that `compilewatch papers preflight` "
            "lists, or use --provider scripted with the papers in inputs/papers"
        )
    return _bedrock(papers)


def _bedrock(papers: PapersSettings) -> BedrockProvider:
    from compilewatch.extras.papers.providers import BedrockProvider

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

    store = PaperStore(Path(settings.output_dir))
    folder = store.known(paper).path
    summary = store.summary(paper)
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

    store = PaperStore(Path(settings.output_dir))
    summaries = store.summaries()
    if as_json:
        options.print_json(summaries)
    else:
        print_summaries(summaries, Path(settings.output_dir) / "papers", damaged=store.damaged())
    return 0


@click.command("show")
@click.argument("paper")
@click.option("--version", "number", type=click.IntRange(min=0), help="A version (default: last).")
@options.output
@options.as_json
def show_verb(*, paper: str, number: int | None, output_dir: str | None, as_json: bool) -> int:
    """Print the code of a paper, with the findings about it and its provenance."""
    settings = settings_of(output_dir)

    folder = PaperStore(Path(settings.output_dir)).known(paper)
    generation, _ = folder.version(number)
    findings = folder.findings(generation)
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

    report = preflight(settings)
    if as_json:
        options.print_json(report)
    else:
        print_preflight(report)
    return 0 if report.ready else 1


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
    from compilewatch.extras.papers.calls import load_rules, price_of
    from compilewatch.extras.papers.execution import SandboxRunner

    papers = settings.of(PapersSettings)
    models: tuple[Availability, ...] = ()
    model, problem, sandbox_problem = papers.model, "", ""
    if papers.provider == "scripted":
        model = "scripted"
        models = (Availability(model="scripted", name="prepared replies", status="ACTIVE"),)
    else:
        try:
            models = _bedrock(papers).available()
            if not model:
                problem = "no model is chosen: set BEDROCK_MODEL_ID to one of these"
            elif models and not models[0].usable:
                problem = models[0].why
        except (CallError, CompilewatchError) as error:
            problem = str(error)
    row = price_of(Path(papers.prices_file), model) if model else None
    price = "unknown: --max-usd cannot be used"
    if row is not None:
        price = f"{row.input_usd:g} and {row.output_usd:g} USD per million tokens, {row.date}"
    try:
        SandboxRunner().check()
    except SandboxError as error:
        sandbox_problem = str(error)
    rules = load_rules(Path(papers.rules_file))
    return Preflight(
        provider=papers.provider,
        model=model,
        models=models,
        model_problem=problem,
        price=price,
        rules=f"version {rules.version}, {len(rules.rule)} rules",
        sandbox_problem=sandbox_problem,
    )


STYLES = {
    StageOutcome.PASSED: "green",
    StageOutcome.FAILED: "red",
    StageOutcome.NOT_RUN: "dim",
}
STATE_STYLES = {"passed": "green", "failed": "red", "incomplete": "yellow"}
WORDS = {StageOutcome.NOT_RUN: "not run"}


class StageLines:
    """Prints a line on standard error when a stage of a paper ends; from several threads too."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = console(stderr=True)
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, result: StageResult) -> None:
        if self._quiet:
            return
        with self._lock:
            now = time.monotonic()
            seconds = now - self._since.get(result.paper, now)
            self._since[result.paper] = now
            self._console.print(self._line(result, seconds))

    @staticmethod
    def _line(result: StageResult, seconds: float) -> Text:
        text = result.findings[0].evidence if result.findings else result.detail
        return Text.assemble(
            plain(f"{result.paper[:28]:28} {result.stage:9} "),
            plain(f"{_word(result.outcome):8}", STYLES[result.outcome]),
            plain(f"{seconds:6.1f} s  {text}"),
        )


def _word(outcome: StageOutcome) -> str:
    return WORDS.get(outcome, outcome.value)


def print_found(papers: Sequence[Paper]) -> None:
    """A table of found papers, or a line that there are none."""
    if not papers:
        click.echo("no paper is found", err=True)
        return
    table = plain_table("paper", "date", "title", "location", gap=2)
    for paper in papers:
        table.add_row(*map(plain, (paper.id, paper.date[:10], paper.title, paper.location)))
    console().print(table)


def print_summaries(
    summaries: Sequence[PaperSummary],
    root: Path,
    *,
    damaged: Sequence[str] = (),
    earlier: int | None = None,
) -> None:
    """One line for each damaged line of what is stored, one for each paper, and the sums.

    `earlier` requests were sent before the run.
    """
    for note in damaged:
        click.echo(note, err=True)
    if not summaries:
        click.echo(f"no papers in {root}: start with `compilewatch papers run`")
        return
    table = plain_table("paper", "state", "stages", "repairs", "USD", "what is wrong", gap=2)
    for one in summaries:
        passed = sum(stage.outcome is StageOutcome.PASSED for stage in one.stages)
        table.add_row(
            plain(one.paper),
            plain(one.state, STATE_STYLES[one.state]),
            plain(f"{passed} of {len(one.stages)}"),
            plain(str(one.repairs)),
            plain(_usd(one)),
            plain(_wrong(one)),
        )
    console().print(table)
    usd = sum(one.spent.usd for one in summaries)
    requests = sum(one.spent.requests for one in summaries)
    counts = f"{plural(len(summaries), 'paper')}, {plural(requests, 'request')}"
    if earlier is not None:
        counts += f" ({requests - earlier} in this run)"
    click.echo(f"{counts}, ${usd:.4f}; {root}")
    if any(one.scripted for one in summaries):
        click.echo("Results marked as scripted come from prepared replies, not from a model.")


def _usd(one: PaperSummary) -> str:
    if one.spent.unpriced:
        return "unknown"
    return f"{one.spent.usd:.4f}{' scripted' if one.scripted else ''}"


def _wrong(one: PaperSummary) -> str:
    finding = next(iter(one.findings), None)
    if finding is not None:
        return f"{finding.stage}: {finding.kind}: {finding.evidence}"
    missing = [stage for stage in one.stages if stage.outcome is StageOutcome.NOT_RUN]
    return f"{missing[0].stage} was not run: {missing[0].detail}" if missing else ""


def print_check(summary: PaperSummary, folder: Path) -> None:
    """Every stage with its outcome and evidence."""
    out = console()
    out.print(plain(f"{summary.paper}: {summary.title}"))
    for stage in summary.stages:
        line = Text.assemble(
            plain(f"  {stage.stage:9} "),
            plain(f"{_word(stage.outcome):8}", STYLES[stage.outcome]),
            plain(f" {stage.detail}" if stage.detail else ""),
        )
        out.print(line)
        for finding in stage.findings:
            out.print(plain(f"            {_finding(finding)}"))
        for name in stage.files:
            out.print(plain(f"            {folder / name}", "dim"))
    spent = summary.spent
    out.print(
        plain(
            f"  {summary.state}; {plural(summary.repairs, 'repair')}, "
            f"{plural(spent.requests, 'request')}, "
            f"{spent.input_tokens:,} + {spent.output_tokens:,} tokens, {_usd(summary)} USD; "
            f"model {summary.model or 'none'}, dataset {summary.dataset or 'none'}"
        )
    )


def _finding(finding: PaperFinding) -> str:
    line = f" (line {finding.line})" if finding.line else ""
    return f"{finding.kind}: {finding.evidence}{line}"


def print_generation(generation: CodeVersion, findings: Sequence[PaperFinding]) -> None:
    """The code with its provenance as comments."""
    scripted = ", scripted" if generation.scripted else ""
    lines = [
        f"# {generation.paper}, version {generation.number}, {generation.id}",
        f"# model {generation.model}{scripted}, paper {generation.paper_sha256[:12]}, "
        f"prompt {generation.prompt_sha256[:12]}, rules {generation.rules_sha256[:12]}",
        *(f"# {finding.stage}: {_finding(finding)}" for finding in findings),
        generation.source,
    ]
    console().print(plain("\n".join(lines)))


def print_preflight(report: Preflight) -> None:
    out = console()
    if report.models:
        table = plain_table("model", "name", "status", "ends", "usable", gap=2)
        for one in report.models:
            usable = "yes" if one.usable else one.why
            table.add_row(*map(plain, (one.model, one.name, one.status, one.ends[:10], usable)))
        out.print(table)
    out.print(plain(f"model:   {report.model_problem or report.model}"))
    out.print(plain(f"price:   {report.price}"))
    out.print(plain(f"rules:   {report.rules}"))
    out.print(plain(f"sandbox: {report.sandbox_problem or 'generated code can be confined here'}"))


def exit_status(summaries: Sequence[PaperSummary]) -> int:
    """1 if something is wrong, 3 if a stage was not run, else 0."""
    states = {one.state for one in summaries}
    return 1 if "failed" in states else 3 if "incomplete" in states else 0


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
