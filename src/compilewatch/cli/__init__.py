"""The command line. The module of a command is imported only when that command is called.

Exit statuses: 0 success; 1 a condition of `--fail-on` is met; 2 wrong input or environment, with a
message of one line; 3 incomplete (results are missing, nothing ran, a pull was cut short, a service
did not accept a run); 130 interrupted.
"""

import signal
import sys
from typing import Any

import click

from compilewatch import __version__, extras, plugins
from compilewatch.errors import CompilewatchError, did_you_mean

_CORE = (
    ("sweep", "sweeps", "check models on compile targets and report"),
    ("explain", "one_model", "check one model now and show its graph breaks with their lines"),
    ("inputs", "one_model", "show, or save for editing, the example inputs of a model"),
    ("show", "stored_runs", "show the stored results of a model"),
    ("runs", "stored_runs", "list the stored runs"),
    ("compare", "stored_runs", "show what changed between two runs"),
    ("leverage", "stored_runs", "show what to fix first, so that most models have no graph break"),
    ("merge", "sweeps", "join the runs of a sweep's shards into one run"),
    ("report", "stored_runs", "write the report, junit.xml and metrics of a stored run again"),
    ("publish", "stored_runs", "send a stored run to the configured Pushgateway, Loki and S3"),
    ("prune", "stored_runs", "delete stored runs that newer ones have superseded"),
    ("reproduce", "one_model", "print a script of plain PyTorch that shows a model's verdict"),
    ("list-targets", "machine", "list the compile targets and which of them this machine can run"),
    ("list-sources", "machine", "list where models come from, and the libraries that are missing"),
    ("env", "machine", "create, list and check the environments that workers run in"),
    ("neuron", "neuron", "compile captured HLO modules with the compiler of the Neuron SDK"),
    ("doctor", "machine", "show what this machine can run, and which command installs the rest"),
)
"""Each command with its module and its line in the list of `--help`."""

COMMANDS: dict[str, extras.Command] = {
    name: extras.Command(f"compilewatch.cli.{module}:{name.replace('-', '_')}_command", line)
    for name, module, line in _CORE
} | extras.COMMANDS
"""Every command: those of the core, then those of the extras."""


class LazyGroup(click.Group):
    """Lists the commands of a table without importing them, so that `--help` is fast."""

    table = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.table:
            return None
        command = plugins.load(self.table[cmd_name].implementation, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise plugins.missing(error, ctx.invoked_subcommand or "") or error from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.table:
            hint = did_you_mean(args[0], self.table) or f"; see {ctx.command_path} --help"
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, names in (
            ("Commands", [name for name in self.table if name not in extras.COMMANDS]),
            ("Commands of extras", [name for name in extras.COMMANDS if name in self.table]),
        ):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, self.table[name].help) for name in names])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="compilewatch")
def group() -> None:
    """Show which models compile without graph breaks, which do not, and why.

    Exit statuses: 0 success; 1 a condition of --fail-on is met; 2 wrong input or environment;
    3 incomplete, or nothing ran; 130 interrupted.
    """


def main() -> None:
    """The `compilewatch` program: prints each of its own errors as one line and sets the status."""
    # CI servers abort a build with SIGTERM: end as with Ctrl-C, and keep the finished results.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = group.main(prog_name="compilewatch", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except CompilewatchError as error:
        what, status = str(error), error.exit_status
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort) as error:
        kept = str(error.__cause__ or "") or "all finished results are kept"  # click raises Abort
        what, status = f"interrupted; {kept}", 130
    except BrokenPipeError:
        sys.exit(0)
    except UnicodeEncodeError as error:
        character = f"{error.encoding} cannot encode {error.object[error.start]!a}"
        what, status = f"the output's encoding {character}: set PYTHONIOENCODING=utf-8", 2
    except (MemoryError, RecursionError) as error:
        name = type(error).__name__
        what, status = f"an input is too large or nested too deeply ({name})", 2
    except OSError as error:
        # An error that no other module has handled: most often the output cannot be written.
        where = f"{error.filename}: " if error.filename else ""
        what, status = f"{where}{error.strerror or error}", 2
    click.echo(f"compilewatch: {what}", err=True)
    sys.exit(status)
