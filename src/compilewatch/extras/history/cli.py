"""`compilewatch bisect`, and `compare --attribute`: who changed a model's result."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from compilewatch import records
from compilewatch.api import choose
from compilewatch.cli import completion, options
from compilewatch.cli.conditions import INCOMPLETE
from compilewatch.cli.tables import changes_table
from compilewatch.config import Settings, load_settings
from compilewatch.contract.targets import target_label
from compilewatch.environments import Environments
from compilewatch.environments.creation import ensure, release_of
from compilewatch.errors import UnknownModelError, UsageError
from compilewatch.extras.history import attribute, bisect
from compilewatch.report import terminal
from compilewatch.report.wording import OUTCOME_LABELS, ResultGroup, outcome, plural


@click.command("bisect")
@click.argument("model", shell_complete=completion.models)
@click.option(
    "--package", type=click.Choice(bisect.PACKAGES), default="transformers", show_default=True
)
@click.option("--good", metavar="VERSION", required=True, help="One end: a release of the package.")
@click.option("--bad", metavar="VERSION", required=True, help="The other end, newer or older.")
@click.option("--torch", metavar="VERSION", help="The torch that stays the same (the installed).")
@click.option("--transformers", metavar="VERSION", help="The Transformers, likewise.")
@options.one_target
@options.nested_graph_breaks
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=40,
    show_default=True,
    help="How many changed lines of each file are shown.",
)
@options.output
@options.as_json
def bisect_command(
    *,
    model: str,
    package: str,
    good: str,
    bad: str,
    torch: str | None,
    transformers: str | None,
    target: str,
    mode: str,
    dynamic: bool | None,
    device: str | None,
    lines: int,
    as_json: bool,
    **flags: Any,
) -> int:
    """Find the two adjacent releases between which the result of MODEL changed.

    The result is its verdict and its set of graph breaks. Each release is evaluated in a
    separate environment, which is created when it is needed and kept; it shares the files of
    torch with others of the same torch. Results are stored, so that a search that was interrupted
    continues where it was. The exit status is 3 if the result of --good or --bad is not known.
    """
    settings = load_settings(flags | {"devices": choose.split(device), "jobs": 1})
    other = _other(settings, package, torch, transformers)
    environments = Environments(settings.cache_folder)
    asked = choose.one_target(target, mode=mode, dynamic=dynamic, settings=settings)
    choose.check_nested_graph_breaks([asked], settings, asked=flags["nested_graph_breaks"])
    versions = bisect.candidates(package, good, bad)
    evaluator = bisect.Evaluator(
        settings=settings,
        launch=lambda chosen, names: choose.local_launcher(chosen, names, single=True),
        selection={"bisect": package},
    )
    err = terminal.console(stderr=True)
    bisection = bisect.bisect(
        model,
        asked,
        package,
        other,
        versions,
        evaluator,
        choose=lambda name, environment: choose.one_model(settings, name, environment=environment),
        prepare=partial(ensure, environments, observer=options.show_creation),
        report=lambda *evaluation: err.print(evaluated_line(package, *evaluation)),
    )
    ends = bisection.evaluated[0], bisection.evaluated[-1]
    if all(end.kind is bisect.Kind.ABSENT for end in ends):
        raise UnknownModelError(ends[1].detail, model)
    changes = bisect.source_changes(bisection, environments, lines)
    if as_json:
        last, first = bisection.pair or (None, None)
        printed = {
            "releases": versions,
            "evaluated": bisection.evaluated,
            "last": last,
            "first": first,
            "between": bisection.between,
        }
        facts = {"model": model, "package": package, "other": other}
        options.print_json(facts | {"bisection": printed, "changes": changes})
    else:
        words = _conclusion(bisection, model, package, other)
        terminal.console().print(bisection_table(bisection, changes, words))
    return INCOMPLETE if bisect.Kind.UNDETERMINED in {end.kind for end in ends} else 0


def _other(settings: Settings, package: str, torch: str | None, transformers: str | None) -> str:
    """The release of the package that stays the same. Raises UsageError, InterpreterError."""
    named = {"torch": torch, "transformers": transformers}
    if named[package] is not None:
        raise UsageError(f"--{package} stays the same: choose another --package, or omit it")
    (name,) = set(named) - {package}
    if (release := named[name]) is not None:
        return release
    installed = Environments(settings.cache_folder).describe(records.DEFAULT_ENVIRONMENT)
    return release_of(installed.torch if name == "torch" else installed.transformers or "0")


DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def evaluated_line(package: str, one: bisect.Evaluated, number: int, limit: int) -> Text:
    """`2 of at most 7: transformers 5.4.0  graph break: GB0170 …  (evaluated in …)`."""
    origin = f"from run {one.run}" if one.reused else f"evaluated in {one.environment}"
    line = terminal.plain(f"{number} of at most {limit}: {package} {one.release}  ")
    line.append_text(_result(one))
    return line.append(f"  ({origin if one.run else 'not evaluated'})", style="dim")


def bisection_table(
    bisection: bisect.Bisection, changes: Sequence[bisect.FileChange], conclusion: str
) -> RenderableType:
    """Every release that was evaluated, what changed between which two, and the changed lines."""
    table = terminal.plain_table("Release", "Result", "Environment", "Run", gap=2)
    for one in bisection.evaluated:
        style = "bold" if one.release in (bisection.pair or ()) else ""
        cells = terminal.plain(one.environment), terminal.plain(one.run or "")
        table.add_row(terminal.plain(one.release, style), _result(one), *cells)
    parts: list[RenderableType] = [table, terminal.plain(conclusion)]
    if bisection.pair is not None and not changes:
        parts.append(
            terminal.plain("The model's file and those with graph breaks are the same in both.")
        )
    for change in changes:
        lines = (terminal.plain(line, DIFF_STYLES.get(line[:1], "")) for line in change.lines)
        parts += [terminal.plain(change.file, "bold"), terminal.Indented(Text("\n").join(lines))]
    return terminal.spaced(parts)


def _conclusion(bisection: bisect.Bisection, model: str, package: str, other: str) -> str:
    stays = f"with {'transformers' if package == 'torch' else 'torch'} {other}"
    evaluations = plural(len(bisection.evaluated), "evaluation")
    count = f"{evaluations} of {len(bisection.releases)} releases"
    ends = bisection.evaluated[0], bisection.evaluated[-1]
    unknown = [one.release for one in ends if one.kind is bisect.Kind.UNDETERMINED]
    if unknown:
        return f"Not determined: nothing is known of {package} {' and '.join(unknown)}. {count}."
    if bisection.pair is None:
        between = f"between {package} {ends[0].release} and {ends[1].release}"
        return f"{model} has the same result at both ends, {between}, {stays}. {count}."
    last, first = bisection.pair
    change = f"{model} changed between {package} {last} and {first}, {stays}"
    lines = [f"{change}. {count}."]
    before, after = bisection.of(last), bisection.of(first)
    lines += [f"  only in {last}: {_place(one)}" for one in after.lacks(before)]
    lines += [f"  only in {first}: {_place(one)}" for one in before.lacks(after)]
    if bisection.between:
        lines.append(f"Nothing is known of the releases between: {', '.join(bisection.between)}.")
    if bisection.changes_again:
        lines.append(
            f"The result of {ends[1].release} is another one still: search on with "
            f"--good {first} --bad {ends[1].release}."
        )
    return "\n".join(lines)


def _place(graph_break: records.GraphBreak) -> str:
    where = f"{graph_break.file}:{graph_break.line} in {graph_break.function}"
    return f"{records.reason_label(graph_break)} at {where}"


def _result(one: bisect.Evaluated) -> Text:
    if one.kind is bisect.Kind.ABSENT:
        return terminal.plain("no such model", "dim")
    if one.status is None or one.phase is None:
        return terminal.plain(f"not known: {one.detail}", terminal.STYLES[ResultGroup.NO_VERDICT])
    group = outcome(records.Earlier("", one.status, one.phase))
    why = "; ".join(sorted(set(map(records.reason_label, one.breaks)))) or one.code
    if group is ResultGroup.PASS:
        why = "" if one.fullgraph is not False else "fullgraph=True rejected"
    elif group in (ResultGroup.NO_VERDICT, ResultGroup.NOT_RUN):
        why = f"{one.status.value} in {one.phase.value}: {one.detail}"
    return terminal.plain(
        OUTCOME_LABELS[group] + (f": {why}" if why else ""), terminal.STYLES[group]
    )


def print_attributions(
    settings: Settings,
    seen: records.RunView,
    olds: Iterable[records.Result],
    *,
    limit: int,
    by_place: bool,
    as_json: bool,
) -> None:
    """Print who changed each verdict of a comparison; a line to stderr before each evaluation.

    `olds` are the results that the run is compared with. `limit` is how many changes are evaluated.
    With `by_place`, both sides are environments of this machine.
    """
    evaluator = bisect.Evaluator(
        settings=settings,
        launch=lambda chosen, names: choose.local_launcher(chosen, names),
        selection={"attribute": seen.run.id},
    )

    def report(versions: attribute.Versions, target: str, models: int) -> None:
        click.echo(f"{versions}: evaluating {plural(models, 'model')} on {target}", err=True)

    assert seen.baseline is not None
    attributions = attribute.attribute_changes(
        attribute.Side.of(seen.baseline, olds),
        attribute.Side.of(seen.run, seen.results),
        seen.changes,
        evaluator,
        partial(ensure, Environments(settings.cache_folder), observer=options.show_creation),
        limit=limit,
        by_place=by_place,
        report=report,
    )
    tables = terminal.spaced([changes_table(seen), attributions_table(attributions)])
    options.show(attributions, as_json, tables)


CAUSE_LABELS = {
    attribute.ChangeCause.TORCH: "torch",
    attribute.ChangeCause.TRANSFORMERS: "Transformers",
    attribute.ChangeCause.INTERACTION: "both together",
    attribute.ChangeCause.HARNESS: "compilewatch",
    attribute.ChangeCause.NOT_DETERMINED: "not determined",
}


def attributions_table(attributions: Sequence[attribute.Attribution]) -> RenderableType:
    """A row for each change between two verdicts, and how many have which cause."""
    if not attributions:
        return terminal.plain("No verdict changed, so that there is nothing to attribute.")
    table = terminal.plain_table("Changed by", "Model", "Target", "Change", "Why", gap=2)
    for attribution in attributions:
        change = " -> ".join(
            side.value if side else "none" for side in (attribution.before, attribution.after)
        )
        style = "dim" if attribution.cause is attribute.ChangeCause.NOT_DETERMINED else "bold"
        cells = (attribution.model, target_label(attribution.target), change, attribution.detail)
        table.add_row(
            terminal.plain(CAUSE_LABELS[attribution.cause], style), *map(terminal.plain, cells)
        )
    counts = Counter(attribution.cause for attribution in attributions)
    words = ", ".join(
        f"{CAUSE_LABELS[cause]} {counts[cause]}" for cause in attribute.ChangeCause if counts[cause]
    )
    return terminal.spaced([table, terminal.plain(f"Changed by: {words}.")])
