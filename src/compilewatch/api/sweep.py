"""A sweep: what settings and a selection name, evaluated as a new stored run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.api.evaluation import Observer
from compilewatch.api.launching import launcher_of
from compilewatch.api.run import sweep as run_sweep
from compilewatch.api.selection import Selection, choose_for_sweep, environments_for
from compilewatch.api.summary import SweepSummary, summary_of
from compilewatch.api.worker_client import check_backends, check_nested_graph_breaks
from compilewatch.config import Settings, load_settings
from compilewatch.launchers import Launcher
from compilewatch.plan import check_targets, parse_shard, possible, targets_of
from compilewatch.records import Depth, RunView, Shard, Target
from compilewatch.sources import ALL
from compilewatch.store import Store


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a new run evaluates; see `api.run.sweep`."""

    selection: Selection
    targets: tuple[Target, ...]
    shard: Shard | None = None
    fresh: bool = False
    profiled: int = 0


def sweep(
    models: Sequence[str] | None = None,
    *,
    top: int | None = None,
    every: bool = False,
    families: Sequence[str] | None = None,
    shard: str | None = None,
    fresh: bool = False,
    profiled: int = 0,
    observer: Observer | None = None,
    **settings: Any,
) -> SweepSummary:
    """Evaluate models, store the run, write its report, and return what it says.

    The models are those of the source with these names or `families`, the `top` most used ones or
    `every` one; without any of them, those that the settings name. `settings` are those of
    `compilewatch.toml` by name, such as `source="library"`, `targets=["dynamo"]`,
    `depth="reduced"` or `output_dir="outputs"`, and replace those of the file. `shard` is `I/N`.
    With `fresh`, results of earlier runs are not reused; `profiled` models also get an inference
    profile. Raises a CompilewatchError that says in one line what is wrong.
    """
    if every:
        settings.setdefault("depth", Depth.REDUCED.value)
    loaded = load_settings(settings)
    store = Store(Path(loaded.output_dir))
    plan = SweepPlan(
        selection=Selection(names=models, top=top, every=every, families=families),
        targets=checked_targets(loaded, settings.get("nested_graph_breaks")),
        shard=parse_shard(shard) if shard else None,
        fresh=fresh,
        profiled=profiled,
    )
    with launcher_of(loaded, environments_of(loaded)) as launcher:
        loaded = msgspec.structs.replace(loaded, jobs=launcher.jobs)
        return summary_of(store, new_run(store, launcher, loaded, plan, observer=observer))


def new_run(
    store: Store,
    launcher: Launcher,
    settings: Settings,
    plan: SweepPlan,
    *,
    observer: Observer | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> RunView:
    """Choose the models, `say` in lines where they come from, and evaluate them."""
    chosen = choose_for_sweep(settings, plan.selection)
    say("\n".join(chosen.lines))
    return run_sweep(
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
        observer=observer,
        profiled=plan.profiled,
    )


def checked_targets(
    settings: Settings, nested_asked: str | None, *, resumed: bool = False
) -> tuple[Target, ...]:
    """The targets that the settings name. Raises UsageError where a new run cannot have them.

    `nested_asked` is the value of `nested_graph_breaks` if it was given. A run that is `resumed`
    has its own targets, so nothing is checked.
    """
    targets = targets_of(
        settings.targets,
        settings.modes,
        settings.chosen_dynamic,
        settings.nested_graph_breaks,
        devices=settings.devices,
        dtype=settings.named_dtype,
    )
    if resumed:
        return targets
    if settings.launcher == "local":
        check_targets(targets)
        check_backends(targets, settings)
    check_nested_graph_breaks(targets, settings, asked=nested_asked)
    return targets


def environments_of(settings: Settings) -> tuple[str, ...]:
    """The environments that the targets need. The nodes of a cluster know which exist."""
    if settings.launcher == "ray":
        return tuple(possible(settings.targets, settings.environments, settings.devices))
    return environments_for(settings.targets, settings)
