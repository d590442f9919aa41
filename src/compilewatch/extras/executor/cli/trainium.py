"""`compilewatch trainium`: the instance on which CI evaluates the target `neuron`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compilewatch.cli import options
from compilewatch.config import cache_folder, load_settings
from compilewatch.errors import TrainiumUnavailableError

if TYPE_CHECKING:
    from compilewatch.extras.executor.trainium.operation import InstanceReport, Operation


def _which(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that select the instance and identify the run that uses it."""
    for decorator in (
        options.as_json,
        click.option(
            "--state",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The file that records what this run started (default: in the cache folder).",
        ),
        click.option("--region", "trainium_region", metavar="NAME", help="The AWS region."),
        click.option(
            "--tag", "trainium_tag", metavar="NAME=VALUE", help="The tag of the instance."
        ),
        click.option(
            "--instance", "trainium_instance", metavar="ID", help="The id of the instance."
        ),
    ):
        function = decorator(function)
    return function


@click.group("trainium")
def command() -> None:
    """Start the Trainium instance for a run and stop it afterwards (settings `trainium_*`).

    A run is identified by its state file (--state). The exit status is 1 if the instance is
    unavailable at the moment (no capacity, no response before the deadline), and 2 for errors that
    a later attempt would not avoid. Not yet tested on AWS; see docs/trainium.md.
    """


@command.command("up")
@_which
def up_verb(state: Path | None, as_json: bool, **flags: Any) -> int:
    """Start the instance unless it runs, and wait until its agent responds.

    If that fails or is interrupted, the instance is stopped again.
    """
    return _show(_operation(state, flags).up(), as_json)


@command.command("down")
@click.option("--force", is_flag=True, help="Stop it even if this run did not start it.")
@click.option("--wait/--no-wait", default=True, help="Wait until it has stopped (default).")
@_which
def down_verb(state: Path | None, as_json: bool, force: bool, wait: bool, **flags: Any) -> int:
    """Stop the instance if this run started it, and show what it cost.

    It is not stopped while the executor that TRAINIUM_ENDPOINT names runs a job of anybody, or
    does not respond (exit status 1); --force stops it nevertheless.
    """
    operation = _operation(state, flags)
    if not force and operation.started_here():
        from compilewatch.extras.executor.cli import reason_to_keep_running

        reason = reason_to_keep_running()
        if reason is not None:
            raise TrainiumUnavailableError(
                f"the instance keeps running, because {reason}; --force stops it"
            )
    return _show(operation.down(force=force, wait=wait), as_json)


@command.command("status")
@_which
def status_verb(state: Path | None, as_json: bool, **flags: Any) -> int:
    """Show whether the instance runs and responds, and what it costs.

    The exit status is 1 if the instance cannot be used.
    """
    report = _operation(state, flags).status()
    _show(report, as_json)
    return 0 if report.ready else 1


def _operation(state: Path | None, flags: dict[str, Any]) -> Operation:
    # Importing boto3 takes a quarter of a second, which --help should not cost.
    from compilewatch.extras.executor.trainium.operation import Operation

    # A tag on the command line takes precedence over an instance id in the file of settings.
    if flags.get("trainium_tag") and not flags.get("trainium_instance"):
        flags["trainium_instance"] = ""
    settings = load_settings(flags)
    place = state or (settings.cache_folder or cache_folder()) / "trainium.json"
    return Operation(settings, place, lambda line: click.echo(line, err=True))


def _show(report: InstanceReport, as_json: bool) -> int:
    if as_json:
        options.print_json(report)
        return 0
    click.echo(" ".join(_sentences(report)))
    return 0


def _sentences(report: InstanceReport) -> list[str]:
    if report.action == "nothing" and not report.instance:
        return ["This run started no instance, so there is nothing to stop. (--force stops it.)"]
    if report.action == "left":
        return [f"{report.instance} keeps running: this run did not start it. (--force stops it.)"]
    name = f"{report.instance} ({report.type}, {report.region})"
    if report.action == "was stopped":
        sentences = [f"{name} was {report.state} already."]
    elif report.action == "stopped":
        sentences = [f"{name} is {report.state}."]
    elif report.problem == "":
        sentences = [f"{name} is running and responds on {report.host}:{report.port}."]
    elif report.problem is not None:
        where = f"{report.host}:{report.port}"
        sentences = [f"{name} is running (checks: {report.checks}), but {where}: {report.problem}."]
    else:
        sentences = [f"{name} is {report.state}."]
    sentences.append(_money(report))
    if report.action in ("started", "joined"):
        sentences.append(
            "Stop it with: compilewatch trainium down."
            if report.started_by_run
            else "This run did not start it, so `down` leaves it running."
        )
    return sentences


def _money(report: InstanceReport) -> str:
    """The price and the cost. An instance that was stopped before `down` cost less than shown."""
    if report.price is None:
        return "Its cost is unknown: add a row for this type to inputs/trainium_prices.toml."
    price = f"${report.price.usd_per_hour:g} an hour as of {report.price.date}"
    if report.usd is None or report.seconds is None:
        return f"It costs {price}." if report.state != "stopped" else f"Running costs {price}."
    most = "at most " if report.action == "was stopped" else ""
    minutes = report.seconds / 60
    return f"Cost: {most}${report.usd:.2f} for {minutes:.1f} min, at {price}, without disks."
