"""`compilewatch executor submit`: scripts as a job, and the instance that runs it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compilewatch.config.settings import Settings
from compilewatch.errors import UsageError
from compilewatch.extras.executor.cli.jobs_table import print_output
from compilewatch.extras.executor.cli.options import client_of, client_options, show

if TYPE_CHECKING:
    from compilewatch.extras.executor.client import ExecutorClient
    from compilewatch.extras.executor.protocol import JobRequest


@click.command("submit")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--job", "key", help="The job's key (default: a digest of what is submitted).")
@click.option("--entry", help="The file to run (default: the first).")
@click.option("--argument", "arguments", multiple=True, help="An argument of the script.")
@click.option("--seconds", type=float, help="The job's deadline (1800).")
@click.option("--memory-gib", type=float, help="The job's memory (8).")
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
    key = key or f"job-{_digest(request)}"
    settings, client = client_of(flags)
    with _instance(settings, client, start=trainium):
        state = client.submit(key, request)
        if not (wait or trainium):
            return show(state, as_json)
        if not as_json:
            _follow(client, key)
        return show(client.wait(key), as_json, final=True)


def _instance(
    settings: Settings, client: ExecutorClient, *, start: bool
) -> contextlib.AbstractContextManager[None]:
    if not start:
        return contextlib.nullcontext()
    from compilewatch.extras.executor.instance import instance_of

    return instance_of(settings, client, lambda line: click.echo(line, err=True))


def _request(paths: tuple[Path, ...], flags: dict[str, Any]) -> JobRequest:
    import msgspec

    from compilewatch.extras.executor.protocol import JobRequest

    files: dict[str, str] = {}
    for path in paths:
        for name, file in _files(path):
            try:
                files[name] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise UsageError(f"{file} cannot be submitted: {reason}") from None
    limits: dict[str, Any] = {}
    if flags["seconds"] is not None:
        limits["deadline_seconds"] = flags["seconds"]
    if flags["memory_gib"] is not None:
        limits["memory_bytes"] = int(flags["memory_gib"] * 2**30)
    given = {
        "files": files,
        "entry": flags["entry"] or next(iter(files), "main.py"),
        "arguments": flags["arguments"],
        "limits": limits,
        "profile": flags["profile"],
        "paper_id": flags["paper_id"],
    }
    try:
        return msgspec.convert(given, JobRequest)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a valid job: {error}") from None


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_dir():
        found = sorted(path.rglob("*.py"))
        if not found:
            raise UsageError(f"{path} has no Python file")
        yield from ((file.relative_to(path).as_posix(), file) for file in found)
    else:
        yield path.name, path


def _digest(request: JobRequest) -> str:
    import msgspec

    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()[:24]


def _follow(client: ExecutorClient, key: str) -> None:
    for part in client.follow(key):
        print_output(part)
