"""Which stored run another one is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from compilewatch.records import (
    Run,
)


def default_baseline(candidates: Iterable[Run], run: Run) -> Run | None:
    """The newest finished run before this one that evaluated the same things.

    The same: source, shard, and settings `selection`, `targets`, `depth` and `tier`. Versions may
    differ; finding out what they change is the point. One that lacks shards is none: against it,
    a regression of a model it lacks would pass for a new model. `candidates` come in any order.
    """
    alike = [
        other
        for other in candidates
        if may_be_baseline(other) and other.id < run.id and scope(other) == scope(run)
    ]
    return max(alike, key=lambda other: other.id, default=None)


def may_be_baseline(run: Run) -> bool:
    """Whether a run has a result of all that it planned."""
    return run.state == "finished" and not run.missing_shards


def same_settings(run: Run, other: Run) -> bool:
    """Whether two runs evaluated models of one source alike, whichever models they were."""

    def settings(side: Run) -> tuple[object, ...]:
        return side.source, side.shard, side.settings.get("depth"), side.settings.get("tier")

    return settings(run) == settings(other)


def scope(run: Run) -> tuple[object, ...]:
    """What a run evaluated, whatever the versions were. Not hashable."""
    setting: Callable[[str], object] = run.settings.get
    return (run.source, run.shard, *map(setting, ("selection", "targets", "depth", "tier")))
