"""`compilewatch executor` and `compilewatch trainium`, and what `doctor` says of the sandbox."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compilewatch import config, errors
from compilewatch.cli import options
from compilewatch.config import where_to_set
from compilewatch.errors import ExecutorError, UsageError
from compilewatch.records import digest

if TYPE_CHECKING:
    from compilewatch.cli.machine import DoctorCheck
    from compilewatch.extras.executor.client import ExecutorClient
    from compilewatch.extras.executor.jobs import Setup
    from compilewatch.extras.executor.protocol import JobRequest, JobState
    from compilewatch.extras.executor.trainium import InstanceReport, Operation

RETRY_SECONDS = 10.0
"""How long a command waits for a service that cannot be reached; a workflow waits longer."""

TRUE = ("1", "true", "yes", "on")

say = partial(click.echo, err=True)

token_file = click.option(
    "--token-file",
    "executor_token_file",
    metavar="FILE",
    help="The file with the token (or the variable COMPILEWATCH_EXECUTOR_TOKEN).",
)

client_options = options.together(
    click.option(
        "--endpoint",
        "executor_endpoint",
        metavar="URL",
        help="The service's address (default: the variable TRAINIUM_ENDPOINT).",
    ),
    token_file,
    click.option(
        "--certificates",
        "executor_certificates",
        metavar="FILE",
        help="Trust the certificates in this file.",
    ),
    options.as_json,
)


def client_of(flags: dict[str, Any]) -> tuple[config.Settings, ExecutorClient]:
    """The settings with the options of a command, and the client that they name."""
    from compilewatch.extras.executor.client import open_client

    known = {name: value for name, value in flags.items() if name.startswith("executor_")}
    settings = config.load_settings(known)
    if not (settings.executor.endpoint or os.environ.get("TRAINIUM_ENDPOINT")):
        raise ExecutorError(
            "no executor is named: set TRAINIUM_ENDPOINT, use --endpoint, or set "
            f"{where_to_set('executor.endpoint')}"
        )
    client = open_client(settings, retry_seconds=RETRY_SECONDS)
    click.get_current_context().call_on_close(client.close)
    return settings, client


def print_output(data: bytes) -> None:
    """Print untrusted text: no escape sequence may reach the terminal."""
    text = data.decode(errors="replace")
    sys.stdout.write("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text))
    sys.stdout.flush()


def line_of(state: JobState) -> str:
    """One line about a job."""
    words = [f"{state.key}: {state.state}"]
    if (result := state.result) is not None:
        if result.ending not in ("exited", state.state):
            words.append(f"({result.ending})")
        for name, code in (("exit status", result.exit_code), ("signal", result.signal)):
            words += [f"{name} {code},"] if code else []
        words.append(f"{result.duration_seconds:.1f} s")
        if result.peak_memory_bytes is not None:
            words.append(f"and {result.peak_memory_bytes / 2**20:.0f} MiB")
        if result.artifacts:
            words.append(f"with files: {len(result.artifacts)}")
    if state.message:
        words.append(f"- {state.message}")
    return " ".join(words)


def show_job(state: JobState, as_json: bool, *, final: bool = False) -> int:
    options.show(state, as_json, line_of(state))
    return 1 if final and state.ended and state.state != "done" else 0


@click.command("status")
@click.argument("key", required=False)
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@client_options
def status_verb(key: str | None, wait: bool, as_json: bool, **flags: Any) -> int:
    """Show the job KEY, or the service and its newest jobs.

    The exit status is 1 for a job that ended in any other way than `done`.
    """
    _, client = client_of(flags)
    if key is not None:
        return show_job(client.wait(key) if wait else client.status(key), as_json, final=True)
    health, jobs = client.health(), client.jobs()
    service = (
        f"{client.endpoint}: {health['status']}, {health['running']} running, "
        f"{health['queued']} waiting, {health['concurrency']} at a time."
    )
    text = "\n".join([service, *map(line_of, jobs)])
    options.show({"health": health, "jobs": jobs}, as_json, text)
    return 0


@click.command("logs")
@click.argument("key")
@click.option("--stderr", is_flag=True, help="Show what the script wrote to stderr.")
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@client_options
def logs_verb(key: str, stderr: bool, follow: bool, as_json: bool, **flags: Any) -> int:
    """Show what the job KEY printed. Control characters are replaced."""
    _, client = client_of(flags)
    stream = "stderr" if stderr else "stdout"
    parts = client.parts(key, stream=stream, follow=follow)
    if as_json:
        text = b"".join(parts).decode(errors="replace")
        options.print_json({"key": key, "stream": stream, "text": text})
    else:
        for part in parts:
            print_output(part)
    return 0


@click.command("cancel")
@click.argument("key")
@client_options
def cancel_verb(key: str, as_json: bool, **flags: Any) -> int:
    """Cancel the job KEY and wait until it has ended."""
    _, client = client_of(flags)
    client.cancel(key)
    return show_job(client.wait(key), as_json)


@click.command("fetch")
@click.argument("key")
@click.option(
    "--to", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where."
)
@client_options
def fetch_verb(key: str, folder: Path, as_json: bool, **flags: Any) -> None:
    """Write the files that the job KEY left in /job/out into a folder."""
    _, client = client_of(flags)
    written = [str(path) for path in client.fetch(key, folder)]
    options.show(written, as_json, "\n".join(written) or f"{key} left no files.")


@click.command("submit")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--job", "key", help="The job's key (default: a digest of what is submitted).")
@click.option("--entry", help="The file to run (default: the first).")
@click.option("--argument", "arguments", multiple=True, help="An argument of the script.")
@click.option("--seconds", default=1800.0, show_default=True, help="The job's deadline.")
@click.option("--memory-gib", default=8.0, show_default=True, help="The job's memory.")
@click.option("--profile", is_flag=True, help="Take a Neuron profile, where that is enabled.")
@click.option("--paper", "paper_id", default="", help="The paper that the code belongs to.")
@click.option("--wait", is_flag=True, help="Wait for the end, and show the output.")
@click.option(
    "--trainium",
    is_flag=True,
    help="Start the Trainium instance first; afterwards stop it, unless anybody's job runs.",
)
@client_options
def submit_verb(
    paths: tuple[Path, ...],
    key: str | None,
    wait: bool,
    trainium: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Submit scripts: the first of PATHS runs (or --entry), beside the others.

    A folder is submitted with the Python files in it. Submitting the same again is the same job.
    With --wait the exit status is 1 unless the job ends as `done`.
    """
    request = _request(paths, flags)
    key = key or f"job-{digest(request)[:24]}"
    settings, client = client_of(flags)
    with contextlib.ExitStack() as stack:
        if trainium:
            from compilewatch.extras.executor import trainium as instances

            place = instances.state_file(settings)
            operation = instances.Operation(settings, place, say)
            stack.enter_context(instances.running(operation, client, say))
        state = client.submit(key, request)
        if not (wait or trainium):
            return show_job(state, as_json)
        for part in () if as_json else client.parts(key, follow=True):
            print_output(part)
        return show_job(client.wait(key), as_json, final=True)


