"""`compilewatch profile compare`: is a model slower than before?"""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.config.settings import load_settings
from compilewatch.extras.profiles.cli.tables import comparison_table
from compilewatch.extras.profiles.infer.comparison import compare_profiles
from compilewatch.extras.profiles.infer.records import Verdict
from compilewatch.extras.profiles.infer.store import open_profile
from compilewatch.report.terminal.pieces import console

FOUND = 1
NOTHING_COMPARED = 3


@click.command("compare")
@click.argument("before")
@click.argument("after", default="latest")
@click.option("--model", metavar="NAME", help="The model, where a folder has profiles of several.")
@click.option(
    "--fail-on",
    type=click.Choice(("slower",)),
    help="Exit with status 1 if a target is slower at any batch size, beyond noise.",
)
@options.output
@options.as_json
def command(
    *,
    before: str,
    after: str,
    model: str | None,
    fail_on: str | None,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Say which of two profiles of a model is faster: BEFORE, or AFTER (the latest by default).

    A profile is named by its id or the beginning of it, by its folder, or by `latest`. "Slower" is
    claimed only beyond noise: by rank sums of the rounds (p < 0.01) and for at least 7 %. Exit
    statuses: 0 compared; 1 a condition of --fail-on is met; 2 wrong input; 3 nothing could be
    compared, such as profiles of different machines.
    """
    root = Path(load_settings({"output_dir": output_dir}).output_dir).absolute()
    old = open_profile(root, before, model)
    new = open_profile(root, after, model or old.profile.model)
    found = compare_profiles(old.profile, old.samples(), new.profile, new.samples())
    if as_json:
        options.print_json(found)
    else:
        console().print(comparison_table(found))
    if found.obstacle or all(p.judgement.verdict is Verdict.UNCLEAR for p in found.points):
        return NOTHING_COMPARED
    if fail_on == "slower" and (slower := found.of(Verdict.SLOWER)):
        names = ", ".join(f"{p.target} at batch {p.batch_size}" for p in slower)
        click.echo(f"compilewatch: --fail-on: slower: {names}", err=True)
        return FOUND
    return 0
