"""Commands about stored runs; none evaluates a model, but for `compare --attribute`."""

import contextlib
import difflib
import sys
import tempfile
import webbrowser
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from compilewatch import errors, plugins
from compilewatch.analysis.comparison import as_on
from compilewatch.analysis.leverage import By, FixOrder, Leverage, verified_fixes
from compilewatch.analysis.summary import target_order, targets_in_order
from compilewatch.api import publish as publishing
from compilewatch.api.choose import split
from compilewatch.cli import completion, conditions, options
from compilewatch.cli.tables import changes_table, fixes_table, print_view, runs_table
from compilewatch.config import Settings, load_settings
from compilewatch.contract.targets import canonical
from compilewatch.errors import UsageError
from compilewatch.plan import load_expectations
from compilewatch.records import Build, ConfigBuild, FactoryBuild, ModelSpec, Result
from compilewatch.report.terminal import console, model_panel, row_panel, table
from compilewatch.report.wording import memory, plural
from compilewatch.sinks import ADDRESSES, remote_sinks
from compilewatch.sources.own import own_model
from compilewatch.sources.select import in_pool
from compilewatch.store import Store, StoredRun, freed_bytes, restore_artifacts

_baseline = click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=completion.runs,
    help="Compare with RUN instead of the run's own baseline.",
)


def _opened(output_dir: str | None) -> tuple[Settings, Store]:
    settings = load_settings({"output_dir": output_dir})
    return settings, Store(Path(settings.output_dir))


@click.command("runs")
@options.output
@options.as_json
def runs_command(output_dir: str | None, as_json: bool) -> None:
    """List the stored runs, newest first, with the requests that pass out of those planned."""
    _, store = _opened(output_dir)
    stored, problems = store.scan()
    runs = [one.run for one in stored]
    if as_json:
        options.print_json(runs)
    else:
        outcomes, damaged = store.outcomes([run.id for run in runs])
        problems += tuple(damaged)
        counts = Counter((one.earlier.run, one.earlier.status) for one in outcomes)
        console().print(runs_table(runs, counts))
    for problem in problems:
        click.echo(f"compilewatch: {problem}", err=True)


