"""`compilewatch profile train`: measure training steps, eager and compiled side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from compilewatch.api.launching import local_launcher
from compilewatch.api.requests import one_request
from compilewatch.api.selection import split
from compilewatch.cli import completion, options
from compilewatch.cli.conditions import INCOMPLETE
from compilewatch.cli.rendering.progress import spinner
from compilewatch.config.settings import Settings
from compilewatch.environments import Environments
from compilewatch.errors import UsageError
from compilewatch.extras.profiles.train.records import Stage, TrainingOptions
from compilewatch.extras.profiles.train.worker_calls import train_alone
from compilewatch.extras.profiles.train.workflow import (
    EAGER,
    XLA,
    Trained,
    profile_training,
    training_request,
)
from compilewatch.records import Mode, Request, Status
from compilewatch.records.clock import new_run_id
from compilewatch.report.terminal.pieces import console
from compilewatch.report.wording import printable

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
def command(
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
    wanted = TrainingOptions(
        out=str(out),
        steps=steps,
        warm_up=warmup,
        trace_steps=trace_steps,
        batch_size=batch_size,
    )
    prepared = [(target, training_request(r, target, wanted)) for target, r in requests]
    served = (r.target.environment for target, r in prepared if target != XLA)
    names = tuple(dict.fromkeys(served))
    done: list[Trained] = []
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, names) as launcher,
        spinner(f"training {', '.join(models)}", launcher),
    ):
        alone = partial(train_alone, Environments(settings.cache_folder))
        done.extend(profile_training(prepared, launcher, Path(scratch), alone))
    if as_json:
        options.print_json([_as_json(each) for each in done])
    else:
        _show(done, out)
    return 0 if all(each.status is Status.PASS for each in done) else INCOMPLETE


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


def _show(done: Sequence[Trained], out: Path) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("model", "target"):
        table.add_column(heading, overflow="fold")
    milliseconds = [f"{stage} ms" for stage in SHOWN]
    for heading in ("first step s", "step ms", *milliseconds, "memory MB", "speed-up"):
        table.add_column(heading, justify="right")
    for each in done:
        table.add_row(Text(printable(each.model)), Text(each.target), *_cells(each))
    printer = console()
    printer.print(table)
    for each in done:
        if each.status is not Status.PASS:
            said = f"{each.model} on {each.target}: {each.status}: {each.detail}"
            printer.print(Text(printable(said)))
        if each.same_losses is False:
            said = f"{each.model} on {each.target}: its losses differ from those of eager mode"
            printer.print(Text(printable(said)))
        for finding in each.findings:
            said = f"{each.model} on {each.target}: {finding.code}: {finding.found}"
            printer.print(Text(printable(said)))
    printer.print(Text(f"Next: compilewatch profile check {out} --analysis"))


def _cells(each: Trained) -> list[str]:
    figures, times = each.metrics, each.times
    if figures is None or times is None or times.step is None:
        return []
    first, peak = figures.first_step_seconds, figures.peak_resident_bytes
    medians = [times.stages[s].median * 1e3 if s in times.stages else None for s in SHOWN]
    return [
        f"{first:.2f}" if first is not None else "–",
        f"{times.step.median * 1e3:.2f}",
        *(f"{value:.2f}" if value is not None else "–" for value in medians),
        f"{peak / 1e6:,.0f}" if peak is not None else "–",
        f"{each.speedup:.2f}" if each.speedup is not None else "–",
    ]


def _as_json(each: Trained) -> dict[str, Any]:
    return {
        "model": each.model,
        "target": each.target,
        "status": each.status,
        "detail": each.detail,
        "folder": str(each.folder) if each.folder is not None else None,
        "speedup": each.speedup,
        "same_losses": each.same_losses,
        "metrics": msgspec.to_builtins(each.metrics),
        "findings": msgspec.to_builtins(each.findings),
    }
