"""`compilewatch neuron compile`: compile HLO modules from other machines with neuronx-cc."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from compilewatch import files
from compilewatch.cli import options
from compilewatch.config import load_settings
from compilewatch.contract import processes
from compilewatch.errors import CompilerError, UsageError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import HLO_SUFFIX, Compiler
from compilewatch.records import SCHEMA_VERSION, NeuronDetail
from compilewatch.report.wording import plural

Compiled = tuple[str, NeuronDetail]
"""What became of a module: one of `PREFIXES`, where `already` is by this compiler and flags."""

PREFIXES = {"compiled": "", "already": "already ", "failed": "failed: "}


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
            "(docs/neuron.md)"
        )
    family = neuronx_cc.family_of(target)
    seconds = timeout or load_settings().deadlines.neuron_compile_seconds
    modules = _found(places, family, output)
    compiler = neuronx_cc.describe(path)
    count = plural(len(modules), "HLO module")
    click.echo(f"neuronx-cc {compiler.version} for {family}: {count}", err=True)

    def compile_one(folder: Path) -> Compiled:
        earlier = _earlier(folder, compiler, modules[folder], family)
        if earlier is not None:
            return "already", earlier
        detail = neuronx_cc.compile_module(
            compiler, modules[folder], folder, target=family, seconds=seconds
        )
        return "compiled" if detail.compiled else "failed", detail

    done = []
    for folder, (outcome, detail) in _each(compile_one, modules, jobs):
        if outcome != "already":
            files.replace(folder / neuronx_cc.DETAIL_FILE, msgspec.json.encode(detail))
        hlo, reason = str(modules[folder]), neuronx_cc.described(detail)
        entry = {"hlo": hlo, "folder": str(folder), "outcome": outcome, "reason": reason}
        done.append(entry | {"detail": detail})
        advice = detail.failure.advice if detail.failure is not None else ""
        text = PREFIXES[outcome] + " - ".join(filter(None, (reason, advice)))
        click.echo(f"{len(done)} of {len(modules)}: {hlo}: {text}", err=as_json)
    if as_json:
        options.print_json(done)
    return 1 if any(entry["outcome"] == "failed" for entry in done) else 0


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


def _earlier(folder: Path, compiler: Compiler, hlo: Path, target: str) -> NeuronDetail | None:
    """Return the result in the folder if its request was the same and its NEFF is complete."""
    with suppress(OSError, files.DamagedError):
        detail = files.from_json((folder / neuronx_cc.DETAIL_FILE).read_bytes(), NeuronDetail)
        size = (folder / neuronx_cc.NEFF_FILE).stat().st_size
        requested = (SCHEMA_VERSION, compiler.version, compiler.flags(target), size)
        stored = (detail.schema_version, detail.compiler_version, detail.flags, detail.neff_bytes)
        if (*stored, detail.hlo_sha256) == (*requested, neuronx_cc.sha256(hlo)):
            return detail
    return None


def _each(
    function: Callable[[Path], Compiled], folders: Iterable[Path], jobs: int
) -> Iterator[tuple[Path, Compiled]]:
    """Yield what the function returns for each folder, the first to finish first."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(function, folder): folder for folder in folders}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # Interrupted: the threads end with the compilers that they wait for.
            pool.shutdown(wait=False, cancel_futures=True)
            while any(future.running() for future in futures):
                for pid in list(processes.descendants(os.getpid())):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(processes.SAMPLE_SECONDS)
