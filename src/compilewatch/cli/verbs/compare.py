"""`compilewatch compare`: what changed between two runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from compilewatch import plugins
from compilewatch.analysis.comparison import as_on
from compilewatch.api.selection import split
from compilewatch.api.view import view, view_between, view_between_devices
from compilewatch.cli import completion, conditions, options
from compilewatch.cli.rendering.tables import changes_table, print_view
from compilewatch.config import load_settings
from compilewatch.contract.targets import canonical
from compilewatch.errors import UsageError
from compilewatch.records import Result
from compilewatch.report.terminal import console
from compilewatch.store import Store


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
def command(
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
    settings = load_settings({"output_dir": output_dir})
    store = Store(Path(settings.output_dir))
    before = store.open(base)
    after = store.open(run or ("latest" if environments is devices is None else base))
    for line in dict.fromkeys((*before.damaged, *after.damaged)):
        click.echo(f"note: {line}", err=True)
    names: tuple[str, str] | None = None
    if environments is not None:
        names = _two(environments, "--environments", "default,torch-2.9")
        seen = view_between(before, after, names)
    elif devices is not None:
        old, new = map(canonical, _two(devices, "--devices", "cpu,cuda"))
        seen = view_between_devices(before, after, (old, new))
    else:
        seen = view(store, after, baseline=before)
    if attributing:
        olds: Iterable[Result] = before.results()
        if names is not None:
            inside = [r for r in olds if r.request.target.environment == names[0]]
            olds = as_on(inside, environment=names[1])
        print_attributions = plugins.provided("attribution", "compare --attribute")
        print_attributions(
            store, settings, seen, olds, limit=limit, by_place=names is not None, as_json=as_json
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
