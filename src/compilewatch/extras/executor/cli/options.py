"""The options of the executor's commands, and the client that they make."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compilewatch.cli import options
from compilewatch.config.settings import Settings, load_settings, where_to_set
from compilewatch.errors import ExecutorError
from compilewatch.extras.executor.cli.jobs_table import line_of
from compilewatch.extras.executor.settings import ExecutorSettings

if TYPE_CHECKING:
    from compilewatch.extras.executor.client import ExecutorClient
    from compilewatch.extras.executor.protocol import JobState

RETRY_SECONDS = 10.0
"""How long a command waits for a service that cannot be reached; a workflow waits longer."""

token_file = click.option(
    "--token-file",
    "executor_token_file",
    metavar="FILE",
    help="The file with the token (or the variable COMPILEWATCH_EXECUTOR_TOKEN).",
)


def client_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorator in (
        options.as_json,
        click.option(
            "--certificates",
            "executor_certificates",
            metavar="FILE",
            help="Trust the certificates in this file.",
        ),
        token_file,
        click.option(
            "--endpoint",
            "executor_endpoint",
            metavar="URL",
            help="The service's address (default: the variable TRAINIUM_ENDPOINT).",
        ),
    ):
        function = decorator(function)
    return function


def token_of(settings: Settings) -> str:
    from compilewatch.extras.executor.server import read_token

    own = settings.of(ExecutorSettings)
    return read_token(Path(own.token_file)) if own.token_file else own.token


def client_of(flags: dict[str, Any]) -> tuple[Settings, ExecutorClient]:
    from compilewatch.extras.executor.client import ExecutorClient

    known = {name: value for name, value in flags.items() if name.startswith("executor_")}
    settings = load_settings(known)
    own = settings.of(ExecutorSettings)
    endpoint = own.endpoint or os.environ.get("TRAINIUM_ENDPOINT", "")
    if not endpoint:
        raise ExecutorError(
            "no executor is named: set TRAINIUM_ENDPOINT, use --endpoint, or set "
            f"{where_to_set('executor.endpoint')}"
        )
    certificates = Path(own.certificates) if own.certificates else None
    client = ExecutorClient(
        endpoint, token_of(settings), retry_seconds=RETRY_SECONDS, certificates=certificates
    )
    click.get_current_context().call_on_close(client.close)
    return settings, client


def show(state: JobState, as_json: bool, *, final: bool = False) -> int:
    if as_json:
        options.print_json(state)
    else:
        click.echo(line_of(state))
    return 1 if final and state.ended and state.state != "done" else 0
