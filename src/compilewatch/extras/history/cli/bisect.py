"""`compilewatch bisect`: the release of torch or Transformers that changed a model's result."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from compilewatch.api.launching import local_launcher
from compilewatch.api.requests import one_target
from compilewatch.api.selection import one_model, split
from compilewatch.api.worker_client import check_nested_graph_breaks
from compilewatch.cli import completion, options
from compilewatch.config.settings import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.environments.versions import release_of
from compilewatch.errors import UnknownModelError, UsageError
from compilewatch.extras.history.bisect import (
    PACKAGES,
    FileChange,
    Question,
    bisect,
    candidates,
    preparing,
    source_changes,
)
from compilewatch.extras.history.bisection import Bisection, Evaluated, Kind
from compilewatch.extras.history.cli.bisection_table import bisection_table, evaluated_line
from compilewatch.extras.history.versions import Evaluator
from compilewatch.records import DEFAULT_ENVIRONMENT, Mode, ModelSpec, Record
from compilewatch.report.terminal.pieces import console
from compilewatch.store import Store

INCOMPLETE = 3


class BisectReport(Record, frozen=True, kw_only=True):
    """The output of `--json`. `other` is the release of the package that stayed the same."""

    model: str
    package: str
    other: str
    bisection: Bisection
    changes: tuple[FileChange, ...]


@click.command("bisect")
@click.argument("model", shell_complete=completion.models)
@click.option("--package", type=click.Choice(PACKAGES), default="transformers", show_default=True)
@click.option("--good", metavar="VERSION", required=True, help="One end: a release of the package.")
@click.option("--bad", metavar="VERSION", required=True, help="The other end, newer or older.")
@click.option("--torch", metavar="VERSION", help="The torch that stays the same (the installed).")
@click.option("--transformers", metavar="VERSION", help="The Transformers, likewise.")
@options.source
@click.option("--target", default="dynamo", show_default=True, help="The compile target.")
@click.option("--mode", type=click.Choice([m.value for m in Mode]), default=Mode.EVAL.value)
@options.dynamic
@options.nested_graph_breaks
@click.option(
    "--device", metavar="NAME", help="cpu, or a declared device, which need not be present: cuda."
)
@options.dtype
@options.depth
@options.variants
@options.tier
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=40,
    show_default=True,
    help="How many changed lines of each file are shown.",
)
@options.output
@options.as_json
def command(
    *,
    model: str,
    package: str,
    good: str,
    bad: str,
    torch: str | None,
    transformers: str | None,
    target: str,
    mode: str,
    dynamic: bool | None,
    device: str | None,
    lines: int,
    as_json: bool,
    **flags: Any,
) -> int:
    """Find the two adjacent releases between which the result of MODEL changed.

    The result is its verdict and its set of graph breaks. Each release is evaluated in an
    environment of its own, which is created when it is needed and kept; it shares the files of
    torch with others of the same torch. Results are stored, so that a search that was interrupted
    continues where it was. The exit status is 3 if the result of --good or --bad is not known.
    """
    settings = load_settings(flags | {"devices": split(device), "jobs": 1})
    other = _other(settings, package, torch, transformers)
    environments = Environments(settings.cache_folder)
    asked = one_target(target, mode=mode, dynamic=dynamic, settings=settings)
    check_nested_graph_breaks([asked], settings, asked=flags["nested_graph_breaks"])
    versions = candidates(package, good, bad)
    evaluator = Evaluator(
        store=Store(Path(settings.output_dir)),
        settings=settings,
        launch=lambda chosen, names: local_launcher(chosen, names, single=True),
        selection={"bisect": package},
    )

    found = bisect(
        Question(model=model, target=asked, package=package, other=other),
        versions,
        evaluator,
        choose=partial(_choose, settings),
        prepare=preparing(environments, options.show_creation),
        report=partial(_report, package),
    )
    ends = found.evaluated[0], found.evaluated[-1]
    if all(end.kind is Kind.ABSENT for end in ends):
        raise UnknownModelError(ends[1].detail, model)
    changes = source_changes(found, environments, lines)
    if as_json:
        options.print_json(
            BisectReport(
                model=model, package=package, other=other, bisection=found, changes=changes
            )
        )
    else:
        console().print(bisection_table(model, package, other, found, changes))
    return INCOMPLETE if Kind.UNDETERMINED in {end.kind for end in ends} else 0


def _choose(settings: Settings, name: str, environment: str) -> ModelSpec:
    """The model as the Transformers of the environment has it."""
    return one_model(settings, name, environment=environment)


def _report(package: str, found: Evaluated, number: int, limit: int) -> None:
    console(stderr=True).print(evaluated_line(package, found, number, limit))


def _other(settings: Settings, package: str, torch: str | None, transformers: str | None) -> str:
    """The release of the package that stays the same. Raises UsageError, InterpreterError."""
    named = {"torch": torch, "transformers": transformers}
    if named[package] is not None:
        raise UsageError(f"--{package} stays the same: choose another --package, or omit it")
    (name,) = set(named) - {package}
    if (release := named[name]) is not None:
        return release
    installed = Environments(settings.cache_folder).describe(DEFAULT_ENVIRONMENT)
    return release_of(installed.torch if name == "torch" else installed.transformers or "0")
