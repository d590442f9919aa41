"""`compilewatch trainium`: the instance that the target `neuron` is asked on in CI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compilewatch.cli import options
from compilewatch.config.paths import cache_folder
from compilewatch.config.settings import load_settings

if TYPE_CHECKING:
    from compilewatch.trainium.operation import Operation, Report


def _which(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which instance is meant, and which run asks."""
    for decorator in (
        options.as_json,
        click.option(
            "--state",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="What this run has started is kept there (default: in the user's cache folder).",
        ),
        click.option("--region", "trainium_region", metavar="NAME", help="The region of AWS."),
        click.option("--tag", "trainium_tag", metavar="NAME=VALUE", help="The instance's tag."),
        click.option("--instance", "trainium_instance", metavar="ID", help="The instance's id."),
    ):
        function = decorator(function)
    return function


@click.group("trainium")
def command() -> None:
    """Start the Trainium instance for a run, and stop it after: settings `trainium_*`.

    A run is a file of state (--state). Exit status 1 if the instance is not to be had now (no
    capacity, no answer in time), 2 for all that trying later does not cure. Not yet tried on AWS;
    see docs/trainium.md.
    """


@command.command("up")
@_which
def up_verb(state: Path | None, as_json: bool, **flags: Any) -> int:
    """Start the instance unless it runs, and wait until its agent answers.

    Stopped again if that fails or is interrupted.
    """
    return _show(_operation(state, flags).up(), as_json)


@command.command("down")
@click.option("--force", is_flag=True, help="Stop it even if this run did not start it.")
@click.option("--wait/--no-wait", default=True, help="Wait until it has stopped (default).")
@_which
def down_verb(state: Path | None, as_json: bool, force: bool, wait: bool, **flags: Any) -> int:
    """Stop the instance if this run started it, and say what it cost."""
    return _show(_operation(state, flags).down(force=force, wait=wait), as_json)


@command.command("status")
@_which
def status_verb(state: Path | None, as_json: bool, **flags: Any) -> int:
    """Say whether it runs and answers, and what it costs. Exit status 1 if it cannot be used."""
    report = _operation(state, flags).status()
    _show(report, as_json)
    return 0 if report.ready else 1


def _operation(state: Path | None, flags: dict[str, Any]) -> Operation:
    # boto3 takes a quarter of a second: not for --help.
    from compilewatch.trainium.operation import Operation

    # A tag on the command line is meant, whatever instance the file names.
    if flags.get("trainium_tag") and not flags.get("trainium_instance"):
        flags["trainium_instance"] = ""
    settings = load_settings(flags)
    place = state or (settings.cache_folder or cache_folder()) / "trainium.json"
    return Operation(settings, place, lambda line: click.echo(line, err=True))


def _show(report: Report, as_json: bool) -> int:
    if as_json:
        options.print_json(report)
        return 0
    click.echo(" ".join(_sentences(report)))
    return 0


def _sentences(report: Report) -> list[str]:
    if report.action == "nothing" and not report.instance:
        return ["This run has started nothing: nothing to stop. (--force stops the instance.)"]
    if report.action == "left":
        return [f"{report.instance} runs on: this run did not start it. (--force stops it.)"]
    name = f"{report.instance} ({report.type}, {report.region})"
    if report.action == "was stopped":
        said = [f"{name} was {report.state} already."]
    elif report.action == "stopped":
        said = [f"{name} is {report.state}."]
    elif report.problem == "":
        said = [f"{name} runs and answers on {report.host}:{report.port}."]
    elif report.problem is not None:
        where = f"{report.host}:{report.port}"
        said = [f"{name} runs, checks {report.checks}, but {where}: {report.problem}."]
    else:
        said = [f"{name} is {report.state}."]
    said.append(_money(report))
    if report.action in ("started", "joined"):
        said.append(
            "Stop it with: compilewatch trainium down."
            if report.started_by_run
            else "This run did not start it, so `down` leaves it running."
        )
    return said


def _money(report: Report) -> str:
    """Price and cost. What stood still at the end cost less than the whole session would."""
    if report.price is None:
        return "What it costs is unknown: inputs/trainium_prices.toml has no such row."
    price = f"${report.price.usd_per_hour:g} an hour as of {report.price.date}"
    if report.usd is None or report.seconds is None:
        return f"It costs {price}." if report.state != "stopped" else f"Running costs {price}."
    most = "at most " if report.action == "was stopped" else ""
    minutes = report.seconds / 60
    return f"Cost: {most}${report.usd:.2f} for {minutes:.1f} min, at {price}, disks aside."
