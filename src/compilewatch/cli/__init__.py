"""The command line: one module per verb, imported only when its verb is called.

Exit statuses: 0 done; 1 something that `--fail-on` names was found; 2 wrong input or environment,
said in one line; 3 incomplete (results are missing, nothing ran, a pull was cut short, a service
did not take a run); 130 interrupted.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

import click

from compilewatch import __version__
from compilewatch.errors import CompilewatchError, did_you_mean

VERBS: dict[str, str] = {
    "sweep": "check models on compile targets and report",
    "explain": "check one model now and show its breaks with their source lines",
    "pull": "ask the Hub for its most used models and pin them in a list",
    "inputs": "show, or save for editing, the example inputs of a model",
    "show": "show the stored results of a model",
    "runs": "list the stored runs",
    "compare": "show what changed between two runs",
    "merge": "join the runs of a sweep's shards",
    "report": "write the report, junit.xml and metrics of a stored run again",
    "publish": "send a stored run to the Pushgateway, Loki and S3 that are set",
    "prune": "delete stored runs that newer ones have superseded",
    "reproduce": "print a script of plain PyTorch that shows a model's verdict",
    "list-targets": "list the compile targets and which of them this machine can run",
    "env": "make, list and check the environments that workers run in",
    "neuron": "compile captured HLOs with the Neuron SDK's compiler, where that is installed",
    "trainium": "start the Trainium instance, stop it again, say what it costs",
    "doctor": "say what this machine can run, what is missing and what to type",
}


class LazyGroup(click.Group):
    """Lists verbs without importing them, so that `--help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command: Any = importlib.import_module(
            f"compilewatch.cli.verbs.{cmd_name.replace('-', '_')}"
        ).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            hint = did_you_mean(args[0], VERBS) or "; see compilewatch --help"
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="compilewatch")
def group() -> None:
    """compilewatch: which models compile without graph breaks, which do not, and why.

    Exit statuses: 0 done; 1 something that --fail-on names was found; 2 wrong input or
    environment; 3 incomplete, or nothing ran; 130 interrupted.
    """


def main() -> None:
    """The `compilewatch` program: maps every error of ours to one line and its exit status."""
    # An aborted build is told so by SIGTERM: end as at Ctrl-C, with what is done kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = group.main(standalone_mode=False)
    except CompilewatchError as error:
        click.echo(f"compilewatch: {error}", err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("compilewatch: interrupted; what was done is kept", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except UnicodeEncodeError as error:
        what = f"the output's encoding, {error.encoding}, lacks {error.object[error.start]!a}"
        click.echo(f"compilewatch: {what}: set PYTHONIOENCODING=utf-8", err=True)
        sys.exit(2)
    except OSError as error:
        # What nothing below has put into words: most often the output cannot be written.
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"compilewatch: {where}{error.strerror or error}", err=True)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
