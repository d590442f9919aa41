"""`compilewatch profile`: what models cost at run time. Each command is a module of its own."""

from __future__ import annotations

import importlib

import click

from compilewatch.errors import did_you_mean

COMMANDS: dict[str, str] = {
    "infer": "measure how fast models run on each target, and what their graph breaks cost",
    "compare": "say which of two profiles is faster, beyond noise",
    "train": "measure training steps, eager and compiled side by side",
    "check": "validate the files of profiles, explain what dominates, recommend",
    "neuron": "capture, view and summarise profiles with the tools of the Neuron SDK",
}
"""Each command is `command` in the module of this package that has its name."""


class _LazyGroup(click.Group):
    """Lists the commands without importing them, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = did_you_mean(args[0], COMMANDS) or "; see compilewatch profile --help"
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("profile", cls=_LazyGroup)
def command() -> None:
    """Measure what models cost at run time: latency, throughput, memory, graph breaks."""
