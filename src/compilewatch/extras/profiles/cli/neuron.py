"""`compilewatch profile neuron`: the profilers of the Neuron SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table

from compilewatch.api.requests import one_request
from compilewatch.cli import options
from compilewatch.cli.rendering.progress import spinner
from compilewatch.environments import Environments
from compilewatch.errors import CompilerError
from compilewatch.extras.profiles.infer.messages import NeuronCapture
from compilewatch.extras.profiles.train.workflow import capture_on_neuron
from compilewatch.neuron import profiler
from compilewatch.records import Mode, Tier
from compilewatch.report.terminal import console
from compilewatch.report.wording import plural

TIMEOUT_SECONDS = 1800.0


@click.group("neuron")
def command() -> None:
    """Capture, view and summarise profiles with the tools of the Neuron SDK.

    It needs an instance with Neuron devices. So far it has run with mocks of the SDK only.
    """


@command.command("capture")
@click.argument("what", metavar="MODEL|FILE.neff")
@options.source
@click.option(
    "--environment",
    "environments",
    metavar="NAME",
    help="The environment with torch_neuronx (default: neuron).",
)
@options.depth
@click.option(
    "--type",
    "profile_type",
    type=click.Choice(["trace", "operator"]),
    default="trace",
    show_default=True,
    help="trace: the runtime; operator: operators of the framework and of HLO.",
)
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=9012, show_default=True)
@click.option("--ms-duration", type=click.IntRange(min=1), default=15000, show_default=True)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("logs"),
    show_default=True,
    help="The folder for TensorBoard; the files are in plugins/neuron below it.",
)
@click.option(
    "--delete-working/--keep-working",
    default=True,
    show_default=True,
    help="Delete the profiler's working files.",
)
@options.as_json
def capture_command(
    *,
    what: str,
    profile_type: str,
    steps: int,
    port: int,
    ms_duration: int,
    logdir: Path,
    delete_working: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Record training steps of MODEL on a NeuronCore, or one run of a compiled FILE.neff.

    A model is moved to the device inside of the profiler's context and trained in the named blocks
    model_build, loss_backward and optimizer_step. A NEFF runs with zeros, and FILE.ntff is written
    beside it.
    """
    if what.endswith(profiler.NEFF_SUFFIX):
        neff = Path(what)
        if not neff.is_file():
            raise CompilerError(f"there is no file {neff}")
        ntff = neff.with_suffix(profiler.NTFF_SUFFIX)
        tool = profiler.find()
        with spinner(f"{tool.name} captures {neff}"):
            profiler.capture(tool, neff, ntff, timeout_seconds=TIMEOUT_SECONDS)
        result: Any = {"tool": tool.name, "neff": str(neff), "ntff": str(ntff)}
        text = f"{ntff}\nNext: compilewatch profile neuron summarize {ntff}"
    else:
        request, settings = one_request(
            what,
            target="neuron",
            mode=Mode.TRAIN.value,
            dynamic=None,
            inputs_file=None,
            flags=flags,
        )
        order = NeuronCapture(
            request=msgspec.structs.replace(request, tier=Tier.REAL),
            steps=steps,
            port=port,
            profile_type=profile_type,
            ms_duration=ms_duration,
            neuron_tensorboard_plugin_dir=str(logdir.absolute() / "plugins" / "neuron"),
            delete_working=delete_working,
        )
        with spinner(f"profiling {request.model.name}"):
            result = capture_on_neuron(Environments(settings.cache_folder), order)
        text = (
            f"{plural(result.steps, 'step')}, {plural(len(result.files), 'file')} in "
            f"{order.neuron_tensorboard_plugin_dir}\n"
            f"Next: tensorboard --logdir {logdir} --load_fast=false (view NEURON)"
        )
    if as_json:
        options.print_json(result)
    else:
        click.echo(text)


_place = click.argument("place", metavar="SESSION|FILE.ntff", type=click.Path(path_type=Path))


@command.command("view")
@_place
@click.option(
    "--format",
    "output_format",
    type=click.Choice(profiler.FORMATS),
    default="perfetto",
    show_default=True,
)
@click.option(
    "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file."
)
def view_command(*, place: Path, output_format: str, output_file: Path | None) -> None:
    """Convert a captured profile, for Perfetto by default (ui.perfetto.dev opens the file)."""
    tool = profiler.find()
    if output_file is None and output_format == "perfetto":
        output_file = Path("profile.pftrace")
    arguments = profiler.view_command(
        tool, _existing(place), output_format=output_format, output_file=output_file
    )
    with spinner(f"{tool.name} converts {place}"):
        text = profiler.run(tool, arguments, timeout_seconds=TIMEOUT_SECONDS)
    click.echo(f"Saved: {output_file.absolute()}" if output_file is not None else text.rstrip())


@command.command("summarize")
@_place
@options.as_json
def summarize_command(*, place: Path, as_json: bool) -> None:
    """Print the figures of a captured profile: time, utilisation, spilled bytes."""
    tool = profiler.find()
    place = _existing(place)
    if place.is_dir() and (empty := profiler.session(place).empty):
        raise CompilerError(f"{empty[0]} is empty: nothing was captured")
    arguments = profiler.view_command(tool, place, output_format="summary-json", output_file=None)
    with spinner(f"{tool.name} summarises {place}"):
        text = profiler.run(tool, arguments, timeout_seconds=TIMEOUT_SECONDS)
    figures = profiler.parse_summary(text)
    if as_json:
        options.print_json({"tool": tool.name, "summary": figures})
        return
    table = Table("figure", "value", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in figures.items():
        table.add_row(name, f"{value:,.6g}" if isinstance(value, float) else value)
    console().print(table)


def _existing(place: Path) -> Path:
    if not place.exists():
        raise CompilerError(f"there is no {place}")
    return place
