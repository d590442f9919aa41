"""`compilewatch neuron compile`: compile HLO modules from other machines with neuronx-cc."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich import box
from rich.table import Table
from rich.text import Text

from compilewatch.cli import options
from compilewatch.config import load_settings
from compilewatch.errors import CompilerError, StoreError, UsageError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import HLO_SUFFIX, Compilation, Compiler
from compilewatch.records import NeuronDetail, Record
from compilewatch.report import wording
from compilewatch.report.terminal import console
from compilewatch.report.wording import plural

POLL_SECONDS = 0.1

STYLES = {"compiled": "green", "already": "green", "failed": "red"}


class Compiled(Record, frozen=True, kw_only=True):
    """The outcome of one HLO module. `folder` holds its NEFF, its logs and neuron.json.

    `outcome` is `compiled`, `already` (by the same compiler with the same flags) or `failed`.
    """

    hlo: str
    folder: str
    outcome: str
    reason: str
    detail: NeuronDetail | None = None


class _Job(NamedTuple):
    hlo: Path
    folder: Path


@click.group("neuron")
def neuron_command() -> None:
    """Use the AWS Neuron compiler on a machine that has it. This needs no torch."""


@neuron_command.command("compile")
@click.argument(
    "places",
    metavar="HLO...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--target",
    type=click.Choice(neuronx_cc.TARGETS),
    help="Instance family (default: this machine's, else trn1).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End a compilation after this time (default: deadlines.neuron_compile_seconds).",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the output to this folder (default: beside each HLO module).",
)
@options.as_json
def compile_command(
    *,
    places: tuple[Path, ...],
    target: str | None,
    timeout: float | None,
    jobs: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Compile captured HLO modules: files, or every *.hlo_module.pb below folders such as runs.

    The NEFF, the compiler's logs and neuron.json are written to the folder NAME.TARGET beside
    NAME.hlo_module.pb. A module that the same compiler has already compiled with the same flags is
    skipped. The exit status is 1 if a compilation failed.
    """
    path = neuronx_cc.find()
    if path is None:
        raise CompilerError(
            "neuronx-cc is neither on PATH nor beside this Python: install the Neuron SDK "
            "(docs/guide.md, Neuron)"
        )
    own = neuronx_cc.instance_family()
    chosen = target or (own if own in neuronx_cc.TARGETS else neuronx_cc.DEFAULT_TARGET)
    seconds = timeout or load_settings().deadlines.neuron_compile_seconds
    modules = _found(places, chosen, output)
    compiler = neuronx_cc.describe(path)
    if not as_json:
        click.echo(
            f"neuronx-cc {compiler.version} for {chosen}: {plural(len(modules), 'HLO module')}",
            err=True,
        )
    done: list[Compiled] = []
    for compiled in _compile_all(modules, compiler, chosen, jobs, seconds):
        done.append(compiled)
        if not as_json:
            progress = f"{len(done)} of {len(modules)}: {compiled.outcome} {compiled.hlo}"
            click.echo(f"{progress}{_seconds(compiled.detail)}", err=True)
    if as_json:
        options.print_json(done)
    else:
        console().print(_table(done))
    return 1 if any(compiled.outcome == "failed" for compiled in done) else 0


def _found(places: Iterable[Path], target: str, output: Path | None) -> list[_Job]:
    """Every HLO module and the folder of its output.

    Raises UsageError if there is none, or if two have the same folder.
    """
    jobs: dict[Path, _Job] = {}
    for place in places:
        root = place if place.is_dir() else place.parent
        hlos = sorted(place.rglob(f"*{HLO_SUFFIX}")) if place.is_dir() else [place]
        if not hlos:
            raise UsageError(f"{place} contains no *{HLO_SUFFIX}: name a run with the target xla")
        for hlo in hlos:
            folder = neuronx_cc.folder_of(hlo, target)
            if output is not None:
                folder = output / folder.relative_to(root)
            known = jobs.setdefault(folder.absolute(), _Job(hlo=hlo, folder=folder.absolute()))
            if known.hlo.resolve() != hlo.resolve():
                raise UsageError(
                    f"{known.hlo} and {hlo} would both be written to {folder}: compile them "
                    "separately"
                )
    return list(jobs.values())


def _compile_all(
    jobs: Sequence[_Job], compiler: Compiler, target: str, parallel: int, seconds: float
) -> Iterator[Compiled]:
    """Yield each outcome as it finishes. Closing the generator ends the running compilations."""
    waiting = list(reversed(jobs))
    running: list[tuple[_Job, Compilation]] = []
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                job = waiting.pop()
                earlier = neuronx_cc.earlier_result(job.folder, compiler, job.hlo, target)
                if earlier is not None:
                    yield _compiled(job, "already", earlier)
                else:
                    running.append((job, _start(job, compiler, target)))
            for job, compilation in list(running):
                if compilation.seconds > seconds:
                    compilation.end(neuronx_cc.TIMEOUT, f"not finished after {seconds:g} s")
                if compilation.done():
                    running.remove((job, compilation))
                    detail = compilation.detail()
                    yield _compiled(job, "compiled" if detail.compiled else "failed", detail)
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        for _, compilation in running:
            compilation.end("interrupted", "ended with compilewatch")


def _start(job: _Job, compiler: Compiler, target: str) -> Compilation:
    try:
        return Compilation(compiler, job.hlo, target, job.folder, own_session=True)
    except OSError as error:
        raise StoreError(f"{job.folder} cannot be written: {error.strerror}") from None


def _compiled(job: _Job, outcome: str, detail: NeuronDetail) -> Compiled:
    return Compiled(
        hlo=str(job.hlo),
        folder=str(job.folder),
        outcome=outcome,
        reason=neuronx_cc.described(detail),
        detail=detail,
    )


def _seconds(detail: NeuronDetail | None) -> str:
    taken = detail.compile_seconds if detail is not None else None
    return f", {taken:.1f} s" if taken is not None else ""


def _table(done: Iterable[Compiled]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("HLO", "outcome", "message of the compiler"):
        table.add_column(heading, no_wrap=heading == "outcome", overflow="fold")
    for compiled in done:
        message = compiled.reason
        if compiled.detail is not None and compiled.detail.failure is not None:
            message = " - ".join(filter(None, (message, compiled.detail.failure.advice)))
        outcome = Text(compiled.outcome, style=STYLES[compiled.outcome])
        table.add_row(_text(compiled.hlo), outcome, _text(message))
    return table


def _text(text: str) -> Text:
    return Text(wording.printable(text), overflow="fold")
