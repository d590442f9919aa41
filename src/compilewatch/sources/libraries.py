"""The models of libraries: each library lists its own, in a worker of an environment that has it.

The rows of `contract.libraries` say what is known without the library. A list is kept until the
environment changes.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from compilewatch import environments, errors, extras, records
from compilewatch.config import Places, inputs_folder
from compilewatch.contract.libraries import LIBRARIES, LibraryModel, ListedModels
from compilewatch.data import LIBRARY_POPULARITY, SENTENCE_TRANSFORMERS
from compilewatch.files import DamagedError, from_json, read_json_object
from compilewatch.sources import ALL, PACKAGES, make_source
from compilewatch.sources.popularity import read_popularity

KNOWN_ONLY: ContextVar[bool] = ContextVar("KNOWN_ONLY", default=False)
"""Whether no worker is asked, as for the completion of a command: what is not stored is missing."""

LIST_SECONDS = 300.0
"""Long enough for imports from a cold disk."""


class PackageSource:
    """The models of one library; with the setting `heads="all"` every one.

    The package of the environment of `places` lists them, or else the first that is found.
    """

    def __init__(self, library: str, places: Places) -> None:
        self.row = LIBRARIES[library]
        self.name = self.row.source
        self.settings = places.settings
        self._environment = places.environment if places.transformers is not None else ""
        self._environments = environments.Environments(places.settings.cache_folder)

    def installed(self) -> tuple[str, str]:
        """Return the environment that lists the models, and the version of its package.

        Without a chosen one, the default environment comes first, then those whose locks have the
        package. Raises SourceError with the line to type if it is nowhere.
        """
        row, package = self.row, self.row.distribution
        searched = dict.fromkeys((records.DEFAULT_ENVIRONMENT, *row.environments))
        for name in (self._environment,) if self._environment else searched:
            with contextlib.suppress(errors.InterpreterError):
                packages = self._environments.describe(name).packages
                if package in packages:
                    return name, packages[package]
        if self._environment:
            raise errors.SourceError(
                f"the environment {self._environment!r} has no {package}: create one with "
                f"`compilewatch env create NAME --torch VERSION --with {package}`"
            )
        lock = row.environments[0]
        how = environments.create_command(lock)
        if lock == records.DEFAULT_ENVIRONMENT:
            how = extras.install(package)
        raise errors.SourceError(f"the package {package} is in no environment here: {how}")

    def listed(self) -> tuple[LibraryModel, ...]:
        """Return all models and pipelines, in the order of the library. Raises SourceError."""
        environment, _ = self.installed()
        if self.row.configurations:
            kinds = {
                name: str(read_json_object(folder / "config.json").get("model_type", "unknown"))
                for name, folder in sorted(configurations().items())
            }
            task = "sentence-similarity"
            return tuple(LibraryModel(name=n, family=f, task=task) for n, f in kinds.items())

        def listed_by(chosen: environments.Interpreter) -> ListedModels:
            if KNOWN_ONLY.get():
                raise errors.InterpreterError(f"environment {environment!r}: no list of models yet")
            asked = (ListedModels, LIST_SECONDS, "oneshot", "models")
            return environments.answer(environment, chosen, *asked)

        try:
            known = self._environments
            listed, _ = known.remembered("models", environment, ListedModels, listed_by)
        except errors.InterpreterError as error:
            raise errors.SourceError(str(error)) from None
        if self.row.name not in listed.models:
            problem = listed.problems.get(self.row.name, "it is not a package of models")
            package = self.row.distribution
            raise errors.SourceError(
                f"{package} in the environment {environment!r} lists no models: {problem}"
            )
        return listed.models[self.row.name]

    def models(self) -> tuple[records.ModelSpec, ...]:
        """Return the most used model first, and then those of the library in its order."""
        own = Path(self.settings.popularity_file).with_name("library_popularity.csv")
        downloads = read_popularity(LIBRARY_POPULARITY, own, library=self.row.name)
        models = [model for model in self.listed() if not model.parts]
        # Stable: models without downloads keep the order of the library.
        models.sort(key=lambda model: -downloads.get(model.name, 0))
        if self.settings.heads == "default":
            models = [model for model in models if model.selected]
            if self.row.one_of_each_family:
                # The most used model of each family, otherwise the first one that has weights.
                ranked = sorted(models, key=lambda m: (-downloads.get(m.name, 0), not m.published))
                first = {model.family: model for model in reversed(ranked)}
                models = [model for model in models if first[model.family] is model]
        return tuple(self._spec(model, downloads.get(model.name)) for model in models)

    def pipelines(self) -> dict[str, tuple[str, ...]]:
        """Return the names of pipelines with those of their models."""
        return {model.name: model.parts for model in self.listed() if model.parts}

    def _spec(self, model: LibraryModel, downloads: int | None) -> records.ModelSpec:
        folder = configurations()[model.name] if self.row.configurations else None
        return records.ModelSpec(
            source=self.name,
            name=f"{self.row.name}/{model.name}",
            build=records.LibraryBuild(
                library=self.row.name,
                name=model.name,
                configuration=str(folder) if folder is not None else None,
                configuration_sha256=folder_sha256(folder) if folder is not None else "",
            ),
            architecture=model.name,
            family=model.family,
            task=model.task,
            downloads=downloads or None,
        )


class AllLibraries:
    """The models of every library that is installed somewhere, the most used ones first."""

    name = ALL

    def __init__(self, places: Places) -> None:
        self._places = places

    def models(self) -> tuple[records.ModelSpec, ...]:
        """Return the models of all. Libraries that are missing here are left out."""
        specs: list[records.ModelSpec] = []
        for name in ("library", *PACKAGES):
            with contextlib.suppress(errors.SourceError, errors.ConfigError):
                specs += make_source(name, self._places).models()
        return tuple(sorted(specs, key=lambda spec: -(spec.downloads or 0)))


def configurations() -> dict[str, Path]:
    """Return the folders of published configurations by name; a project's own replace others.

    They are those of sentence-transformers: the package contains none, and each published model is
    one. A folder has the layout of its repository: `modules.json` and the files that it names.
    """
    places = (SENTENCE_TRANSFORMERS, inputs_folder() / "sentence-transformers")
    files = (path for place in places for path in place.glob("*/modules.json"))
    return {path.parent.name: path.parent for path in files}


def folder_sha256(folder: Path) -> str:
    """Return the digest of the configurations in a folder, by name and content.

    Raises ConfigError for a file that is not JSON.
    """
    content: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            value = from_json(path.read_bytes(), object)
        except DamagedError as error:
            raise errors.ConfigError(f"{name}: not JSON: {error}") from None
        content[name] = records.canonical_config(value) if isinstance(value, dict) else value
    return records.digest(content)
