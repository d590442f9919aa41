"""`compilewatch list-targets`: which targets this machine can run, and why not the others."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from compilewatch.api.selection import environments_for, split
from compilewatch.api.worker_client import readiness
from compilewatch.cli import options
from compilewatch.config import Settings, load_settings
from compilewatch.contract.messages import Readiness
from compilewatch.contract.targets import CPU, CUDA, TARGETS
from compilewatch.environments import Environments
from compilewatch.errors import InterpreterError
from compilewatch.plan import needs, place
from compilewatch.records import Environment, Record, Target
from compilewatch.report.terminal import console


class ListedTarget(Record, frozen=True, kw_only=True):
    """One target in the environment that a sweep would use; `why` it cannot run there.

    `dynamo/cuda` is the target for a CUDA device, which need not be present.
    """

    target: str
    environment: str
    runs: bool
    why: str = ""


def listed_targets(settings: Settings, *, fresh: bool = False) -> tuple[ListedTarget, ...]:
    """Every registered target. Each environment is checked once, or its stored facts are used."""
    environments = Environments(settings.cache_folder)
    known: list[Environment] = []
    ready: dict[str, Readiness] = {}
    broken: dict[str, str] = {}
    for name in environments_for(TARGETS, settings):
        try:
            known.append(environments.describe(name, fresh=fresh))
            ready[name] = readiness(environments, name, fresh=fresh)
        except InterpreterError as error:
            broken[name] = f"{error}; see: compilewatch env check {name}"
    named = [name for name in settings.environments if name not in broken]
    targets = [Target(name=name) for name in TARGETS]
    devices = [Target(name=n, device=CUDA) for n, e in TARGETS.items() if e.captures_for_devices]
    listed = []
    for target in place([*targets, *devices], named, known):
        name = target.environment
        why: str | None = broken.get(name) or needs(target)
        if name in ready:
            why = ready[name].missing.get(target.name)
            if target.device == CUDA:
                why = why or ready[name].no_cuda
        label = target.name if target.device == CPU else f"{target.name}/{target.device}"
        listed.append(ListedTarget(target=label, environment=name, runs=not why, why=why or ""))
    return tuple(listed)


@click.command("list-targets")
@click.option(
    "--environments",
    metavar="A,B",
    help="Check these environments (default: the default of each target).",
)
@options.fresh
@options.as_json
def command(environments: str | None, fresh: bool, as_json: bool) -> None:
    """List the compile targets, the environment of each, and whether it can run here."""
    settings = load_settings({"environments": split(environments)})
    targets = listed_targets(settings, fresh=fresh)
    if as_json:
        options.print_json(targets)
        return
    table = Table("Target", "Environment", "Runs here", "Reason", box=None, pad_edge=False)
    for listed in targets:
        cells = [listed.target, listed.environment, "yes" if listed.runs else "no", listed.why]
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)
