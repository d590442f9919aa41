"""`compilewatch profile check`: validate the files of profiles and say what they show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from compilewatch.cli import options
from compilewatch.config.settings import load_settings
from compilewatch.extras.profiles.check import (
    CheckedProfile,
    check_outputs,
    check_profiles,
    write_report,
)
from compilewatch.extras.profiles.train import analysis
from compilewatch.extras.profiles.train.records import TrainingProfile
from compilewatch.report.terminal.pieces import console
from compilewatch.report.wording import plural, printable

STATUS_STYLES = ("green", "yellow", "red")


@click.command("check")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(path_type=Path))
@options.output
@click.option(
    "--analysis", "explained", is_flag=True, help="Explain what dominates, by stage and operator."
)
@click.option("--report", is_flag=True, help="Write check_report.md into each profile's folder.")
@options.as_json
def command(
    *, folder: Path | None, output_dir: str | None, explained: bool, report: bool, as_json: bool
) -> int:
    """Validate the profiles in DIR, or all in outputs/, of training and of inference.

    Each file is read completely: damaged lines, files that contradict each other and traces that no
    viewer would open are found. The exit status is 0 if nothing was found, 1 if there are findings
    (also for a profile that is incomplete or still being written), 2 if a profile is broken.
    """
    root = Path(load_settings({"output_dir": output_dir}).output_dir)
    found = check_profiles(folder) if folder is not None else check_outputs(root)
    if as_json:
        options.print_json([_as_json(each, explained) for each in found])
    else:
        for each in found:
            _show(each, explained)
    if report:
        for each in found:
            click.echo(f"Saved: {write_report(each).absolute()}", err=True)
    return max(each.exit_status for each in found)


def _show(checked: CheckedProfile, explained: bool) -> None:
    out = console()
    style = STATUS_STYLES[checked.exit_status]
    head = Text.assemble(_text(str(checked.path)), ": ", (checked.state, style))
    if checked.broken is not None:
        out.print(head)
        out.print(_text(f"  {checked.broken}"))
        return
    out.print(
        Text.assemble(head, f", {_size(checked)}, {plural(len(checked.findings), 'finding')}")
    )
    for each in checked.findings:
        out.print(_text(f"  {each.code}: {each.found}"))
        out.print(_text(f"    {each.advice}"))
    if explained and checked.training is not None:
        for sentence in analysis.explanation(checked.training):
            out.print(_text(f"  {sentence}"))
        for table in _tables(checked.training):
            out.print(table)


def _size(checked: CheckedProfile) -> str:
    if checked.training is None:
        return "inference"
    return f"training, {plural(len(checked.training.steps), 'step')}"


def _tables(profile: TrainingProfile) -> Iterator[Table]:
    times = analysis.times_of(profile)
    if times.stages:
        stages = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("stage", "median ms", "min ms", "max ms", "share"):
            stages.add_column(heading, justify="left" if heading == "stage" else "right")
        for stage, spread in times.stages.items():
            seconds = (spread.median, spread.minimum, spread.maximum)
            cells = [f"{each * 1e3:.3f}" for each in seconds]
            stages.add_row(stage, *cells, f"{times.shares.get(stage, 0.0):.1%}")
        yield stages
    rows = analysis.top_operators(profile)
    if rows:
        operators = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        operators.add_column("operator", overflow="fold")
        for heading in ("calls", "own CPU ms", "CPU ms"):
            operators.add_column(heading, justify="right")
        for row in rows:
            own, total = row.self_cpu_time_us / 1e3, row.cpu_time_total_us / 1e3
            operators.add_row(_text(row.name), str(row.calls), f"{own:.3f}", f"{total:.3f}")
        yield operators


def _as_json(checked: CheckedProfile, explained: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": str(checked.path),
        "kind": checked.kind,
        "state": checked.state,
        "exit_status": checked.exit_status,
        "broken": checked.broken,
        "findings": [msgspec.to_builtins(each) for each in checked.findings],
    }
    if checked.training is not None:
        found["metrics"] = msgspec.to_builtins(analysis.metrics_of(checked.training))
    if explained and checked.training is not None:
        times = analysis.times_of(checked.training)
        found["explanation"] = analysis.explanation(checked.training)
        found["shares"] = {stage.value: share for stage, share in times.shares.items()}
        found["operators"] = [
            msgspec.to_builtins(row) for row in analysis.top_operators(checked.training)
        ]
    return found


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
