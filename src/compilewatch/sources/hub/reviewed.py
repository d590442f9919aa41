"""Repositories whose files do not say what their users run: a reviewed line for each says it.

`data/repositories.toml` and a project's `inputs/repositories.toml` name repositories, and for each
the models that their users run, by library and by a configuration in the folder `models` beside
the file. A line applies only where nothing else resolves the repository.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.contract.libraries import LIBRARIES
from compilewatch.data import REPOSITORIES
from compilewatch.errors import ConfigError
from compilewatch.files import read_toml
from compilewatch.records import SCHEMA_VERSION, ModelSpec, Part
from compilewatch.sources.configs import Resolver, read_config
from compilewatch.sources.hub.specs import built, configured, library_build, skipped

FOLDER = "models"


class ReviewedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that users of the repository run.

    Attributes:
        library: a row of `sources.libraries`.
        configuration: the name of a file in `models/<library>/`, without its suffix.
        component: what the model is called, in a repository that has several.
    """

    library: str
    configuration: str
    component: str | None = None


class ReviewedRepository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What repositories with these names have; either `model` or `skip`.

    Attributes:
        names: names with the wildcards of a shell (`org/*-model`).
        model: the models that their users run.
        part: what part of the repository the models are; by itself `component` where they have
            names, and `whole` otherwise.
        skip: the reason why there is nothing to evaluate.
        reason: how it is known.
        date: when it was reviewed.
    """

    names: list[str]
    reason: str
    date: datetime.date
    model: list[ReviewedModel] = []
    part: Part | None = None
    skip: str | None = None


class ReviewedRepositories(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `repositories.toml`."""

    schema_version: int = SCHEMA_VERSION
    repository: list[ReviewedRepository] = []


@dataclass(frozen=True)
class Reviewed:
    """Reviewed lines, each with the folder of the file that has it; the first that fits applies."""

    lines: tuple[tuple[ReviewedRepository, Path], ...]

    def models(self, spec: ModelSpec, resolver: Resolver) -> tuple[ModelSpec, ...]:
        """Return the models of a repository, none for one without a line. Raises ConfigError."""
        for line, folder in self.lines:
            if any(fnmatchcase(spec.name, name) for name in line.names):
                if line.skip is not None:
                    return skipped(spec, line.skip)
                return tuple(_model(spec, line, model, folder, resolver) for model in line.model)
        return ()


def read_reviewed(paths: Iterable[Path]) -> Reviewed:
    """Read the files that exist; lines of earlier ones come first. Raises ConfigError."""
    lines: list[tuple[ReviewedRepository, Path]] = []
    for path in paths:
        if path.exists():
            for line in read_toml(path, ReviewedRepositories).repository:
                _check(line, path)
                lines.append((line, path.parent / FOLDER))
    return Reviewed(tuple(lines))


def shipped_and_own(inputs: Path) -> Reviewed:
    """Read the lines of a project and those of every installation. Raises ConfigError."""
    return read_reviewed((inputs / REPOSITORIES.name, REPOSITORIES))


def _check(line: ReviewedRepository, path: Path) -> None:
    names = ", ".join(line.names)
    if bool(line.model) == (line.skip is not None):
        raise ConfigError(f"{path}: {names}: write either [[repository.model]] or skip")
    if len(line.model) > 1 and any(model.component is None for model in line.model):
        raise ConfigError(f"{path}: {names}: each of several models needs a component")
    for model in line.model:
        if model.library not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise ConfigError(f"{path}: {names}: no library {model.library!r}; known: {known}")


def _model(
    spec: ModelSpec,
    line: ReviewedRepository,
    model: ReviewedModel,
    folder: Path,
    resolver: Resolver,
) -> ModelSpec:
    path = folder / model.library / f"{model.configuration}.json"
    config = read_config(path)
    part = line.part or (Part.WHOLE if model.component is None else Part.COMPONENT)
    if model.component is not None:
        name = f"{spec.name}#{model.component}"
        spec = msgspec.structs.replace(spec, name=name, component=model.component)
    if model.library == "transformers":
        return configured(spec, resolver.resolve(path, config), config, part)
    name, family = _names(model, config)
    built_spec = built(
        spec, library_build(model.library, name, path), family, "unknown", config, part
    )
    return msgspec.structs.replace(built_spec, architecture=family)


def _names(model: ReviewedModel, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name that the library builds the model by, and its class."""
    if model.library == "diffusers":
        class_name = str(config.get("_class_name"))
        return class_name, class_name
    return model.configuration, model.configuration
