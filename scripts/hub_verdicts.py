"""Evaluates the most downloaded repositories of a list of the Hub, and prints verdicts by library.

    python -m scripts.hub_verdicts LIST.csv --top 100 --output DIR

The repositories are made locally (`scripts.local_repositories` says what of them is assumed), in
DIR/pulled; the run is stored in DIR/outputs. The printed table is the one of README.md. It needs
the environment `libraries`; models whose environment does not exist have no verdict.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from compilewatch.records import ConfigBuild, LibraryBuild, Part, Result, Status
from compilewatch.store import Store
from scripts.local_repositories import NOT_PYTORCH, REMOTE_CODE, make

HEADER = (
    "| library | repositories | with a verdict | without graph breaks | with breaks (breaks) "
    "| `fullgraph=True` accepted |"
)
ORDER = (
    *("Transformers", "sentence-transformers", "timm", "diffusers", "open_clip", "PEFT"),
    *("other libraries", "not resolved", "code of their own", "other formats than PyTorch"),
)
PROGRAM = Path(sys.executable).with_name("compilewatch")
SWEEP = ("sweep", "--source", "hub", "--all", "--depth", "reduced", "--modes", "eval")


def group_of(results: Sequence[Result]) -> str:
    """Return the row in which a repository is counted: what builds it, or why nothing does."""
    built = [result for result in results if result.status is not Status.SKIPPED]
    if not built:
        reason = results[0].detail or ""
        if reason.startswith(NOT_PYTORCH):
            return "other formats than PyTorch"
        return "code of their own" if reason.startswith(REMOTE_CODE) else "not resolved"
    model = built[0].request.model
    builds = [result.request.model.build for result in built]
    libraries = {build.library for build in builds if isinstance(build, LibraryBuild)}
    if libraries - set(ORDER):
        return "other libraries"
    if model.part in (Part.COMPONENT, Part.BASE_COMPONENT):
        return "diffusers"
    if isinstance(model.build, LibraryBuild):
        return model.build.library
    adapted = isinstance(model.build, ConfigBuild) and model.build.adapter_file is not None
    return "PEFT" if adapted or model.part is Part.BASE else "Transformers"


def table(results: Iterable[Result]) -> str:
    """Return a table with a line for each library; a repository counts once."""
    repositories: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        repositories[result.request.model.repository or result.request.model.name].append(result)
    groups: defaultdict[str, list[list[Result]]] = defaultdict(list)
    for found in repositories.values():
        groups[group_of(found)].append(found)
    lines = [HEADER, "|---|---|---|---|---|---|"]
    lines += [_line(name, groups[name]) for name in ORDER if name in groups]
    lines.append(_line("all", list(repositories.values())))
    return "\n".join(lines)


def _line(name: str, repositories: Sequence[Sequence[Result]]) -> str:
    evaluated = [[r for r in result if r.status is not Status.SKIPPED] for result in repositories]
    judged = [result for result in evaluated if result and all(r.is_verdict for r in result)]
    passed = sum(all(r.status is Status.PASS for r in result) for result in judged)
    broken = [result for result in judged if any(r.breaks for r in result)]
    breaks = sum(b.occurrences for result in broken for r in result for b in r.breaks)
    accepted = sum(all(r.fullgraph and r.fullgraph.accepted for r in result) for result in judged)
    counts = (len(repositories), len(judged), passed, f"{len(broken)} ({breaks})", accepted)
    return f"| {name} | {' | '.join(map(str, counts))} |"


@click.command()
@click.argument("listing", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--top", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path))
def command(listing: Path, top: int, jobs: int, output: Path) -> None:
    """Evaluate repositories like those of LISTING and print the verdicts by library."""
    with listing.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: -int(row["downloads"]))[:top]
    pulled = make(rows, (output / "pulled").resolve(), top).parent
    outputs = (output / "outputs").resolve()
    swept = subprocess.run(
        [PROGRAM, *SWEEP, f"--jobs={jobs}", f"--output={outputs}"],
        env={**os.environ, "COMPILEWATCH_PULLED_DIR": str(pulled)},
        check=False,
    )
    if swept.returncode != 0:
        sys.exit(swept.returncode)
    click.echo(f"\n{table(Store(outputs).open().results())}")


if __name__ == "__main__":
    command()
