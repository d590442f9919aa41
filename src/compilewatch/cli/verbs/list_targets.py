"""`compilewatch list-targets`: what this machine can run, and why not the rest."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from compilewatch import environments
from compilewatch.cli import options
from compilewatch.cli.rendering.pieces import console
from compilewatch.cli.worker_call import readiness
from compilewatch.config.settings import Settings, load_settings
from compilewatch.contract.targets import TARGETS
from compilewatch.errors import InterpreterError
from compilewatch.plan.placement import needs, place
from compilewatch.records import Environment, Record, Target


class Listed(Record, frozen=True, kw_only=True):
    """One target in the environment that a sweep would ask it in; `why` it cannot run there."""

    target: str
    environment: str
    runs: bool
    why: str = ""


def listed_targets(settings: Settings, *, fresh: bool = False) -> tuple[Listed, ...]:
    """Every registered target. Each environment is asked once, or what it said is taken."""
    cache = settings.cache_folder
    known: list[Environment] = []
    missing: dict[str, dict[str, str | None]] = {}
    broken: dict[str, str] = {}
    for name in options.environments_for(TARGETS, settings):
        try:
            known.append(environments.describe(name, cache, fresh=fresh))
            missing[name] = readiness(name, cache, fresh=fresh).missing
        except InterpreterError as error:
            broken[name] = f"{error}; see: compilewatch env check {name}"
    named = [name for name in settings.environments if name not in broken]
    placed = place([Target(name=name) for name in TARGETS], named, known)
    found = []
    for target in placed:
        name = target.environment
        why: str | None = broken.get(name) or needs(target)
        if name in missing:
            why = missing[name].get(target.name)
        found.append(Listed(target=target.name, environment=name, runs=not why, why=why or ""))
    return tuple(found)


@click.command("list-targets")
@click.option(
    "--environments", metavar="A,B", help="In each of these (default: each target in its own)."
)
@options.fresh
@options.as_json
def command(environments: str | None, fresh: bool, as_json: bool) -> None:
    """List the compile targets, the environment of each, and whether it can run here."""
    settings = load_settings({"environments": options.split(environments)})
    found = listed_targets(settings, fresh=fresh)
    if as_json:
        options.print_json(found)
        return
    table = Table("Target", "Environment", "Runs here", "Why not", box=None, pad_edge=False)
    for listed in found:
        cells = [listed.target, listed.environment, "yes" if listed.runs else "no", listed.why]
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)
