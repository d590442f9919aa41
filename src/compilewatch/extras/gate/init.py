"""`compilewatch init`: bring the gate into a repository."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import click

from compilewatch.errors import UsageError
from compilewatch.extras.gate.scaffold import MOST_MODELS, TEST, changes, proposed_models
from compilewatch.extras.gate.settings import project_root


@click.command("init")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODULE:FACTORY",
    help="A model to check; may be given several times (default: the first ones of the packages).",
)
@click.option(
    "--action",
    metavar="OWNER/REPOSITORY@REF",
    help="Where the workflow finds compilewatch's action (default: it installs it by pip).",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
def command(*, models: tuple[str, ...], action: str | None, yes: bool) -> int:
    """Write a test, the settings and a GitHub workflow of the gate into this repository.

    It shows what it will write, and asks on a terminal. A file that exists is never overwritten;
    pyproject.toml gets the table `[tool.compilewatch]` at its end if it has none.
    """
    root = project_root(Path.cwd())
    if action is not None and not re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[\w./-]+", action):
        raise UsageError(f"--action {action}: name OWNER/REPOSITORY@REF")
    chosen = list(models) or proposed_models(root)
    if not chosen:
        raise UsageError(
            "no model was found that needs no arguments: name one with --model MODULE:FACTORY"
        )
    if not models and len(chosen) > MOST_MODELS:
        click.echo(
            f"{len(chosen)} models need no arguments; the first {MOST_MODELS} are used. "
            "Name others with --model."
        )
        chosen = chosen[:MOST_MODELS]
    made, left = changes(root, chosen, action)
    for change in made:
        what = "add to the end of" if change.appended else "write"
        click.echo(f"{what} {change.path.relative_to(root)}:\n")
        click.echo(textwrap.indent(change.content.strip(), "    ") + "\n")
    for line in left:
        click.echo(f"left as it is: {line}")
    if not made:
        return 0
    if not yes:
        if not _on_terminal():
            raise UsageError("nothing is written without a terminal to ask: add --yes")
        if not click.confirm("Write this?"):
            click.echo("Nothing is written.")
            return 0
    for change in made:
        change.write()
    click.echo(f"Next: pytest {TEST} --compilewatch-update, and commit the baseline with them.")
    return 0


def _on_terminal() -> bool:
    return sys.stdin.isatty()
