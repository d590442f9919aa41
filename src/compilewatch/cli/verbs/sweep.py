"""`compilewatch sweep`: evaluate many models, store the results and report them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch import plugins
from compilewatch.analysis.summary import Summary, summarise
from compilewatch.cli import completion, conditions, options
from compilewatch.cli.rendering.pieces import console
from compilewatch.cli.rendering.progress import ProgressBar, known_durations
from compilewatch.cli.rendering.tables import summary_table
from compilewatch.cli.worker_call import check_backends, check_nested_graph_breaks
from compilewatch.config.settings import Settings, load_settings
from compilewatch.contract.targets import TARGETS, target_label
from compilewatch.errors import UsageError
from compilewatch.launchers import LAUNCHERS, Launcher
from compilewatch.plan.placement import possible
from compilewatch.plan.requests import check_targets, parse_shard, targets_of
from compilewatch.records import Change, Depth, Record, Run, Target
from compilewatch.records.plans import Shard
from compilewatch.records.views import RunView
from compilewatch.sources.libraries import ALL
from compilewatch.store import Store
from compilewatch.workflows.sweep import resume, sweep


class Report(Record, frozen=True, kw_only=True):
    """The output of `--json` at the end of a sweep, a merge or a comparison."""

    run: Run
    summary: Summary
    changes: tuple[Change, ...]
    baseline: str | None
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    folder: str
    report: str | None


@contextlib.contextmanager
def local_launcher(
    settings: Settings, names: Sequence[str], *, single: bool = False
) -> Iterator[Launcher]:
    """The launcher of this machine for these environments, closed at the end."""
    launcher = plugins.load(LAUNCHERS["local"])(
        jobs=settings.jobs,
        environments=tuple(names),
        cache=settings.cache_folder,
        single=single,
    )
    with launcher:
        yield launcher


@contextlib.contextmanager
def launcher_of(settings: Settings, names: Sequence[str]) -> Iterator[Launcher]:
    """The launcher that the settings name, closed at the end; for generated code the sandbox."""
    if settings.source == "papers":
        from compilewatch.launchers.confined import ConfinedLauncher

        yield ConfinedLauncher(1, tuple(names), cache=settings.cache_folder)
        return
    if settings.launcher == "local":
        with local_launcher(settings, names) as launcher:
            yield launcher
        return
    from compilewatch.launchers.ray.launcher import RayLauncher

    with RayLauncher(
        settings.jobs,
        tuple(names),
        address=settings.ray_address,
        cache=settings.cache_folder,
        memory_limit_bytes=settings.memory_limit_bytes,
    ) as cluster:
        yield cluster


def print_view(store: Store, view: RunView, as_json: bool) -> None:
    """Print the tables of a run and the path of its report, or everything as JSON."""
    folder = store.open(view.run.id).path
    page = folder / "report" / "index.html"
    if as_json:
        found = Report(
            run=view.run,
            summary=summarise(view),
            changes=view.changes,
            baseline=view.baseline.id if view.baseline else None,
            differences=view.differences,
            notes=view.notes,
            folder=str(folder),
            report=str(page) if page.exists() else None,
        )
        options.print_json(found)
        return
    console().print(summary_table(view))
    if page.exists():
        click.echo(f"\nReport: {_near(page)}")
    else:
        click.echo(f"\nRun: {_near(folder)}")


def _near(path: Path) -> Path:
    with contextlib.suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


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
@options.dynamic
@options.nested_graph_breaks
@click.option(
    "--device",
    "devices",
    metavar="A,B",
    help="cpu (default), or declared devices, which need not be present: cuda, cuda:A100 …",
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
@conditions.option
@options.output
@options.as_json
def command(
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
    for name in ("modes", "environments", "devices"):
        flags[name] = options.split(flags[name])
    settings = load_settings(flags | {"targets": _targets(targets)})
    store = Store(Path(settings.output_dir))
    part = parse_shard(shard) if shard else None
    selection = options.Selection(
        names=options.split(models), top=top, every=every, families=options.split(families)
    )
    asked = _checked_targets(settings, flags["nested_graph_breaks"], resumed)
    names = _environments(store, settings, resumed)
    if dry_run:
        return _say_plan(settings, selection, asked, part, resumed)
    bar = ProgressBar(quiet=as_json, known=lambda: known_durations(store))
    try:
        with launcher_of(settings, names) as launcher, bar:
            bar.watch(launcher)
            settings = msgspec.structs.replace(settings, jobs=launcher.jobs)
            if resumed is not None:
                _refuse_selection(top, every, models, families, shard)
                view = resume(store, launcher, settings, reference=resumed or None, observer=bar)
            else:
                plan = _Plan(selection, asked, part, fresh, profiled or 0)
                view = _new_run(store, launcher, settings, plan, bar, quiet=as_json)
    except KeyboardInterrupt:
        click.echo(
            f"compilewatch: interrupted; {bar.said_done()} kept. "
            "Finish it with: compilewatch sweep --resume",
            err=True,
        )
        return 130
    print_view(store, view, as_json)
    return conditions.exit_status(view, fail_on)


@dataclass(frozen=True)
class _Plan:
    """What a new run evaluates: models, targets and a shard; see `workflows.sweep.sweep`."""

    selection: options.Selection
    targets: tuple[Target, ...]
    shard: Shard | None
    fresh: bool
    profiled: int


def _new_run(
    store: Store,
    launcher: Launcher,
    settings: Settings,
    plan: _Plan,
    bar: ProgressBar,
    *,
    quiet: bool,
) -> RunView:
    """Choose the models, say where they come from unless `quiet`, and evaluate them."""
    chosen = options.choose_for_sweep(settings, plan.selection)
    if not quiet:
        click.echo("\n".join(chosen.lines), err=True)
    return sweep(
        store,
        launcher,
        chosen.specs,
        plan.targets,
        settings,
        source=ALL if settings.source == ALL else chosen.specs[0].source,
        selection=plan.selection.stored() | {"heads": settings.heads},
        shard=plan.shard,
        fresh=plan.fresh,
        own=chosen.own,
        observer=bar,
        profiled=plan.profiled,
    )


def _say_plan(
    settings: Settings,
    selection: options.Selection,
    targets: Sequence[Target],
    part: Shard | None,
    resumed: str | None,
) -> int:
    """Choose the models, say what a sweep would evaluate, and return the exit status."""
    if resumed is not None:
        raise UsageError("--dry-run says what a new run evaluates: use it without --resume")
    chosen = options.choose_for_sweep(settings, selection)
    lines = [*chosen.lines, "on: " + ", ".join(dict.fromkeys(map(target_label, targets)))]
    if part is not None:
        lines.append(f"as part {part}")
    click.echo("\n".join([*lines, "--dry-run: nothing is evaluated"]))
    return 0


def _checked_targets(
    settings: Settings, nested_asked: str | None, resumed: str | None
) -> tuple[Target, ...]:
    """The targets that the settings name. Raises UsageError where a new run cannot have them."""
    targets = targets_of(
        settings.targets,
        settings.modes,
        settings.dynamic,
        settings.nested_graph_breaks,
        devices=settings.devices,
        dtype=settings.named_dtype,
    )
    if resumed is None and settings.launcher == "local":
        check_targets(targets)
        check_backends(targets, settings)
    if resumed is None:
        check_nested_graph_breaks(targets, settings, asked=nested_asked)
    return targets


def _environments(store: Store, settings: Settings, resumed: str | None) -> Sequence[str]:
    """The environments that the targets need; for a resumed run, the environments of that run."""
    if resumed is None and settings.launcher == "ray":
        # The nodes know which exist.
        return possible(settings.targets, settings.environments, settings.devices)
    if resumed is None:
        return options.environments_for(settings.targets, settings)
    stored = store.open(resumed) if resumed else store.unfinished()
    return [environment.name for environment in stored.run.environments]


def _targets(text: str | None) -> list[str] | None:
    names = options.split(text)
    return list(TARGETS) if names == ["all"] else names


def _refuse_selection(*given: object) -> None:
    if any(given):
        raise UsageError(
            "--resume finishes a run as it was planned: do not select models or shards with it"
        )
