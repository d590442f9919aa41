"""`compilewatch env`: the interpreters that workers run in."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from compilewatch.api.selection import split
from compilewatch.api.worker_client import Working, try_environment
from compilewatch.cli import options
from compilewatch.config import load_settings
from compilewatch.environments import INTERPRETERS, Environments, create_command, listing
from compilewatch.environments.creation import create, recipe_of, remove, size_of
from compilewatch.errors import InterpreterError
from compilewatch.launchers.local.launcher import cannot_fork
from compilewatch.records import Environment, Record
from compilewatch.report.terminal import console, plain, plain_table, spaced

STEPS = ("Creating", "Collecting", "Downloading", "Building", "Installing", "Successfully")
"""The beginnings of those lines of pip's output that are worth showing."""


class CheckedEnvironment(Record, frozen=True, kw_only=True):
    """The output of `check --json`. `problem` is one line, empty if the environment works."""

    name: str
    works: bool
    problem: str = ""
    advice: str = ""
    environment: Environment | None = None
    working: Working | None = None


@click.group("env")
def command() -> None:
    """Create, list, check and delete environments: Python interpreters, each with its own torch.

    Workers run in them. They are stored in the user's cache folder and shared by all checkouts.
    `default` is the interpreter that runs compilewatch.
    """


@command.command("create")
@click.argument("name")
@click.option(
    "--torch", metavar="VERSION", help="The version of torch in an environment with another name."
)
@click.option("--transformers", metavar="VERSION", help="The version of Transformers, likewise.")
@click.option(
    "--with",
    "further",
    metavar="A,B",
    help="Packages that models need besides, such as timm,torchvision, in the releases that fit.",
)
@click.option("--python", metavar="PATH", help="The interpreter to create it with.")
def create_verb(
    name: str,
    torch: str | None,
    transformers: str | None,
    further: str | None,
    python: str | None,
) -> None:
    """Create the environment NAME: xla, neuron, cuda, vision, libraries, or any other name with
    --torch, --transformers or --with.

    `vision` has the torch and Transformers of compilewatch itself, and timm and torchvision for the
    models that need them. `libraries` has diffusers, sentence-transformers and open_clip besides.

    Without --torch or --transformers, that package has the version of compilewatch itself.
    Packages that another environment has in the same version take no further space. This is
    fast if the environment exists already. TORCH_INDEX names a package index with CPU builds of
    torch, from which torch is installed, but for cuda: that has a CUDA build, which is used
    where this interpreter has a CPU build and a model is trained on a CUDA device.
    """
    recipe = recipe_of(name, torch, transformers, split(further) or ())
    environments = _environments()

    def show(line: str) -> None:
        if line.lstrip().startswith(STEPS):
            click.echo(click.style(line.strip()[:200], dim=True), err=True)

    environment, anew = create(environments, name, recipe, python=python, observer=show)
    versions = f"torch {environment.torch}, transformers {environment.transformers or 'none'}"
    click.echo(f"{name} is ready: {versions}, {environment.python_executable}")
    if anew:
        click.echo(f"Check it with: compilewatch env check {name}")


@command.command("list")
@options.as_json
def list_verb(as_json: bool) -> None:
    """List the environments that exist and those that targets need."""
    environments = listing(_environments())
    if as_json:
        options.print_json(environments)
        return
    table = Table("Name", "State", "torch", "transformers", "Python", box=None, pad_edge=False)
    for listed in environments:
        environment = listed.environment
        facts = [listed.advice, "", ""]
        if environment is not None:
            facts = [
                environment.torch,
                environment.transformers or "none",
                environment.python_executable,
            ]
        cells = [listed.name, listed.state.replace("_", " "), *facts]
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)


@command.command("describe")
@click.argument("name")
@options.as_json
def describe_verb(name: str, as_json: bool) -> None:
    """Show the versions and the size of the environment NAME, without starting a worker.

    Files that several environments share take their space once.
    """
    environments = _environments()
    environment = environments.describe(name)
    if as_json:
        options.print_json(environment)
        return
    table = plain_table("Package", "Version", gap=2)
    for package, version in environment.packages.items():
        table.add_row(plain(package), plain(version))
    lines = [
        f"{name}: torch {environment.torch} (git {environment.torch_git[:10]}), "
        f"transformers {environment.transformers or 'none'}, Python {environment.python}, "
        f"device {environment.device}",
        environment.python_executable,
    ]
    if name not in INTERPRETERS:
        size = size_of(environments, name)
        own, shared = size.own_bytes / 2**20, size.shared_bytes / 2**20
        lines.append(f"{own:,.0f} MiB of its own, {shared:,.0f} MiB shared with others")
    console().print(spaced([plain("\n".join(lines)), table]))


@command.command("remove")
@click.argument("name")
def remove_verb(name: str) -> None:
    """Delete the created environment NAME. What it shares with others stays with them."""
    remove(_environments(), name)
    click.echo(f"{name} is deleted")


@command.command("check")
@click.argument("name")
@options.as_json
def check_verb(name: str, as_json: bool) -> int:
    """Start a worker in the environment NAME, as a sweep does, and compile a small model.

    If that fails, the exit status is 1, and the message says what is wrong and how to fix it.
    """
    checked = _check(name)
    if as_json:
        options.print_json(checked)
    elif checked.environment is None or checked.working is None:
        click.echo(checked.problem + (f"; {checked.advice}" if checked.advice else ""), err=True)
    else:
        click.echo(
            f"{name} works: torch {checked.environment.torch} "
            f"(git {checked.environment.torch_git[:10]}), transformers "
            f"{checked.environment.transformers or 'none'}, worker ready after "
            f"{checked.working.start_seconds:.1f} s, compiled in "
            f"{checked.working.request_seconds:.1f} s"
        )
        if checked.working.threads > 1:
            click.echo(f"note: {cannot_fork(name, checked.working.threads)}", err=True)
    return 0 if checked.works else 1


def _environments() -> Environments:
    return Environments(load_settings().cache_folder)


def _check(name: str) -> CheckedEnvironment:
    environments = _environments()
    advice = ""
    try:
        environments.interpreter(name)
        default = name in INTERPRETERS
        advice = "make setup" if default else create_command(name)
        environment = environments.describe(name, fresh=True)
        working = try_environment(environments, name)
    except InterpreterError as error:
        return CheckedEnvironment(name=name, works=False, problem=str(error), advice=advice)
    return CheckedEnvironment(name=name, works=True, environment=environment, working=working)
