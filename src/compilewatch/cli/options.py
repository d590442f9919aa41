"""Options and steps that several verbs share."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch import records
from compilewatch.cli import completion

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """One decorator that adds several options, which `--help` shows in this order."""
    return lambda function: functools.reduce(lambda f, add: add(f), reversed(decorators), function)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
output = click.option(
    "--output", "output_dir", metavar="DIR", help="The folder of stored runs (outputs)."
)
source = click.option(
    "--source",
    metavar="NAME",
    help="auto, library (Transformers), another library (timm, torchvision, diffusers, "
    "sentence-transformers, open_clip), all-libraries, hub, manifest, papers (default auto).",
)
fresh = click.option(
    "--fresh", is_flag=True, help="Check the environments again, even if they have not changed."
)
verbose = click.option("--verbose", is_flag=True, help="Show complete tracebacks.")
depth = click.option(
    "--depth",
    type=click.Choice([d.value for d in records.Depth]),
    help="full: as many layers as in the configuration; reduced: one of each kind of layer.",
)
tier = click.option(
    "--tier",
    type=click.Choice([t.value for t in records.Tier]),
    help="auto: fake tensors, or real tensors if a model reads values; fake; real.",
)
dtype = click.option(
    "--dtype",
    type=click.Choice([d.value for d in records.Dtype]),
    help="The type of weights and inputs (default: float32 on a CPU, config on a GPU, which is "
    "what the configuration says).",
)
variants = click.option(
    "--variants",
    type=click.Choice([v.value for v in records.Variants]),
    help="Inputs of models of several media, on Dynamo. main: all media at once; all (default): "
    "also text alone, and text with each medium; all+decode: also the step of generate() after the "
    "prefill, with a dynamic and with a static cache.",
)
dynamic = click.option(
    "--dynamic/--static",
    default=None,
    help="Compile with dynamic shapes, or with static ones only "
    "(default: a size becomes dynamic when it changes).",
)


nested_graph_breaks = click.option(
    "--nested-graph-breaks",
    type=click.Choice(["on", "off", "default"]),
    help="Dynamo's setting: also compile functions that a graph break interrupts "
    "(default: as PyTorch has it).",
)


numerics = click.option(
    "--numerics",
    is_flag=True,
    default=None,
    help="Also evaluate the target numerics: do the backends eager and aot_eager compute what "
    "eager mode does, on real tensors at reduced size, for two sizes?",
)


inputs = click.option(
    "--inputs",
    "inputs_file",
    type=click.Path(dir_okay=False),
    help="Example inputs: a file, .toml (see `inputs --save`) or .safetensors, or for your "
    "own model MODULE:FUNCTION, which returns them.",
)
python_path = click.option(
    "--python-path",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Search this folder first for your own module; may be given several times.",
)


mode = click.option(
    "--mode",
    type=click.Choice([m.value for m in records.Mode]),
    default=records.Mode.EVAL.value,
    show_default=True,
)
one_target = together(
    source,
    click.option(
        "--target",
        default="dynamo",
        show_default=True,
        shell_complete=completion.targets,
        help="The compile target.",
    ),
    mode,
    dynamic,
    click.option(
        "--device",
        metavar="NAME",
        help="cpu, or a declared device, which the machine need not have: cuda, cuda:A100, "
        "neuron …",
    ),
    dtype,
    depth,
    variants,
    tier,
)
"""On what one model is evaluated, and how."""

_ONE_REQUEST: Sequence[Decorator] = (
    one_target,
    click.option(
        "--environment",
        "environments",
        metavar="NAME",
        help="The environment to run in (default: the target's default environment).",
    ),
    inputs,
    python_path,
)


def one_request_options(function: Callable[..., Any], *, optional: bool = False) -> Any:
    """The options that say how a single model is evaluated.

    A command that can do without a model (`optional`) then uses none of them.
    """
    argument = click.argument("model", required=not optional, shell_complete=completion.models)
    return together(argument, *_ONE_REQUEST)(function)


def show_creation(line: str) -> None:
    """Say that an environment is created: the first line of what `environments.creation` shows."""
    if line.startswith("Creating"):
        click.echo(click.style(line, dim=True), err=True)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def show(value: Any, as_json: bool, people: Any) -> None:
    """Print a value as JSON, or for people: a text, a table, or what a function prints."""
    from compilewatch.report.terminal import console  # takes a while to import

    if as_json:
        print_json(value)
    elif callable(people):
        people()
    else:
        click.echo(people) if isinstance(people, str) else console().print(people)
