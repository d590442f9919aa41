"""Commands that write a run: `sweep`, and `merge` for the runs of its shards."""

from pathlib import Path
from typing import Any

import click

from compilewatch.api.choose import Selection, checked_targets, choose_for_sweep, split
from compilewatch.api.sweep import environments_of, merge, new_run, resume_run
from compilewatch.cli import completion, conditions, options
from compilewatch.cli.progress import ProgressBar
from compilewatch.cli.tables import print_view
from compilewatch.config import load_settings
from compilewatch.contract.targets import TARGETS, target_label
from compilewatch.errors import UsageError
from compilewatch.plan import parse_shard
from compilewatch.records import Depth
from compilewatch.report.sarif import write_run
from compilewatch.store import Store


@click.command("sweep")
@options.source
@click.option("--top", type=click.IntRange(min=1), help="The N most used models (default 25).")
@click.option("--all", "every", is_flag=True, help="Every model of the source.")
@click.option(
    "--models",
    metavar="A,B",
    shell_complete=completion.models,
    help="These models: class, family, org/model, folder, ./FILE.py, MODULE:FACTORY.",
)
@click.option("--families", metavar="A,B", help="Only models of these families.")
@click.option(
    "--heads", type=click.Choice(["default", "all"]), help="Which classes of the library."
)
@click.option(
    "--targets",
    shell_complete=completion.targets,
    metavar="A,B",
    help="Compile targets (default dynamo), or all; NAME:BACKEND for a backend of a target.",
)
@click.option(
    "--environments",
    metavar="A,B",
    help="Run in each of these environments (default: the default of each target).",
)
@click.option("--modes", metavar="A,B", help="eval, train (default eval).")
@click.option(
    "--train-top",
    type=click.IntRange(min=1),
    metavar="N",
    help="With the mode train: train only the N most used of the models.",
)
@click.option("--first", metavar="A,B", help="Begin with these of the models.")
@options.dynamic
@click.option(
    "--shapes/--no-shapes",
    default=None,
    help="On dynamo, also call each model with ten sizes, and store how often it compiles.",
)
@options.nested_graph_breaks
@options.numerics
@click.option(
    "--device",
    "devices",
    metavar="A,B",
    help="cpu (default), or declared devices, which the machine need not have: cuda, cuda:A100, "
    "neuron …",
)
@options.dtype
@options.depth
@options.variants
@options.tier
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel jobs (default: one per core).")
@click.option(
    "--launcher",
    type=click.Choice(["local", "ray"]),
    help="local: this machine; ray: a Ray cluster (default local).",
)
@click.option(
    "--address",
    "ray_address",
    metavar="HOST:PORT",
    help="The Ray cluster (default: RAY_ADDRESS, else a new one on this machine).",
)
@click.option("--fresh", is_flag=True, help="Do not reuse results of earlier runs.")
@click.option(
    "--resume",
    "resumed",
    shell_complete=completion.runs,
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Finish an interrupted run (the newest one by default).",
)
@click.option("--shard", metavar="I/N", help="Run only part I of N; `merge` joins the parts.")
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=completion.runs,
    help="Compare with RUN, auto (default) or none.",
)
@click.option(
    "--profile",
    "profiled",
    type=click.IntRange(min=1),
    is_flag=False,
    flag_value=10,
    default=None,
    metavar="[N]",
    help="Also profile inference of the N most used models that compile (10 without a number).",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the options, and say what would be evaluated; evaluate and store nothing.",
)
@click.option(
    "--sarif",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the graph breaks as SARIF 2.1.0, for code scanning and editors.",
)
@conditions.option
@options.output
@options.as_json
def sweep_command(
    *,
    top: int | None,
    every: bool,
    models: str | None,
    families: str | None,
    targets: str | None,
    fresh: bool,
    resumed: str | None,
    shard: str | None,
    profiled: int | None,
    dry_run: bool,
    sarif: Path | None,
    fail_on: conditions.Conditions,
    as_json: bool,
    **flags: Any,
) -> int:
    """Check models on compile targets, store every result, and write a report.

    Without options, it checks the 25 most used architectures of the pulled list, or of the
    installed Transformers, and builds them from their configurations, without weights. `--all`
    keeps one of each kind of layer unless `--depth full` is given.
    """
    if every and flags["depth"] is None:
        flags["depth"] = Depth.REDUCED.value
    for name in ("modes", "environments", "devices", "first"):
        flags[name] = split(flags[name])
    names = split(targets)
    settings = load_settings(flags | {"targets": list(TARGETS) if names == ["all"] else names})
    store = Store(Path(settings.output_dir))
    selection = Selection(names=split(models), top=top, every=every, families=split(families))
    part = parse_shard(shard) if shard else None
    chosen = checked_targets(settings, flags["nested_graph_breaks"], resumed=resumed is not None)
    if dry_run:
        if resumed is not None:
            raise UsageError("--dry-run says what a new run evaluates: use it without --resume")
        environments_of(settings)  # those that are named exist
        lines = [*choose_for_sweep(settings, selection).lines]
        lines.append("on: " + ", ".join(dict.fromkeys(map(target_label, chosen))))
        lines += [f"as part {part}"] if part is not None else []
        click.echo("\n".join([*lines, "--dry-run: nothing is evaluated"]))
        return 0
    bar = ProgressBar(quiet=as_json)
    try:
        with bar:
            if resumed is not None:
                if top or every or models or families or shard:
                    raise UsageError(
                        "--resume finishes a run as it was planned: do not select models or shards "
                        "with it"
                    )
                view = resume_run(store, settings, resumed or None, bar)
            else:
                view = new_run(
                    store,
                    settings,
                    selection,
                    chosen,
                    bar,
                    shard=part,
                    fresh=fresh,
                    profiled=profiled or 0,
                )
    except KeyboardInterrupt as error:
        resume = f"{bar.said_done()} kept. Finish it with: compilewatch sweep --resume"
        click.echo(f"compilewatch: interrupted; {error if str(error) else resume}", err=True)
        return 130
    if sarif is not None:
        write_run(sarif, view)
    print_view(store, view, as_json)
    return conditions.exit_status(view, fail_on)


@click.command("merge")
@click.argument("runs", nargs=-1, required=True, shell_complete=completion.runs)
@conditions.option
@options.output
@options.as_json
def merge_command(
    runs: tuple[str, ...], fail_on: conditions.Conditions, output_dir: str | None, as_json: bool
) -> int:
    """Join RUNS of one plan into a new run.

    RUNS are the ids of stored runs, or folders of runs that were copied from other machines.
    """
    settings = load_settings({"output_dir": output_dir})
    store = Store(Path(settings.output_dir))
    seen = merge(store, [store.open(name) for name in runs], settings)
    print_view(store, seen, as_json)
    return conditions.exit_status(seen, fail_on)
