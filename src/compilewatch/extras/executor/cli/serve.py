"""`compilewatch executor serve`: the service that runs submitted code in sandboxes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compilewatch.config.paths import cache_folder
from compilewatch.config.settings import Settings, load_settings
from compilewatch.errors import UsageError
from compilewatch.extras.executor.cli.options import token_file, token_of
from compilewatch.extras.executor.settings import ExecutorSettings

if TYPE_CHECKING:
    from compilewatch.extras.executor.runner import NeuronInspect, Setup

TRUE = ("1", "true", "yes", "on")


@click.command("serve")
@click.option("--host", "executor_host", metavar="ADDRESS", help="Listen here (127.0.0.1).")
@click.option("--port", "executor_port", type=int, metavar="N", help="Listen here (8000).")
@token_file
@click.option("--certificate", type=click.Path(path_type=Path), help="TLS: the certificate.")
@click.option("--key", type=click.Path(path_type=Path), help="TLS: its key.")
@click.option("--state", "executor_state", metavar="DIR", help="The folder of the jobs.")
@click.option(
    "--environment", "executor_environment", metavar="NAME", help="Run jobs with its Python."
)
@click.option("--jobs", "executor_concurrency", type=int, metavar="N", help="Jobs at a time (1).")
@click.option(
    "--max-seconds", "executor_max_seconds", type=float, help="The longest time of a job (3600)."
)
@click.option(
    "--max-memory-gib", "executor_max_memory_gib", type=float, help="The most memory of a job (8)."
)
@click.option(
    "--visible", multiple=True, metavar="DIR", help="A folder that jobs can read, such as datasets."
)
@click.option(
    "--allow-device",
    "devices",
    multiple=True,
    metavar="/dev/neuronN",
    help="Give jobs this device. Whoever runs a job then owns the instance: docs/executor.md.",
)
def serve_verb(
    certificate: Path | None,
    key: Path | None,
    visible: tuple[str, ...],
    devices: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run the service until it is stopped. Its jobs survive it: the next one goes on with them.

    It listens on the loopback address, and elsewhere only with a token. It does not start where
    it cannot confine what it is to run, and says which command changes that. MAX_EXECUTION_TIME,
    NEURON_PROFILER_ENABLED and PROFILER_OUTPUT_DIR are read as well.
    """
    from compilewatch.extras.executor.server import Address, ServiceOptions, serve

    if (certificate is None) != (key is None):
        raise UsageError("TLS needs both --certificate and --key")
    settings = load_settings({**flags, "executor_visible": list(visible) or None})
    own = settings.of(ExecutorSettings)
    if devices and own.concurrency > 1:
        raise UsageError("jobs that get a device run one at a time: use --jobs 1")
    address = Address(host=own.host, port=own.port, certificate=certificate, key=key)
    setup = _setup(settings, devices)
    service = ServiceOptions(
        address=address, token=token_of(settings), state=_state(settings), setup=setup
    )

    def say(port: int) -> None:
        click.echo(
            f"The executor listens on {own.host}:{port} and keeps its jobs in {service.state}. It "
            f"runs {setup.concurrency} at a time with {setup.python}.",
            err=True,
        )

    def say_wait() -> None:
        click.echo(f"Another executor uses {service.state}: waiting for it to end.", err=True)

    serve(service, say, say_wait)


def _setup(settings: Settings, devices: tuple[str, ...]) -> Setup:
    from compilewatch.environments import Environments
    from compilewatch.extras.executor.runner import Setup
    from compilewatch.extras.executor.sandbox.policy import SandboxLimits

    own = settings.of(ExecutorSettings)
    chosen = Environments(settings.cache_folder).interpreter(own.environment)
    memory = int(own.max_memory_gib * 2**30)
    seconds = own.max_seconds
    if given := os.environ.get("MAX_EXECUTION_TIME"):
        try:
            seconds = float(given)
        except ValueError:
            raise UsageError(f"MAX_EXECUTION_TIME: {given!r} is not a number of seconds") from None
    return Setup(
        python=chosen.path,
        visible=own.visible,
        devices=devices,
        variables=tuple(chosen.variables.items()),
        concurrency=own.concurrency,
        keep_days=own.keep_days,
        ceiling=SandboxLimits(
            deadline_seconds=seconds,
            memory_bytes=memory,
            processes=1024,
            open_files=4096,
            disk_bytes=memory,
            disk_files=1_000_000,
            log_bytes=64 * 2**20,
            output_bytes=256 * 2**20,
            output_files=2000,
        ),
        profiler=_profiler(settings),
    )


def _profiler(settings: Settings) -> NeuronInspect | None:
    from compilewatch.extras.executor.runner import NeuronInspect

    if os.environ.get("NEURON_PROFILER_ENABLED", "").lower() not in TRUE:
        return None
    searched = f"{os.environ.get('PATH', '')}:/opt/aws/neuron/bin"
    program = shutil.which("neuron-profile", path=searched)
    if program is None:
        raise UsageError(
            "NEURON_PROFILER_ENABLED is set, but neuron-profile is not installed: install "
            "aws-neuronx-tools, or unset it"
        )
    folder = os.environ.get("PROFILER_OUTPUT_DIR") or str(_state(settings) / "profiles")
    return NeuronInspect(program=Path(program).absolute(), folder=Path(folder).absolute())


def _state(settings: Settings) -> Path:
    given = settings.of(ExecutorSettings).state
    return Path(given) if given else (settings.cache_folder or cache_folder()) / "executor"
