"""The selection of models from a source: the most used, some by name, some families, or all.

A name may also be that of a user's own model, which `sources.own` resolves.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compilewatch.errors import (
    ConfigError,
    SourceError,
    UnknownModelError,
    UsageError,
    did_you_mean,
)
from compilewatch.records import LibraryBuild, ModelSpec
from compilewatch.sources import Source
from compilewatch.sources.own import is_file, own_model

Models = Callable[[], Sequence[ModelSpec]]
"""What reads the models of a source."""


def select(
    models: Models,
    *,
    top: int | None = None,
    names: Iterable[str] | None = None,
    families: Iterable[str] | None = None,
    all: bool = False,
    others: Iterable[Callable[[], Source]] = (),
    python_path: Sequence[Path] = (),
    transformers: Path | None = None,
) -> tuple[ModelSpec, ...]:
    """The selected specs in the order of the source or, with `names`, in the order of the names.

    `top` counts architectures in the library (one class each: the first of its family),
    repositories of the Hub (with all their components), and models in other sources. A name is that
    of a model, a repository (all its components), a class, a family (its first model), or a user's
    own model (see `sources.own`, which searches `python_path` and reads `transformers`). Names that
    are not in `models` are searched in `others`, one after the other. `names` excludes the other
    options. Raises UnknownModelError with similar names.
    """
    if names is not None:
        if top is not None or families is not None or all:
            raise UsageError("select models either by name, or by top, family or all")
        return by_name(models, names, others, python_path, transformers)
    specs = models()
    if families is not None:
        specs = _of_families(specs, tuple(families))
    if top is None:
        return tuple(specs)
    if all:
        raise UsageError("select either the top models or all models")
    if top < 1:
        raise UsageError(f"top is {top}, but must be 1 or more")
    return _most_used(specs, top)


def by_name(
    models: Models,
    names: Iterable[str],
    others: Iterable[Callable[[], Source]] = (),
    python_path: Sequence[Path] = (),
    transformers: Path | None = None,
) -> tuple[ModelSpec, ...]:
    """The specs of each name, without repetition. See `select`.

    A source that cannot be read is an error only if a name is found nowhere else.
    """
    names = [name.strip() for name in names]
    pools: list[Sequence[ModelSpec]] = []
    unread: SourceError | None = None
    if not all(map(is_file, names)):
        try:
            pools.append(models())
        except SourceError as error:
            unread = error
    pending = list(others)

    def matches(name: str) -> tuple[ModelSpec, ...]:
        for pool in pools:
            if specs_of := _in_pool(name, pool):
                return specs_of
        if own := own_model(name, python_path, transformers):
            return (own,)
        while pending:
            try:
                pools.append(pending.pop(0)().models())
            except (SourceError, ConfigError):
                # This is not the source that the user chose, so its absence is not an error.
                continue
            if specs_of := _in_pool(name, pools[-1]):
                return specs_of
        raise unread or UnknownModelError(_unknown(name, pools), name)

    chosen: dict[str, ModelSpec] = {}
    for name in names:
        for spec in matches(name):
            chosen.setdefault(spec.name, spec)
    if not chosen:
        raise UsageError("no model is named: name at least one")
    return tuple(chosen.values())


def _in_pool(name: str, pool: Sequence[ModelSpec]) -> tuple[ModelSpec, ...]:
    """All models of the repository with this name, else what `in_pool` finds."""
    if parts := tuple(spec for spec in pool if spec.repository == name):
        return parts
    model = in_pool(name, pool)
    return () if model is None else (model,)


def in_pool(name: str, pool: Sequence[ModelSpec]) -> ModelSpec | None:
    """The spec with this name, else of this repository or family, else ignoring case.

    A model of a library also has its name there (`resnet50` is `timm/resnet50`). Raises UsageError
    if several libraries have it.
    """
    named = [s for s in pool if isinstance(s.build, LibraryBuild) and s.build.name == name]
    if len(named) > 1:
        known = " or ".join(spec.name for spec in named)
        raise UsageError(f"{name} is a model of several libraries: name {known}")
    if named:
        return named[0]
    tests: tuple[Callable[[ModelSpec], bool], ...] = (
        lambda s: s.name == name,
        lambda s: s.repository == name,
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
        return f"no model {name!r}; similar names: {', '.join(known[n] for n in near)}"
    hub = "for models of the Hub, run `compilewatch pull`"
    hint = hub if "/" in name else "see --source, --heads and list-sources"
    own = "for your own model, name ./FILE.py or MODULE:FACTORY"
    return f"no model {name!r} and no similar name; {hint}; {own}"


def _of_families(specs: Sequence[ModelSpec], families: tuple[str, ...]) -> tuple[ModelSpec, ...]:
    known = {s.family for s in specs}
    for family in families:
        if family not in known:
            hint = did_you_mean(family, known, most=4)
            raise UnknownModelError(f"no family {family!r}{hint}", family)
    return tuple(s for s in specs if s.family in families)


def _most_used(specs: Sequence[ModelSpec], top: int) -> tuple[ModelSpec, ...]:
    """The first `top` units: families of the library, repositories, models of other sources."""
    units: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        if spec.source == "library":
            units.setdefault(spec.family, [spec])
        else:
            units.setdefault(spec.repository or spec.name, []).append(spec)
    return tuple(spec for unit in list(units.values())[:top] for spec in unit)
