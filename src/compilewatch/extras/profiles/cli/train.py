"""`compilewatch profile train` and `profile check`: training steps, and the files of profiles."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compilewatch.api.launching import local_launcher
from compilewatch.api.requests import one_request
from compilewatch.api.selection import split
from compilewatch.cli import completion, options
from compilewatch.cli.conditions import INCOMPLETE
from compilewatch.cli.rendering.progress import spinner
from compilewatch.config import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.errors import UsageError
from compilewatch.extras.profiles.check import (
    CheckedProfile,
    check_outputs,
    check_profiles,
    write_report,
)
from compilewatch.extras.profiles.train import analysis
from compilewatch.extras.profiles.train.records import Stage, TrainingOptions, TrainingProfile
from compilewatch.extras.profiles.train.workflow import (
    EAGER,
    XLA,
    Trained,
    profile_training,
    train_alone,
    training_request,
)
from compilewatch.records import Mode, Request, Status, new_run_id
from compilewatch.report.terminal import console, plain
from compilewatch.report.wording import plural

TARGETS = (EAGER, "inductor")

SHOWN = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)


@click.command("train")
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
)
@options.source
@click.option(
    "--target",
    "targets",
    metavar="A,B",
    default=",".join(TARGETS),
    show_default=True,
    help="Some of eager, inductor, inductor:BACKEND and xla, in this order.",
)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Steps at the beginning that averages leave out.",
)
@click.option(
    "--trace-steps",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Steps after them that torch.profiler records; averages leave them out, too.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Samples of a step (default: those of the example inputs).",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=1),
    help="End a training after this time (default: deadlines.profile_seconds).",
)
@options.depth
@options.output
@options.as_json
def train_command(
    *,
    models: tuple[str, ...],
    targets: str,
    steps: int,
    warmup: int,
    trace_steps: int,
    batch_size: int | None,
    max_seconds: float | None,
    output_dir: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Train each MODEL for some steps on its example inputs, and measure the stages of each step.

    Each target trains in a process of its own with the same seed: weights of reduced size, one
    batch, AdamW. The profiles are written to outputs/profiles; `compilewatch profile check` reads
    them. A speed-up is stated only if the losses are those of eager mode. The exit status is 3 if a
    training did not end.
    """
    requests, settings = _requests(
        models, _known(targets), max_seconds, flags | {"jobs": 1, "output_dir": output_dir}
    )
    out = Path(settings.output_dir).absolute() / "profiles" / new_run_id()
    training = TrainingOptions(
        out=str(out), steps=steps, warm_up=warmup, trace_steps=trace_steps, batch_size=batch_size
    )
    prepared = [(target, training_request(r, target, training)) for target, r in requests]
    names = tuple(dict.fromkeys(r.target.environment for t, r in prepared if t != XLA))
    done: list[Trained] = []
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, names) as launcher,
        spinner(f"training {', '.join(models)}", launcher),
    ):
        alone = partial(train_alone, Environments(settings.cache_folder))
        done.extend(profile_training(prepared, launcher, Path(scratch), alone))
    if as_json:
        options.print_json([_trained_json(trained) for trained in done])
    else:
        _show_trained(done, out)
    return 0 if all(trained.status is Status.PASS for trained in done) else INCOMPLETE


def _known(targets: str) -> list[str]:
    """Raises UsageError for a target that no training runs on."""
    chosen = split(targets) or []
    for name in chosen:
        if name not in (EAGER, XLA) and name.partition(":")[0] != "inductor":
            raise UsageError(
                f"cannot train on {name!r}; known: eager, inductor, inductor:BACKEND, xla"
            )
    return chosen


def _requests(
    models: Sequence[str],
    targets: Sequence[str],
    max_seconds: float | None,
    flags: dict[str, Any],
) -> tuple[list[tuple[str, Request]], Settings]:
    """Return each model's request for each target, named by target, and the settings."""
    requests = []
    for model in models:
        for target in targets:
            request, settings = one_request(
                model,
                target="inductor" if target == EAGER else target,
                mode=Mode.TRAIN.value,
                dynamic=None,
                inputs_file=None,
                flags=flags,
            )
            if max_seconds is not None:
                limits = msgspec.structs.replace(request.deadlines, profile_seconds=max_seconds)
                request = msgspec.structs.replace(request, deadlines=limits)
            requests.append((target, request))
    return requests, settings


def _show_trained(done: Sequence[Trained], out: Path) -> None:
    headings = ("first step s", "step ms", *(f"{stage} ms" for stage in SHOWN), "memory MB")
    table = _figures("model", "target", figures=(*headings, "speed-up"))
    for trained in done:
        table.add_row(plain(trained.model), plain(trained.target), *_cells(trained))
    printer = console()
    printer.print(table)
    for trained in done:
        lines = [f"{trained.status}: {trained.detail}"] if trained.status is not Status.PASS else []
        if trained.same_losses is False:
            lines.append("its losses differ from those of eager mode")
        lines += [f"{finding.code}: {finding.found}" for finding in trained.findings]
        for line in lines:
            printer.print(plain(f"{trained.model} on {trained.target}: {line}"))
    printer.print(plain(f"Next: compilewatch profile check {out} --analysis"))