def _request(paths: tuple[Path, ...], flags: dict[str, Any]) -> JobRequest:
    import msgspec

    from compilewatch.extras.executor.protocol import JobRequest

    files: dict[str, str] = {}
    for path in paths:
        scripts = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not scripts:
            raise UsageError(f"{path} has no Python file")
        for file in scripts:
            name = file.name if file == path else file.relative_to(path).as_posix()
            try:
                files[name] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise UsageError(f"{file} cannot be submitted: {reason}") from None
    memory = int(flags["memory_gib"] * 2**30)
    limits = {"deadline_seconds": flags["seconds"], "memory_bytes": memory}
    fields = {name: flags[name] for name in ("arguments", "profile", "paper_id")}
    fields |= {"files": files, "entry": flags["entry"] or next(iter(files)), "limits": limits}
    try:
        return msgspec.convert(fields, JobRequest)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a valid job: {error}") from None


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
    from compilewatch.extras.executor.service import serve

    if (certificate is None) != (key is None):
        raise UsageError("TLS needs both --certificate and --key")
    settings = config.load_settings({**flags, "executor_visible": list(visible) or None})
    own = settings.executor
    if devices and own.concurrency > 1:
        raise UsageError("jobs that get a device run one at a time: use --jobs 1")
    folder = Path(own.state or (settings.cache_folder or config.cache_folder()) / "executor")
    profiles = None
    if os.environ.get("NEURON_PROFILER_ENABLED", "").lower() in TRUE:
        profiles = Path(os.environ.get("PROFILER_OUTPUT_DIR") or folder / "profiles").absolute()
    setup = _setup(settings, devices, profiles)
    serve(setup, folder, certificate=certificate, key=key, say=say)