@click.command("show")
@click.argument("model", shell_complete=completion.models)
@click.option(
    "--run",
    "reference",
    shell_complete=completion.runs,
    help="The run (default: the newest with a verdict on the model).",
)
@click.option(
    "--artifacts",
    "folder",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the artifacts to this folder, decompressed: DIRECTORY/TARGET/…",
)
@click.option("--open", "in_browser", is_flag=True, help="Open the pages of tlparse in a browser.")
@options.output
@options.verbose
@options.as_json
def show_command(
    model: str,
    reference: str | None,
    folder: Path | None,
    in_browser: bool,
    output_dir: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Show the stored results of MODEL on each target and mode, and which target fails first."""
    _, store = _opened(output_dir)
    runs = (store.open(reference),) if reference else store.runs()
    stored, results = newest_results(model, runs, named=reference is not None)
    names = tuple(dict.fromkeys(name for result in results for name in result.artifacts))
    if in_browser:
        _open(stored, names, folder)
    elif folder is not None and not restore_artifacts(names, stored.path, folder):
        raise UsageError(f"run {stored.run.id} has no artifacts of this model")
    if as_json:
        options.print_json(results)
        return
    click.echo(f"Run {stored.run.id}")
    results.sort(key=lambda result: target_order(result.request.target))
    if len(results) > 1:
        console().print(row_panel(results))
    for number, result in enumerate(results):
        if number:
            click.echo()
        console().print(model_panel(result, verbose=verbose))
    from compilewatch.report.html import file_name

    page = stored.path / "report" / "models" / file_name(results[0].request.model.name, set())
    if page.exists():
        click.echo(f"\nPage: {page}")


def _open(stored: StoredRun, names: Sequence[str], folder: Path | None) -> None:
    """Write artifacts to `folder`, or to a temporary one, and open tlparse's pages among them.

    Raises UsageError if there are no such pages, or no browser.
    """
    if not any(name.endswith("/tlparse.zip") for name in names):
        raise UsageError(f"run {stored.run.id} has no pages of tlparse for this model")
    # The folder is not deleted: the browser still reads it after this process has ended.
    folder = folder or Path(tempfile.mkdtemp(prefix="compilewatch-pages-"))
    for path in restore_artifacts(names, stored.path, folder):
        is_index = path.parts[-2:] == ("tlparse", "index.html")
        if is_index and not webbrowser.open(path.absolute().as_uri()):
            raise UsageError(f"no browser can be started; open this file yourself: {path}")


def newest_results(
    model: str, runs: tuple[StoredRun, ...], *, named: bool = False
) -> tuple[StoredRun, list[Result]]:
    """The newest run with a verdict on a model, else the newest with any result, and its results.

    Raises UnknownModelError with similar names.
    """
    known: dict[str, ModelSpec] = {}
    passed_over: list[tuple[StoredRun, list[Result]]] = []
    for stored in runs:
        try:
            results = stored.results()
        except errors.StoreError as error:
            if named:
                raise
            click.echo(f"compilewatch: {error}; reading older runs instead", err=True)
            continue
        for line in stored.damaged:
            click.echo(f"note: {line}", err=True)
        specs = {result.request.model.name: result.request.model for result in results}
        spec = _meant(model, list(specs.values()))
        known |= specs
        of_model = [r for r in results if spec is not None and r.request.model.name == spec.name]
        if of_model and (named or any(result.is_conclusive for result in of_model)):
            if passed_over:
                newer = ", ".join(run.run.id for run, _ in passed_over)
                click.echo(f"Newer runs without a verdict on this model: {newer}", err=True)
            return stored, of_model
        passed_over += [(stored, of_model)] if of_model else []
    if passed_over:
        return passed_over[0]
    names = {name.lower(): name for name in (*known, *(spec.family for spec in known.values()))}
    near = difflib.get_close_matches(model.lower(), names, n=4, cutoff=0.5)
    explain = "`compilewatch explain` checks any model"
    hint = f"similar names: {', '.join(names[name] for name in near)}" if near else explain
    raise errors.UnknownModelError(f"no stored result of {model!r}; {hint}")


def _meant(model: str, stored: Sequence[ModelSpec]) -> ModelSpec | None:
    """The stored model that `explain` would choose for this name (also for a path or module)."""
    if (stored_spec := in_pool(model, stored)) is not None:
        return stored_spec
    with contextlib.suppress(errors.ConfigError):
        if (own := own_model(model)) is not None:
            return next((spec for spec in stored if _same(spec.build, own.build)), None)
    return None


def _same(one: Build, other: Build) -> bool:
    """Whether two builds are of the same factory or configuration file, whatever its content."""
    if isinstance(one, FactoryBuild) and isinstance(other, FactoryBuild):
        return one.factory == other.factory
    if isinstance(one, ConfigBuild) and isinstance(other, ConfigBuild):
        return one.config_file == other.config_file
    return False


@click.command("compare")
@click.argument("base", shell_complete=completion.runs)
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option(
    "--environments",
    metavar="A,B",
    help="Compare environment A of BASE with environment B of RUN (or of BASE without RUN).",
)
@click.option(
    "--devices",
    metavar="A,B",
    help="Compare device A of BASE with device B of RUN (or of BASE without RUN).",
)
@click.option(
    "--attribute",
    "attributing",
    is_flag=True,
    help="Say who changed each verdict: torch, Transformers, both together, or compilewatch.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="With --attribute: how many changes are evaluated, most downloaded models first.",
)
@conditions.option
@options.output
@options.as_json
def compare_command(
    base: str,
    run: str | None,
    environments: str | None,
    devices: str | None,
    attributing: bool,
    limit: int,
    fail_on: conditions.Conditions,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Show what changed from run BASE to RUN (the latest by default).

    A regression is reported only if both runs have a verdict. --environments shows which verdicts
    differ between two environments, such as two versions of torch, and --devices those that differ
    between two devices, such as cpu,cuda.

    --attribute evaluates the models whose verdict changed with the old torch and the new
    Transformers, and the reverse, in environments that are created when they are needed.
    """
    if devices is not None and (environments is not None or attributing):
        raise UsageError("--devices cannot be combined with --environments or --attribute")
    settings, store = _opened(output_dir)
    before = store.open(base)
    after = store.open(run or ("latest" if environments is devices is None else base))
    for line in dict.fromkeys((*before.damaged, *after.damaged)):
        click.echo(f"note: {line}", err=True)
    names: tuple[str, str] | None = None
    if environments is not None:
        names = _two(environments, "--environments", "default,torch-2.9")
        seen = publishing.view_between(before, after, names)
    elif devices is not None:
        old, new = map(canonical, _two(devices, "--devices", "cpu,cuda"))
        seen = publishing.view_between(before, after, (old, new), "device")
    else:
        seen = publishing.view(store, after, baseline=before)
    if attributing:
        olds: Iterable[Result] = before.results()
        if names is not None:
            inside = [r for r in olds if r.request.target.environment == names[0]]
            olds = as_on(inside, environment=names[1])
        print_attributions = plugins.load("compilewatch.extras.history.cli:print_attributions")
        print_attributions(
            settings, seen, olds, limit=limit, by_place=names is not None, as_json=as_json
        )
    elif as_json:
        print_view(store, seen, as_json)
    else:
        console().print(changes_table(seen))
    return conditions.exit_status(seen, fail_on)


def _two(text: str, option: str, example: str) -> tuple[str, str]:
    """The two names of an option. Raises UsageError for fewer or more."""
    names = split(text) or []
    if len(names) != 2:
        raise UsageError(f"{option} takes two names, such as {example}")
    return names[0], names[1]


@click.command("leverage")
@click.argument("run", default="latest", shell_complete=completion.runs)
@click.option(
    "--by",
    type=click.Choice([member.value for member in By]),
    default=By.LINE.value,
    show_default=True,
    help="line: one reason in one function; id: one reason (GB id) wherever it occurs; "
    "operator: one that a forecast for Neuron finds no lowering for; compilations: a line that "
    "makes Dynamo compile again for other sizes (sweep --shapes).",
)
@click.option(
    "--order",
    type=click.Choice([member.value for member in FixOrder]),
    default=FixOrder.MODELS.value,
    show_default=True,
    help="Choose each step for the models, or for the downloads, that it gains.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many steps."
)
@click.option(
    "--target",
    "label",
    metavar="LABEL",
    help="Only this target, such as dynamo/train (default: the first one with graph breaks).",
)
@options.output
@options.as_json
def leverage_command(
    *,
    run: str,
    by: str,
    order: str,
    top: int,
    label: str | None,
    output_dir: str | None,
    as_json: bool,
) -> None:
    """Show what to fix first, so that most models of RUN have no graph break any more.

    Each step names a line (or an id of PyTorch's registry of graph breaks) and the models without
    any graph break once it is fixed too. RUN is the latest run by default; nothing is evaluated.
    """
    stored = _opened(output_dir)[1].open(run)
    results = stored.results()
    if label is not None:
        known = targets_in_order(results)
        if label not in known:
            hint = (
                errors.did_you_mean(label, known) or f"; it has {', '.join(known) or 'no results'}"
            )
            raise UsageError(f"run {stored.run.id} has no target {label!r}{hint}")
    steps = Leverage(results, by=By(by), order=FixOrder(order), top=top, target=label)
    fixes, notes = publishing.stored_fixes(stored)
    for note in (*stored.damaged, *notes):
        click.echo(f"note: {note}", err=True)
    verified = verified_fixes(steps, results, fixes)
    if as_json:
        options.print_json({**steps.to_json(), "verified": verified})
        return
    click.echo(f"Run {stored.run.id}")
    console().print(fixes_table(steps, verified))


@click.command("report")
@click.argument("run", default="latest", shell_complete=completion.runs)
@_baseline
@options.output
@options.as_json
def report_command(run: str, baseline: str | None, output_dir: str | None, as_json: bool) -> None:
    """Write the HTML report, junit.xml and metrics.prom of RUN (the latest by default)."""
    settings, store = _opened(output_dir)
    stored = store.open(run)
    expectations = load_expectations(Path(settings.expectations_file))
    seen = publishing.view(store, stored, baseline=baseline, expectations=expectations)
    for note in seen.notes:
        click.echo(f"note: {note}", err=True)
    published = publishing.publish(store, seen, publishing.load_sinks(settings.sinks, settings))
    if as_json:
        options.print_json({"said": published.lines, "failures": published.failures})
    else:
        for line in published.lines:
            path = stored.path / line
            click.echo(path if path.is_file() else line)
    if published.failures:
        raise errors.SinkError("; ".join(published.notes))


@click.command("publish")
@click.argument("run", default="latest", shell_complete=completion.runs)
@click.option("--to", metavar="SINK,…", help="Send to these only (default: all with an address).")
@_baseline
@click.option(
    "--replace",
    is_flag=True,
    default=None,
    help="Replace the metrics of another selection of models in the Pushgateway.",
)
@options.output
@options.as_json
def publish_command(
    run: str,
    to: str | None,
    baseline: str | None,
    replace: bool | None,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Send RUN (the latest by default) and the runs in the spool to the configured services.

    The metrics of a run replace those of the run before. A run that selects other models than the
    published ones is not sent to the Pushgateway without --replace.

    Publishing the same run twice changes nothing. If a service does not accept a run, the run stays
    in the spool for the next publication, and the exit status is 3.
    """
    settings = load_settings({"output_dir": output_dir, "pushgateway_replace": replace})
    names = split(to) or list(remote_sinks(settings))
    if not names:
        known = ", ".join(ADDRESSES.values())
        raise UsageError(f"no service is configured: set one of {known} in compilewatch.toml")
    sinks = publishing.load_sinks(names, settings)
    store = Store(Path(settings.output_dir))
    stored = store.open(run)
    if stored.path.resolve().parent != store.root.resolve():
        raise UsageError(
            f"{stored.path} is not in {store.root}: name its folder of runs with --output, or copy "
            "it into that folder with compilewatch merge"
        )
    if stored.run.state == "running":
        raise UsageError(f"run {stored.run.id} is still being written: wait until it has finished")
    if stored.run.shard is not None and "pushgateway" in names:
        raise UsageError(
            f"run {stored.run.id} is shard {stored.run.shard}: its metrics would replace those of "
            "the complete run; join the shards with compilewatch merge and publish the merged run"
        )
    expectations = load_expectations(Path(settings.expectations_file))
    seen = publishing.view(store, stored, baseline=baseline, expectations=expectations)
    published = publishing.publish(store, seen, sinks)
    publishing.report_health(store, settings, published)
    if as_json:
        options.print_json(
            {"said": published.lines, "failures": published.failures, "notes": seen.notes}
        )
    else:
        for note in seen.notes:
            click.echo(f"compilewatch: {note}", err=True)
        for line in published.lines:
            click.echo(line)
        for note in published.notes:
            click.echo(f"compilewatch: {note}", err=True)
    return conditions.INCOMPLETE if published.failures else 0


@click.command("prune")
@click.option(
    "--keep",
    metavar="N",
    type=click.IntRange(min=1),
    help="Keep the N newest finished runs of each selection.",
)
@click.option(
    "--keep-days",
    "days",
    metavar="D",
    type=click.IntRange(min=1),
    help="Keep the runs that started in the last D days.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option(
    "--yes", is_flag=True, help="Delete without confirmation; required if there is no terminal."
)
@options.output
@options.as_json
def prune_command(
    keep: int | None,
    days: int | None,
    dry_run: bool,
    yes: bool,
    output_dir: str | None,
    as_json: bool,
) -> None:
    """Delete stored runs that newer ones have superseded, after listing them.

    With both rules, a run is kept if either rule keeps it. Two runs belong to the same selection
    if `compare` would use one as the baseline of the other: the same source, models, targets with
    modes and environments, depth, tier and shard. Whatever N and D are, these runs are kept: the
    newest finished run of each selection, outputs/latest, a run that is being written, a run that
    waits to be published, and the baseline of such a run. An interrupted run is treated like a
    finished one.

    Exit statuses: 0 success, or nothing to do; 2 wrong input, or a run that cannot be deleted; 130
    interrupted: each run is then either deleted or complete.
    """
    if keep is None and days is None:
        raise UsageError("say what to keep: --keep N, --keep-days D or both")
    confirm = not (yes or dry_run)
    if confirm and (as_json or not _is_interactive()):
        raise UsageError("there is no terminal to confirm on: add --yes to delete, or --dry-run")
    _, store = _opened(output_dir)
    superseded, held = publishing.review(store, keep=keep, days=days, now=datetime.now(UTC))
    stored, problems = store.scan()
    kept = len(stored) - len(superseded)
    freed = freed_bytes(store.root / candidate.run for candidate in superseded)
    if not as_json:
        _print_candidates("To delete", superseded)
        _print_candidates("Superseded, but kept", held)
        for problem in problems:
            click.echo(f"compilewatch: not deleted: {problem}", err=True)
        size = f"{plural(len(superseded), 'run')}, {memory(freed)}"
        click.echo(f"To delete: {size}. To keep: {plural(kept, 'run')}.")
    if confirm and superseded and not click.confirm("Delete them?"):
        click.echo("Nothing was deleted.")
        return
    deleted = [] if dry_run else list(publishing.prune(store, superseded))
    if as_json:
        review = {"superseded": superseded, "held": held, "kept": kept, "freed_bytes": freed}
        options.print_json({"review": review, "deleted": deleted, "problems": problems})
    elif deleted:
        click.echo(f"Deleted: {size}.")


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _print_candidates(title: str, runs: Sequence[publishing.Candidate]) -> None:
    if runs:
        lines = (
            ((run.run, "bold"), run.source, run.state, memory(run.bytes), run.why) for run in runs
        )
        console().print(table((title, "Source", "State", ">Size", "Why"), lines))
        click.echo()