def _figures(*names: str, figures: Sequence[str]) -> Table:
    """A table of names, and of figures after them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in names:
        table.add_column(heading, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def _cells(trained: Trained) -> Iterator[str]:
    figures, times = trained.metrics, trained.times
    if figures is None or times is None or times.step is None:
        return
    yield _figure(figures.first_step_seconds)
    yield _figure(times.step.median, 1e3)
    for stage in SHOWN:
        yield _figure(times.stages[stage].median if stage in times.stages else None, 1e3)
    peak = figures.peak_resident_bytes
    yield f"{peak / 1e6:,.0f}" if peak is not None else "–"
    yield _figure(trained.speedup)


def _figure(value: float | None, factor: float = 1.0) -> str:
    return f"{value * factor:.2f}" if value is not None else "–"


def _trained_json(trained: Trained) -> dict[str, Any]:
    names = ("model", "target", "status", "detail", "speedup", "same_losses", "metrics", "findings")
    folder = str(trained.folder) if trained.folder is not None else None
    return {name: getattr(trained, name) for name in names} | {"folder": folder}


STATUS_STYLES = ("green", "yellow", "red")


@click.command("check")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(path_type=Path))
@options.output
@click.option(
    "--analysis", "explained", is_flag=True, help="Explain what dominates, by stage and operator."
)
@click.option("--report", is_flag=True, help="Write check_report.md into each profile's folder.")
@options.as_json
def check_command(
    *, folder: Path | None, output_dir: str | None, explained: bool, report: bool, as_json: bool
) -> int:
    """Validate the profiles in DIR, or all in outputs/, of training and of inference.

    Each file is read completely: damaged lines, files that contradict each other and traces that no
    viewer would open are found. The exit status is 0 if nothing was found, 1 if there are findings
    (also for a profile that is incomplete or still being written), 2 if a profile is broken.
    """
    root = Path(load_settings({"output_dir": output_dir}).output_dir)
    profiles = check_profiles(folder) if folder is not None else check_outputs(root)
    if as_json:
        options.print_json([_check_json(profile, explained) for profile in profiles])
    else:
        for profile in profiles:
            console().print(Group(*_check_lines(profile, explained)))
    if report:
        for profile in profiles:
            click.echo(f"Saved: {write_report(profile).absolute()}", err=True)
    return max(profile.exit_status for profile in profiles)


def _check_lines(checked: CheckedProfile, explained: bool) -> Iterator[RenderableType]:
    style = STATUS_STYLES[checked.exit_status]
    head = Text.assemble(plain(str(checked.path)), ": ", (checked.state, style))
    if checked.broken is not None:
        yield head
        yield plain(f"  {checked.broken}")
        return
    training = checked.training
    size = f"training, {plural(len(training.steps), 'step')}" if training else "inference"
    yield Text.assemble(head, f", {size}, {plural(len(checked.findings), 'finding')}")
    for finding in checked.findings:
        yield plain(f"  {finding.code}: {finding.found}")
        yield plain(f"    {finding.advice}")
    if explained and training is not None:
        for sentence in analysis.explanation(training):
            yield plain(f"  {sentence}")
        yield from _tables(training)


def _tables(profile: TrainingProfile) -> Iterator[Table]:
    times = analysis.times_of(profile)
    if times.stages:
        stages = _figures("stage", figures=("median ms", "min ms", "max ms", "share"))
        for stage, spread in times.stages.items():
            seconds = (spread.median, spread.minimum, spread.maximum)
            cells = [f"{value * 1e3:.3f}" for value in seconds]
            stages.add_row(stage, *cells, f"{times.shares.get(stage, 0.0):.1%}")
        yield stages
    rows = analysis.top_operators(profile)
    if rows:
        operators = _figures("operator", figures=("calls", "own CPU ms", "CPU ms"))
        for row in rows:
            own, total = row.self_cpu_time_us / 1e3, row.cpu_time_total_us / 1e3
            operators.add_row(plain(row.name), str(row.calls), f"{own:.3f}", f"{total:.3f}")
        yield operators


def _check_json(checked: CheckedProfile, explained: bool) -> dict[str, Any]:
    names = ("kind", "state", "exit_status", "broken", "findings")
    fields = {"path": str(checked.path)} | {name: getattr(checked, name) for name in names}
    if (training := checked.training) is not None:
        fields["metrics"] = analysis.metrics_of(training)
        if explained:
            fields["explanation"] = analysis.explanation(training)
            fields["shares"] = analysis.times_of(training).shares
            fields["operators"] = analysis.top_operators(training)
    return fields
