"""`compilewatch fix`: search for changes that remove a model's graph breaks, and verify them."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from compilewatch.api.choose import one_request
from compilewatch.cli import completion, options
from compilewatch.config import load_settings
from compilewatch.errors import OsErrorsAs, StoreError, UsageError
from compilewatch.extras.fixes.fixing import find_fix
from compilewatch.extras.fixes.of_run import fix_run
from compilewatch.extras.fixes.records import FixStatus
from compilewatch.extras.fixes.search import Limits
from compilewatch.extras.fixes.text import conditions, fix_panel
from compilewatch.report.terminal import console

EXIT_STATUSES = {
    FixStatus.VERIFIED: 0,
    FixStatus.NO_BREAK: 0,
    FixStatus.IMPROVES: 1,
}
"""Any other is 3."""

_OF_RUNS = frozenset(
    ("run", "output_dir", "jobs", "max_evaluations", "max_seconds", "max_model_seconds")
) | {"no_rewrites", "verbose", "as_json"}
"""The parameters that mean something with --all-of."""


@click.command("fix")
@partial(options.one_request_options, optional=True)
@click.option(
    "--all-of",
    "run",
    metavar="RUN",
    shell_complete=completion.runs,
    help="All models of this stored run that have graph breaks: latest, or an id.",
)
@options.output
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="With --all-of: how many models at a time (default: the setting jobs).",
)
@click.option(
    "--max-evaluations",
    type=click.IntRange(min=1),
    default=Limits.evaluations,
    show_default=True,
    help="How many evaluations are made at most.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=1),
    help="After this time nothing new is tried (600; with --all-of, of all models: no limit).",
)
@click.option(
    "--max-model-seconds",
    type=click.FloatRange(min=1),
    default=Limits.seconds,
    show_default=True,
    help="With --all-of: after this time nothing new is tried for a model.",
)
@click.option("--no-rewrites", is_flag=True, help="Try nothing that edits the source of a library.")
@click.option(
    "--shapes",
    is_flag=True,
    help="Not graph breaks, but lines that need a compilation for another size.",
)
@click.option("--cost", is_flag=True, help="Time calls with a verified fix and without it.")
@click.option(
    "--save", type=click.Path(dir_okay=False), help="Write the script that verifies the fix."
)
@click.option("--patch", type=click.Path(dir_okay=False), help="Write rewrites as a unified diff.")
@options.verbose
@options.as_json
def command(
    *,
    model: str | None,
    run: str | None,
    output_dir: str | None,
    jobs: int | None,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    max_evaluations: int,
    max_seconds: float | None,
    max_model_seconds: float,
    no_rewrites: bool,
    shapes: bool,
    cost: bool,
    save: str | None,
    patch: str | None,
    verbose: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search for changes that remove the graph breaks of MODEL, and print what is verified.

    With --all-of, of all models of a stored run: each place once, on three models, and then what
    was found there on all others that have it. What is found is stored in the run.

    Settings of Dynamo, another use of the model, its documented arguments, replacements of single
    functions and rewrites of source lines are tried, the least intrusive first. What Dynamo accepts
    is verified by a script of plain PyTorch in a separate process: single graph, equal results in
    eager mode, as a graph and with Inductor, for two shapes and two seeds, and for unusual values.
    With --shapes, a fix also has fewer compilations in calls of 1 to 8 samples of both shapes.

    Exit statuses: 0 a single graph, verified (or no graph break); 1 fewer graph breaks, verified;
    2 wrong input; 3 nothing is verified. With --all-of: 0 a single graph, verified, for all models;
    1 not for all; 3 a limit has left models that were not searched.
    """
    if run is not None:
        _check_alone()
        with _interrupted("the fixes that were found are stored, and the same command goes on"):
            return fix_run(
                run,
                load_settings({"output_dir": output_dir, "jobs": jobs}),
                limits=Limits(evaluations=max_evaluations, seconds=max_model_seconds),
                max_seconds=max_seconds,
                rewrites=not no_rewrites,
                as_json=as_json,
            )
    if model is None:
        raise UsageError("name a model, or a run with --all-of")
    request, settings = one_request(
        model,
        target=target,
        mode=mode,
        dynamic=dynamic,
        inputs_file=inputs_file,
        flags=flags | {"jobs": 1},
    )
    err = console(stderr=True)
    for file in filter(None, (save, patch)):
        _check_writable(Path(file))
    with _interrupted("the search was not at its end, and nothing of it is stored"):
        fix = find_fix(
            request,
            settings,
            max_evaluations=max_evaluations,
            max_seconds=max_seconds,
            rewrites=not no_rewrites,
            cost=cost,
            shapes=shapes,
            report=lambda what, number: err.print(f"{number + 1:>2}  {what}", markup=False),
        )
    if as_json:
        options.print_json(fix)
    else:
        console().print(fix_panel(fix, verbose=verbose), crop=False)
    diff = "\n".join([*conditions(fix), "", fix.patch])
    for path, has, text in ((save, fix.script, fix.script), (patch, fix.patch, diff)):
        if path is not None and has:
            with OsErrorsAs(StoreError, f"{path} cannot be written"):
                Path(path).write_text(text)
        elif path is not None:
            click.echo(f"compilewatch: {path} is not written: there is nothing for it", err=True)
    return EXIT_STATUSES.get(fix.status, 3)


@contextlib.contextmanager
def _interrupted(message: str) -> Iterator[None]:
    """Let the message of Ctrl-C say what is true of what was found."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message) from None


def _check_alone() -> None:
    """Raises UsageError for a model, or an option of one model, beside --all-of."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name == "model" and context.params.get(name) is not None:
            raise UsageError("name a model, or a run with --all-of, not both")
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _OF_RUNS:
            raise UsageError(f"{option.opts[0]} is about one model: leave it out with --all-of")


def _check_writable(path: Path) -> None:
    """Raises UsageError before a search whose result could not be written."""
    exists = path.exists()
    with OsErrorsAs(UsageError, f"{path} cannot be written"):
        path.open("a").close()
    if not exists:
        path.unlink()