def _setup(settings: config.Settings, devices: tuple[str, ...], profiles: Path | None) -> Setup:
    from compilewatch.environments import Environments
    from compilewatch.extras.executor import sandbox
    from compilewatch.extras.executor.jobs import Setup
    from compilewatch.extras.executor.sandbox.policy import SandboxLimits

    own = settings.executor
    chosen = Environments(settings.cache_folder).interpreter(own.environment)
    memory = int(own.max_memory_gib * 2**30)
    longest = os.environ.get("MAX_EXECUTION_TIME") or own.max_seconds
    try:
        seconds = float(longest)
    except ValueError:
        raise UsageError(f"MAX_EXECUTION_TIME: {longest!r} is not a number of seconds") from None
    spec = sandbox.planned(
        ["python"],
        python=chosen.path,
        variables=dict(chosen.variables),
        visible=own.visible,
        devices=devices,
        limits=SandboxLimits(
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
    )
    return Setup(own, spec, profiles)


command = click.Group(
    "executor",
    help="""Run code that nobody has reviewed in sandboxes: a service, and the commands that use it.

    See docs/executor.md for the protocol and for what the sandbox holds and does not hold.
    """,
    commands=[serve_verb, submit_verb, status_verb, logs_verb, cancel_verb, fetch_verb],
)

_which = options.together(
    click.option("--instance", "trainium_instance", metavar="ID", help="The id of the instance."),
    click.option("--tag", "trainium_tag", metavar="NAME=VALUE", help="The tag of the instance."),
    click.option("--region", "trainium_region", metavar="NAME", help="The AWS region."),
    click.option(
        "--state",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The file that records what this run started (default: in the cache folder).",
    ),
    options.as_json,
)
"""The options that select the instance and identify the run that uses it."""


@click.group("trainium")
def trainium_command() -> None:
    """Start the Trainium instance for a run and stop it afterwards (settings `trainium_*`).

    A run is identified by its state file (--state). The exit status is 1 if the instance is
    unavailable at the moment (no capacity, no response before the deadline), and 2 for errors that
    a later attempt would not avoid. Not yet tested on AWS; see docs/trainium.md.
    """


@trainium_command.command("up")
@_which
def up_verb(state: Path | None, as_json: bool, **flags: Any) -> None:
    """Start the instance unless it runs, and wait until its agent responds.

    If that fails or is interrupted, the instance is stopped again.
    """
    _show(_operation(state, flags).up(), as_json)


@trainium_command.command("down")
@click.option("--force", is_flag=True, help="Stop it even if this run did not start it.")
@click.option("--wait/--no-wait", default=True, help="Wait until it has stopped (default).")
@_which
def down_verb(state: Path | None, as_json: bool, force: bool, wait: bool, **flags: Any) -> None:
    """Stop the instance if this run started it, and show what it cost.

    It is not stopped while the executor that TRAINIUM_ENDPOINT names runs a job of anybody, or
    does not respond (exit status 1); --force stops it nevertheless.
    """
    operation = _operation(state, flags)
    named = config.load_settings().executor.endpoint or os.environ.get("TRAINIUM_ENDPOINT")
    if not force and named and operation.started_here():
        from compilewatch.extras.executor.trainium import hold

        if (reason := hold(client_of({})[1])) is not None:
            raise errors.TrainiumUnavailableError(
                f"the instance keeps running, because {reason}; --force stops it"
            )
    _show(operation.down(force=force, wait=wait), as_json)


@trainium_command.command("status")
@_which
def trainium_status(state: Path | None, as_json: bool, **flags: Any) -> int:
    """Show whether the instance runs and responds, and what it costs.

    The exit status is 1 if the instance cannot be used.
    """
    report = _operation(state, flags).status()
    _show(report, as_json)
    return 0 if report.ready else 1


def _operation(state: Path | None, flags: dict[str, Any]) -> Operation:
    # Importing boto3 takes a quarter of a second, which --help should not cost.
    from compilewatch.extras.executor.trainium import Operation, state_file

    # A tag on the command line takes precedence over an instance id in the file of settings.
    if flags.get("trainium_tag") and not flags.get("trainium_instance"):
        flags["trainium_instance"] = ""
    settings = config.load_settings(flags)
    return Operation(settings, state or state_file(settings), say)


def _show(report: InstanceReport, as_json: bool) -> None:
    options.show(report, as_json, " ".join(_sentences(report)))


def _sentences(report: InstanceReport) -> Iterator[str]:
    name = f"{report.instance} ({report.type}, {report.region})"
    where = f"{report.host}:{report.port}"
    if report.action == "nothing" and not report.instance:
        yield "This run started no instance, so there is nothing to stop. (--force stops it.)"
        return
    if report.action == "left":
        yield f"{report.instance} keeps running: this run did not start it. (--force stops it.)"
        return
    if report.action == "was stopped":
        yield f"{name} was {report.state} already."
    elif report.action == "stopped" or report.problem is None:
        yield f"{name} is {report.state}."
    elif report.problem:
        yield f"{name} is running (checks: {report.checks}), but {where}: {report.problem}."
    else:
        yield f"{name} is running and responds on {where}."
    yield _money(report)
    if report.action in ("started", "joined"):
        down = "Stop it with: compilewatch trainium down."
        left = "This run did not start it, so `down` leaves it running."
        yield down if report.started_by_run else left


def _money(report: InstanceReport) -> str:
    """The price and the cost. An instance that was stopped before `down` cost less than shown."""
    if report.price is None:
        return "Its cost is unknown: add a row for this type to inputs/trainium_prices.toml."
    price = f"${report.price.usd_per_hour:g} an hour as of {report.price.date}"
    if report.usd is None or report.seconds is None:
        return f"Running costs {price}."
    most = "at most " if report.action == "was stopped" else ""
    minutes = report.seconds / 60
    return f"Cost: {most}${report.usd:.2f} for {minutes:.1f} min, at {price}, without disks."


def sandbox_check() -> DoctorCheck:
    """What `compilewatch doctor` says: whether unreviewed code can be confined here."""
    from compilewatch.cli.machine import DoctorCheck
    from compilewatch.extras.executor import sandbox
    from compilewatch.extras.executor.sandbox import policy

    try:
        guard = sandbox.check()
    except errors.CompilewatchError as error:
        return DoctorCheck(
            name="sandbox",
            state="note",
            fact="generated code and jobs of the executor do not run",
            advice=str(error),
        )
    fact = "bubblewrap holds against the attacks tried"
    if guard is policy.MemoryGuard.WATCHER:
        fact += "; no cgroup limits memory, so a watcher does, 50 times a second"
    return DoctorCheck(name="sandbox", state="ok", fact=fact)
