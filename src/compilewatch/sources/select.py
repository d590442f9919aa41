"""Which models of a source: the most used, some by name, some families, or all."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compilewatch.errors import ConfigError, SourceError, UnknownModelError, UsageError
from compilewatch.records import ModelSpec
from compilewatch.sources import Source
from compilewatch.sources.own import dotted_model, own_model


def select(
    specs: Sequence[ModelSpec],
    *,
    top: int | None = None,
    names: Iterable[str] | None = None,
    families: Iterable[str] | None = None,
    all: bool = False,
    others: Iterable[Callable[[], Source]] = (),
    python_path: Sequence[Path] = (),
) -> tuple[ModelSpec, ...]:
    """The chosen specs, in the order of the source; chosen by name, in the order of the names.

    `top` counts architectures in the library (one class each: the first of its family) and models
    elsewhere. A name is a model's or class's name, a family (its first model), or a model of one's
    own (see `sources.own`, which searches `python_path`); `others` are asked, in turn, for names
    that `specs` does not know. `names` goes with nothing else. Raises UnknownModelError with near
    names.
    """
    if names is not None:
        if top is not None or families is not None or all:
            raise UsageError("name models, or choose by top, family or all, not both")
        return by_name(specs, names, others, python_path)
    if families is not None:
        specs = _of_families(specs, tuple(families))
    if top is None:
        return tuple(specs)
    if all:
        raise UsageError("choose either the top models or all")
    if top < 1:
        raise UsageError(f"there is no top {top}: ask for 1 or more")
    return _most_used(specs)[:top]


def by_name(
    specs: Sequence[ModelSpec],
    names: Iterable[str],
    others: Iterable[Callable[[], Source]] = (),
    python_path: Sequence[Path] = (),
) -> tuple[ModelSpec, ...]:
    """One spec for each name, without repetition. See `select`."""
    pools: list[Sequence[ModelSpec]] = [specs]
    pending = list(others)
    chosen: dict[str, ModelSpec] = {}
    for name in names:
        found = _find(name.strip(), pools, pending, python_path)
        chosen.setdefault(found.name, found)
    if not chosen:
        raise UsageError("no model is named: give at least one name")
    return tuple(chosen.values())


def _find(
    name: str,
    pools: list[Sequence[ModelSpec]],
    pending: list[Callable[[], Source]],
    python_path: Sequence[Path],
) -> ModelSpec:
    for pool in pools:
        if found := in_pool(name, pool):
            return found
    if own := own_model(name, python_path):
        return own
    while pending:
        try:
            pools.append(pending.pop(0)().models())
        except (SourceError, ConfigError):
            # Another source than the one asked for: its absence is not this name's problem.
            continue
        if found := in_pool(name, pools[-1]):
            return found
    if own := dotted_model(name, python_path):
        return own
    raise UnknownModelError(_unknown(name, pools))


def in_pool(name: str, pool: Sequence[ModelSpec]) -> ModelSpec | None:
    """By name, then by family, then either without regard to case."""
    tests: tuple[Callable[[ModelSpec], bool], ...] = (
        lambda s: s.name == name,
        lambda s: s.family == name,
        lambda s: s.name.lower() == name.lower(),
        lambda s: s.family.lower() == name.lower(),
    )
    return next((s for test in tests for s in pool if test(s)), None)


def _unknown(name: str, pools: Iterable[Sequence[ModelSpec]]) -> str:
    known = {s.name.lower(): s.name for pool in pools for s in pool}
    known |= {s.family.lower(): s.family for pool in pools for s in pool}
    near = difflib.get_close_matches(name.lower(), known, n=4, cutoff=0.6)
    if near:
        return f"no model {name!r}; near: {', '.join(known[n] for n in near)}"
    hint = "`compilewatch pull` lists models of the Hub" if "/" in name else "see --source, --heads"
    return f"no model {name!r}, and no name near it; {hint}; of your own: ./FILE.py, MODULE:FACTORY"


def _of_families(specs: Sequence[ModelSpec], families: tuple[str, ...]) -> tuple[ModelSpec, ...]:
    known = {s.family for s in specs}
    for family in families:
        if family not in known:
            near = difflib.get_close_matches(family, known, n=4, cutoff=0.6)
            suffix = f"; near: {', '.join(near)}" if near else ""
            raise UnknownModelError(f"no family {family!r}{suffix}")
    return tuple(s for s in specs if s.family in families)


def _most_used(specs: Sequence[ModelSpec]) -> tuple[ModelSpec, ...]:
    """The first of each family among specs of the library, every spec of other sources."""
    seen: set[str] = set()
    kept = []
    for spec in specs:
        if spec.source == "library":
            if spec.family in seen:
                continue
            seen.add(spec.family)
        kept.append(spec)
    return tuple(kept)
