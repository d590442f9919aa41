"""`compilewatch executor`: the service that runs submitted code in sandboxes, and its client."""

from __future__ import annotations

import os

import click

from compilewatch.config.settings import load_settings
from compilewatch.extras.executor.cli.jobs import cancel_verb, fetch_verb, logs_verb, status_verb
from compilewatch.extras.executor.cli.options import client_of
from compilewatch.extras.executor.cli.serve import serve_verb
from compilewatch.extras.executor.cli.submit import submit_verb
from compilewatch.extras.executor.settings import ExecutorSettings

command = click.Group(
    "executor",
    help="""Run code that nobody has reviewed in sandboxes: a service, and the commands that use it.

    See docs/executor.md for the protocol and for what the sandbox holds and does not hold.
    """,
    commands=[serve_verb, submit_verb, status_verb, logs_verb, cancel_verb, fetch_verb],
)


def reason_to_keep_running() -> str | None:
    """Why the instance of the executor must not be stopped; None if it may, or there is none."""
    if not (load_settings().of(ExecutorSettings).endpoint or os.environ.get("TRAINIUM_ENDPOINT")):
        return None
    from compilewatch.extras.executor.instance import hold

    _, client = client_of({})
    with client:
        return hold(client)
