"""`compilewatch profile`: what models cost at run time."""

import click

from compilewatch.cli import LazyGroup
from compilewatch.extras import Command

COMMANDS = {
    "infer": Command(
        f"{__name__}.infer:infer_command",
        "measure how fast models run on each target, and what their graph breaks cost",
    ),
    "compare": Command(
        f"{__name__}.infer:compare_command",
        "say which of two profiles is faster, beyond noise",
    ),
    "train": Command(
        f"{__name__}.train:train_command",
        "measure training steps, eager and compiled side by side",
    ),
    "check": Command(
        f"{__name__}.train:check_command",
        "validate the files of profiles, explain what dominates, recommend",
    ),
    "neuron": Command(
        f"{__name__}.train:neuron_group",
        "capture, view and summarise profiles with the tools of the Neuron SDK",
    ),
}


class ProfileGroup(LazyGroup):
    table = COMMANDS


@click.group("profile", cls=ProfileGroup)
def command() -> None:
    """Measure what models cost at run time: latency, throughput, memory, graph breaks."""
