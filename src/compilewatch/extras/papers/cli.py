"""`compilewatch papers`: research papers to checked, compiled and executed code."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from compilewatch import config
from compilewatch.api.choose import environments_for, split
from compilewatch.cli import options
from compilewatch.errors import CompilewatchError, SandboxError, UsageError
from compilewatch.extras.papers import CallError, records
from compilewatch.extras.papers.records import PaperSummary, PipelineStage, StageOutcome
from compilewatch.extras.papers.store import PaperStore, summarise_paper
from compilewatch.report.terminal import console, plain, table
from compilewatch.report.wording import plural

if TYPE_CHECKING:
    from compilewatch.extras.papers.libraries import PaperLibrary
    from compilewatch.extras.papers.providers import Provider

VARIABLES = {
    "opensearch_endpoint": "OPENSEARCH_ENDPOINT",
    "opensearch_index": "OPENSEARCH_INDEX",
    "model": "BEDROCK_MODEL_ID",
    "region": "AWS_REGION",
}
"""Settings of [papers] that are also read from these variables; the settings have precedence."""

_POSITIVE, _TOKENS = click.FloatRange(min=0, min_open=True), click.IntRange(min=1)
_JOBS, _MOST_PAPERS = click.IntRange(min=1, max=64), click.IntRange(min=1, max=1000)
_most = partial(click.option, default=1, show_default=True)

selection = options.together(
    click.option("--paper-id", metavar="ID", help="One paper."),
    click.option(
        "--recent-days",
        type=_POSITIVE,
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
    _most("--max-papers", type=_MOST_PAPERS, help="How many papers at most."),
    click.option("--folder", metavar="DIR", help="A folder of papers: PDF, LaTeX, HTML, text."),
)
"""The options that select papers."""

provider_options = options.together(
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

budget_options = options.together(
    *(
        click.option(
            f"--max-{unit.lower()}{suffix}",
            type=kind,
            help=f"The most {unit} for {whose}, with earlier runs.",
        )
        for suffix, whose in (("", "all selected papers"), ("-per-paper", "each paper"))
        for unit, kind in (("USD", _POSITIVE), ("tokens", _TOKENS))
    )
)
"""The limits of what may be paid, which hold before each request."""

run_options = options.together(
    _most(
        "--jobs", type=_JOBS, help="How many papers at a time; each may take the memory of a model."
    ),
    options.output,
    options.as_json,
)


def settings_of(flags: dict[str, Any]) -> config.Settings:
    """The settings with the options of a command, which are taken out of `flags`.

    With the variables of the founding system.
    """
    settings = config.load_settings({"output_dir": flags.pop("output_dir", None)})
    papers, executor = settings.papers, settings.executor
    named = [name for name in config.PapersSettings.__struct_fields__ if name in flags]
    changes = {name: value for name in named if (value := flags.pop(name)) is not None}
    if "folder" in changes:
        changes["folder"] = str(Path(changes["folder"]).absolute())
        changes.setdefault("library", "folder")
    for name, variable in VARIABLES.items():
        default = getattr(config.PapersSettings(), name)
        if name not in changes and getattr(papers, name) == default:
            changes[name] = os.environ.get(variable) or default
    endpoint = executor.endpoint or os.environ.get("TRAINIUM_ENDPOINT", "")
    return msgspec.structs.replace(
        settings,
        papers=msgspec.structs.replace(papers, **changes),
        executor=msgspec.structs.replace(executor, endpoint=endpoint),
    )


def find(
    settings: config.Settings, flags: dict[str, Any], *, required: bool = True
) -> tuple["PaperLibrary", tuple[records.Paper, ...]]:
    """The library and the papers that the options select, which are taken out of `flags`.

    Raises UsageError.
    """
    from compilewatch.extras.papers.libraries import PaperQuery, open_library

    names = ("paper_id", "recent_days", "text", "draw", "max_papers")
    paper_id, recent_days, text, draw, max_papers = map(flags.pop, names)
    selections = sum(value is not None for value in (paper_id, recent_days, text))
    if selections > 1:
        raise UsageError("use one of --paper-id, --recent-days and --query")
    if required and not selections and not draw:
        raise UsageError("select papers with --paper-id, --recent-days, --query or --random")
    if text is not None and not text.strip():
        raise UsageError("--query is empty: give words or a query as JSON")
    query = PaperQuery(words=text or "", paper=paper_id or "")
    if query.words.lstrip().startswith(("{", "[")):
        try:
            clause = msgspec.json.decode(query.words, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            example = '{"match_all": {}}'
            raise UsageError(f"--query is no JSON object such as {example}: {error}") from None
        # Of a complete request body, the query.
        query = PaperQuery(clause=clause["query"] if set(clause) == {"query"} else clause)
    elif recent_days is not None:
        query = PaperQuery(minutes=round(recent_days * 1440))
    library = open_library(settings.papers)
    return library, library.find(query, max_papers, random=draw)


def provider_of(papers: config.PapersSettings, *, required: bool = True) -> "Provider":
    """The language model that the settings name. Raises UsageError if one is required."""
    from compilewatch.extras.papers.providers import BedrockProvider, ScriptedProvider

    if papers.provider == "scripted":
        return ScriptedProvider(Path(papers.replies_dir))
    if required and not papers.model:
        raise UsageError(
            "no model is chosen: set BEDROCK_MODEL_ID to one that `compilewatch papers preflight` "
            "lists, or use --provider scripted with the papers in inputs/papers"
        )
    return BedrockProvider(
        papers.model,
        region=papers.region,
        profile=papers.profile,
        endpoint_url=papers.endpoint_url,
    )


def process(
    settings: config.Settings, flags: dict[str, Any], *, as_json: bool
) -> tuple[PaperSummary, ...]:
    """Find papers, process them and print what became of them. Raises UsageError.

    `flags` select papers, and are the limits and other arguments of `run_papers`.
    """
    from compilewatch.extras.papers.calls import LIMITS
    from compilewatch.extras.papers.pipeline import run_papers

    limits = {name: flags.pop(name) for name in LIMITS}
    library, selected = find(settings, flags)
    if not selected:
        raise UsageError("no paper is selected; `compilewatch papers find` shows what there is")
    store = PaperStore(Path(settings.output_dir))
    names = {paper.id for paper in selected}
    earlier = sum(entry.paper in names for entry in store.ledger.entries())
    provider, say = provider_of(settings.papers), partial(click.echo, err=True)
    if not as_json:
        flags["observer"] = stage_lines()
    summaries = run_papers(settings, library, provider, selected, limits, say=say, **flags)
    options.show(summaries, as_json, lambda: print_summaries(summaries, store, earlier=earlier))
    unreadable = records.FindingClass.UNREADABLE
    if all(one.findings and one.findings[0].kind is unreadable for one in summaries):
        raise UsageError(f"no selected paper can be read: {summaries[0].findings[0].evidence}")
    return summaries


@click.command("find")
@selection
@options.as_json
def find_verb(*, as_json: bool, **flags: Any) -> int:
    """List the papers that a query selects, without reading or paying anything.

    Without OPENSEARCH_ENDPOINT, papers are searched in the folder inputs/papers/library. The exit
    status is 3 if no paper is found.
    """
    _, papers = find(settings_of(flags), flags, required=False)
    if as_json:
        options.print_json(papers)
    elif papers:
        rows = [(paper.id, paper.date[:10], paper.title, paper.location) for paper in papers]
        console().print(table(("paper", "date", "title", "location"), rows, gap=2))
    else:
        click.echo("no paper is found", err=True)
    return 0 if papers else 3


@click.command("generate")
@selection
@provider_options
@budget_options
@run_options
def generate_verb(*, as_json: bool, **flags: Any) -> int:
    """Let the model plan and write the code for papers; nothing is reviewed or run.

    `papers show` prints the code, and `papers run` continues from here without repeating a call.
    The exit status is 1 if there is no code for a paper.
    """
    settings = settings_of(flags)
    flags["until"] = PipelineStage.GENERATE
    summaries = process(settings, flags, as_json=as_json)
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
    type=click.Path(path_type=Path),
    help="What `trainium down --state` needs to stop the instance if this run is killed.",
)
@run_options
def run_verb(*, targets: str | None, as_json: bool, **flags: Any) -> int:
    """Read papers, let the model write code for them, check it, compile it and execute it.

    Stages that have a result are not repeated, and calls that have a reply are not sent again:
    running the same command again continues where it was. The exit status is 1 if something is
    wrong with a paper's code, and 3 if a stage was not run.
    """
    settings = settings_of(flags)
    flags["targets"] = names = tuple(split(targets) or ("dynamo", "export"))
    named = tuple(filter(None, [settings.papers.environment]))
    flags["environments"] = named or environments_for(names, settings)
    return exit_status(process(settings, flags, as_json=as_json))


@click.command("check")
@click.argument("paper")
@options.output
@options.as_json
def check_verb(*, paper: str, output_dir: str | None, as_json: bool) -> int:
    """Show the outcome of each stage of a paper, with its evidence.

    The exit status is 1 if something is wrong, and 3 if a stage was not run.
    """
    store = store_of(output_dir)
    folder = store.known(paper)
    summary = summarise_paper(folder.journal(), store.ledger.entries())
    options.show(summary, as_json, lambda: print_check(summary, folder.path))
    return exit_status((summary,))


@click.command("list")
@options.output
@options.as_json
def list_verb(*, output_dir: str | None, as_json: bool) -> int:
    """List the stored papers with what became of them and what they cost."""
    store = store_of(output_dir)
    summaries = store.summaries()
    options.show(summaries, as_json, lambda: print_summaries(summaries, store))
    return 0


@click.command("show")
@click.argument("paper")
@click.option("--version", "number", type=click.IntRange(min=0), help="A version (default: last).")
@options.output
@options.as_json
def show_verb(*, paper: str, number: int | None, output_dir: str | None, as_json: bool) -> int:
    """Print the code of a paper, with the findings about it and its provenance."""
    folder = store_of(output_dir).known(paper)
    version, _ = folder.version(number)
    options.show(version, as_json, lambda: print_version(version, folder.findings(version)))
    return 0


def store_of(output_dir: str | None) -> PaperStore:
    return PaperStore(Path(config.load_settings({"output_dir": output_dir}).output_dir))


@click.command("publish")
@options.output
@options.as_json
def publish_verb(*, output_dir: str | None, as_json: bool) -> int:
    """Write the report page, and send metrics to the services that are set.

    The services are the Pushgateway, Loki and CloudWatch (`cloudwatch.enabled`). Publishing again
    changes nothing. The exit status is 3 if a service did not accept the metrics.
    """
    from compilewatch.extras.papers.publication import publish_papers

    settings = config.load_settings({"output_dir": output_dir})
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
def preflight_verb(*, as_json: bool, **flags: Any) -> int:
    """Show which models can be used, and whether generated code can be confined here.

    With BEDROCK_MODEL_ID or --model, only that model is looked up; nothing is paid. The exit status
    is 1 if something is missing.
    """
    needs = preflight(settings_of(flags).papers)
    options.show(needs, as_json, lambda: print_preflight(needs))
    return 1 if needs["model_problem"] or needs["sandbox_problem"] else 0


def preflight(papers: config.PapersSettings) -> dict[str, Any]:
    """Look up models, prices, rules and the sandbox; nothing is paid.

    A problem that is empty means that what a run needs is there.
    """
    from compilewatch.extras.papers.calls import load_rules, price_of
    from compilewatch.extras.papers.execution import SandboxRunner

    models: tuple[dict[str, Any], ...] = ()
    model, problem, sandbox_problem = papers.model, "", ""
    try:
        provider = provider_of(papers, required=False)
        model, models = provider.model, provider.available()
        none = "no model is chosen: set BEDROCK_MODEL_ID to one of these"
        problem = models[0]["why"] if model else none
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
    return {
        "provider": papers.provider,
        "model": model,
        "models": models,
        "model_problem": problem,
        "price": price,
        "rules": f"version {rules.version}, {len(rules.rule)} rules",
        "sandbox_problem": sandbox_problem,
    }


STYLES = {"passed": "green", "failed": "red", "not_run": "dim", "incomplete": "yellow"}


def stage_lines() -> Callable[[records.StageResult], None]:
    """Print a line on standard error when a stage of a paper ends; from several threads too."""
    printer, since, lock = console(stderr=True), dict[str, float](), threading.Lock()

    def ended(result: records.StageResult) -> None:
        with lock:
            now = time.monotonic()
            seconds = now - since.get(result.paper, now)
            since[result.paper] = now
            text = result.findings[0].evidence if result.findings else result.detail
            name = f"{result.paper[:28]:28} "
            printer.print(_stage_line(name, result, f"{seconds:6.1f} s  {text}"))

    return ended


def _stage_line(before: str, result: records.StageResult, after: str) -> Text:
    outcome = f"{result.outcome.replace('_', ' '):8}"
    stage = plain(f"{before}{result.stage:9} ")
    return Text.assemble(stage, plain(outcome, STYLES[result.outcome]), plain(after))


def print_summaries(
    summaries: Sequence[PaperSummary], store: PaperStore, *, earlier: int | None = None
) -> None:
    """One line for each damaged line of what is stored, one for each paper, and the sums.

    `earlier` requests were sent before the run.
    """
    for note in store.damaged():
        click.echo(note, err=True)
    if not summaries:
        click.echo(f"no papers in {store.root}: start with `compilewatch papers run`")
        return
    rows = []
    for one in summaries:
        passed = sum(stage.outcome is StageOutcome.PASSED for stage in one.stages)
        state, of = (one.state, STYLES[one.state]), f"{passed} of {len(one.stages)}"
        rows.append((one.paper, state, of, str(one.repairs), _usd(one), _wrong(one)))
    headings = ("paper", "state", "stages", "repairs", "USD", "what is wrong")
    console().print(table(headings, rows, gap=2))
    usd = sum(one.spent["usd"] for one in summaries)
    requests = sum(one.spent["requests"] for one in summaries)
    counts = f"{plural(len(summaries), 'paper')}, {plural(requests, 'request')}"
    if earlier is not None:
        counts += f" ({requests - earlier} in this run)"
    click.echo(f"{counts}, ${usd:.4f}; {store.root}")
    if any(one.scripted for one in summaries):
        click.echo("Results marked as scripted come from prepared replies, not from a model.")


def _usd(one: PaperSummary) -> str:
    if one.spent["unpriced"]:
        return "unknown"
    return f"{one.spent['usd']:.4f}{' scripted' if one.scripted else ''}"


def _wrong(one: PaperSummary) -> str:
    reasons = [f"{finding.stage}: {finding.kind}: {finding.evidence}" for finding in one.findings]
    reasons += [f"{s.stage} was not run: {s.not_run}" for s in one.stages if s.not_run]
    return next(iter(reasons), "")


def print_check(summary: PaperSummary, folder: Path) -> None:
    """Every stage with its outcome and evidence."""
    out = console()
    out.print(plain(f"{summary.paper}: {summary.title}"))
    for stage in summary.stages:
        out.print(_stage_line("  ", stage, f" {stage.detail}" if stage.detail else ""))
        for finding in stage.findings:
            out.print(plain(f"            {finding.text}"))
        for name in stage.files:
            out.print(plain(f"            {folder / name}", "dim"))
    spent = summary.spent
    tokens = f"{spent['input_tokens']:,} + {spent['output_tokens']:,} tokens"
    counts = f"{plural(summary.repairs, 'repair')}, {plural(spent['requests'], 'request')}"
    used = f"model {summary.model or 'none'}, dataset {summary.dataset or 'none'}"
    out.print(plain(f"  {summary.state}; {counts}, {tokens}, {_usd(summary)} USD; {used}"))


def print_version(version: records.CodeVersion, findings: Sequence[records.PaperFinding]) -> None:
    """The code with its provenance as comments."""
    scripted = ", scripted" if version.scripted else ""
    lines = [
        f"# {version.paper}, version {version.number}, {version.id}",
        f"# model {version.model}{scripted}, paper {version.paper_sha256[:12]}, "
        f"prompt {version.prompt_sha256[:12]}, rules {version.rules_sha256[:12]}",
        *(f"# {finding.stage}: {finding.text}" for finding in findings),
        version.source,
    ]
    console().print(plain("\n".join(lines)))


def print_preflight(needs: dict[str, Any]) -> None:
    out = console()
    if needs["models"]:
        rows = [
            (row["model"], row["name"], row["status"], row["ends"][:10], row["why"] or "yes")
            for row in needs["models"]
        ]
        out.print(table(("model", "name", "status", "ends", "usable"), rows, gap=2))
    confined = needs["sandbox_problem"] or "generated code can be confined here"
    model = needs["model_problem"] or needs["model"]
    lines = {"model": model, "price": needs["price"], "rules": needs["rules"], "sandbox": confined}
    out.print(plain("\n".join(f"{name + ':':8} {text}" for name, text in lines.items())))


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
        *(find_verb, generate_verb, run_verb, check_verb),
        *(list_verb, show_verb, publish_verb, preflight_verb),
    ],
)
