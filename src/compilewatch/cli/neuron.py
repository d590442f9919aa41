"""`compilewatch neuron compile`: compile HLO modules from other machines with neuronx-cc."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.config import load_settings
from compilewatch.errors import CompilerError, StoreError, UsageError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import HLO_SUFFIX, Compilation, Compiler
from compilewatch.records import NeuronDetail
from compilewatch.report.terminal import console, plain, table
from compilewatch.report.wording import plural

POLL_SECONDS = 0.1

STYLES = {"compiled": "green", "already": "green", "failed": "red"}


Compiled = tuple[Path, Path, str, NeuronDetail]
"""An HLO module, the folder of its NEFF, logs and neuron.json, and what became of it.

`compiled`, `already` (by the same compiler with the same flags) or `failed`.
"""


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
        hlo, _, outcome, detail = compiled
        if not as_json:
            taken = detail.compile_seconds
            after = f", {taken:.1f} s" if taken is not None else ""
            click.echo(f"{len(done)} of {len(modules)}: {outcome} {hlo}{after}", err=True)
    if as_json:
        options.print_json(
            [
                {
                    "hlo": str(hlo),
                    "folder": str(folder),
                    "outcome": outcome,
                    "reason": neuronx_cc.described(detail),
                    "detail": detail,
                }
                for hlo, folder, outcome, detail in done
            ]
        )
    else:
        rows = (
            (
                plain(str(hlo)),
                (outcome, STYLES[outcome]),
                plain(" - ".join(filter(None, (neuronx_cc.described(detail), _advice(detail))))),
            )
            for hlo, _, outcome, detail in done
        )
        filled = table(("HLO", "outcome", "message of the compiler"), rows)
        filled.columns[1].no_wrap = True
        console().print(filled)
    return 1 if any(outcome == "failed" for _, _, outcome, _ in done) else 0


def _advice(detail: NeuronDetail) -> str:
    return detail.failure.advice if detail.failure is not None else ""


def _found(places: Iterable[Path], target: str, output: Path | None) -> dict[Path, Path]:
    """Every HLO module, by the folder of its output.

    Raises UsageError if there is none, or if two have the same folder.
    """
    modules: dict[Path, Path] = {}
    for place in places:
        root = place if place.is_dir() else place.parent
        hlos = sorted(place.rglob(f"*{HLO_SUFFIX}")) if place.is_dir() else [place]
        if not hlos:
            raise UsageError(f"{place} contains no *{HLO_SUFFIX}: name a run with the target xla")
        for hlo in hlos:
            folder = neuronx_cc.folder_of(hlo, target)
            if output is not None:
                folder = output / folder.relative_to(root)
            known = modules.setdefault(folder.absolute(), hlo)
            if known.resolve() != hlo.resolve():
                raise UsageError(
                    f"{known} and {hlo} would both be written to {folder}: compile them separately"
                )
    return modules


def _compile_all(
    modules: dict[Path, Path], compiler: Compiler, target: str, parallel: int, seconds: float
) -> Iterator[Compiled]:
    """Yield each outcome as it finishes. Closing the generator ends the running compilations."""
    waiting = list(modules.items())[::-1]
    running: list[tuple[Path, Compilation]] = []

    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                folder, hlo = waiting.pop()
                earlier = neuronx_cc.earlier_result(folder, compiler, hlo, target)
                if earlier is not None:
                    yield hlo, folder, "already", earlier
                    continue
                try:
                    started = Compilation(compiler, hlo, target, folder, own_session=True)
                except OSError as error:
                    raise StoreError(f"{folder} cannot be written: {error.strerror}") from None
                running.append((hlo, started))
            for hlo, compilation in list(running):
                if compilation.seconds > seconds:
                    compilation.end(neuronx_cc.TIMEOUT, f"not finished after {seconds:g} s")
                if compilation.done():
                    running.remove((hlo, compilation))
                    detail = compilation.detail()
                    outcome = "compiled" if detail.compiled else "failed"
                    yield hlo, compilation.folder, outcome, detail
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        for _, compilation in running:
            compilation.end("interrupted", "ended with compilewatch")
