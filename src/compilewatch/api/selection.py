"""The choice of models and environments, from settings and names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from compilewatch import extras
from compilewatch.config import Places, Settings
from compilewatch.environments import Environments
from compilewatch.errors import UnknownModelError, UsageError
from compilewatch.plan import possible
from compilewatch.records import Environment, ModelSpec
from compilewatch.sources import choose_source, other_sources, with_parts
from compilewatch.sources.select import select


def split(text: str | None) -> list[str] | None:
    """The parts of an option such as `A,B`; None for an option that was not given."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def environments_for(targets: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """The names of the environments that a command needs.

    Default environments are left out if they do not exist. Raises InterpreterError if an
    environment was named and does not exist.
    """
    names = possible(targets, settings.environments, settings.devices)
    environments = Environments(settings.cache_folder)
    if settings.environments:
        for name in names:
            environments.interpreter(name)
        return names
    there = environments.available()
    return tuple(name for name in names if name in there)


def described(targets: Iterable[str], settings: Settings) -> tuple[Environment, ...]:
    """The descriptions of the environments that a command needs. Raises InterpreterError."""
    names = environments_for(targets, settings)
    environments = Environments(settings.cache_folder)
    return tuple(environments.describe(name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which models of a source: these names, these families, the `top` most used ones or `every`.

    Without any of them, those that the settings name.
    """

    names: Sequence[str] | None = None
    top: int | None = None
    every: bool = False
    families: Sequence[str] | None = None

    def stored(self) -> dict[str, Any]:
        """The selection as `run.json` has it: runs with equal ones are compared by default."""
        return {
            "top": self.top,
            "all": self.every,
            "names": self.names,
            "families": self.families,
        }


def choose_models(
    settings: Settings,
    selection: Selection,
    *,
    python_path: Sequence[Path] = (),
    environment: str | None = None,
) -> tuple[tuple[ModelSpec, ...], str]:
    """The models that the settings and the selection name, and a sentence about their source.

    Sources read the Transformers of `environment` (default: the one that runs compilewatch).
    """
    environments = Environments(settings.cache_folder)
    root = environments.transformers_folder(environment) if environment else None
    places = Places(
        pulled=Path(settings.pulled_dir) / "models.toml",
        manifest=Path(settings.models_file),
        popularity=Path(settings.popularity_file),
        library_popularity=Path(settings.popularity_file).with_name("library_popularity.csv"),
        cache=settings.cache_folder,
        transformers=root,
        environment=environment or "",
        outputs=Path(settings.output_dir),
    )
    chosen, sentence = choose_source(settings.source, heads=settings.heads, places=places)
    top, names = selection.top, with_parts(selection.names, places)
    if names is None and selection.families is None and not selection.every:
        # All models of a team's own list are selected; of thousands, only the most used ones.
        top = top or (None if chosen.name in ("manifest", *extras.SANDBOXED) else settings.top)
    others = other_sources(places, settings.source) if names is not None else ()
    specs = select(
        chosen.models,
        top=top,
        names=names,
        families=selection.families,
        all=selection.every,
        others=others,
        python_path=python_path,
        transformers=root,
    )
    return specs, sentence


def one_model(
    settings: Settings,
    name: str,
    *,
    python_path: Sequence[Path] = (),
    environment: str | None = None,
) -> ModelSpec:
    """The only model with this name. Raises UsageError for a repository with several components."""
    specs, _ = choose_models(
        settings, Selection(names=[name]), python_path=python_path, environment=environment
    )
    if len(specs) > 1:
        named = ", ".join(spec.name for spec in specs)
        raise UsageError(
            f"{name} has {len(specs)} components, which are models: name one of {named}"
        )
    return specs[0]


class ModelSelection(NamedTuple):
    """The models of a sweep: those of the first environment, then what only others have.

    `own` has the models of each environment that was named; `lines` say where they come from.
    """

    specs: tuple[ModelSpec, ...]
    own: dict[str, tuple[ModelSpec, ...]]
    lines: tuple[str, ...]


def choose_for_sweep(settings: Settings, selection: Selection) -> ModelSelection:
    """The models of each environment that the settings name, from its own Transformers.

    An environment that lacks a model or family that another one has is not evaluated for it.
    Raises UnknownModelError if no environment has it.
    """
    there = Environments(settings.cache_folder).available()
    # A cluster may have environments that do not exist here.
    asked = tuple(name for name in settings.environments if name in there)
    if not asked:
        specs, sentence = choose_models(settings, selection)
        return ModelSelection(specs, {}, (sentence,))
    own: dict[str, tuple[ModelSpec, ...]] = {}
    lines: list[str] = []
    unknown: dict[str, UnknownModelError] = {}
    known: set[str] = set()
    for environment in asked:
        left = selection
        while True:
            try:
                own[environment], sentence = choose_models(settings, left, environment=environment)
                lines.append(f"{environment}: {sentence}")
            except UnknownModelError as error:
                unknown[error.name] = error
                left = _without(left, error.name)
                lines.append(f"{environment}: no {error.name}")
                if left.names or left.families:
                    continue
                own[environment] = ()
            break
        known |= {*(left.names or ()), *(left.families or ())}
    for name, nowhere in unknown.items():
        if name not in known:
            raise nowhere
    union = {spec.name: spec for models in own.values() for spec in models}
    return ModelSelection(tuple(union.values()), own, tuple(lines))


def _without(selection: Selection, name: str) -> Selection:
    """The selection without a model or family of this name."""

    def left(names: Sequence[str] | None) -> Sequence[str] | None:
        return [other for other in names if other != name] if names else None

    return replace(selection, names=left(selection.names), families=left(selection.families))
