"""The source of a library's models, and that of all libraries together."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from compilewatch import extras, plugins
from compilewatch.config import inputs_folder
from compilewatch.data import LIBRARY_POPULARITY
from compilewatch.environments import Environments, create_command, package_folder
from compilewatch.errors import InterpreterError, SourceError, UsageError
from compilewatch.records import DEFAULT_ENVIRONMENT, LibraryBuild, ModelSpec, Record
from compilewatch.sources.libraries import ALL, LIBRARIES, LibraryRow
from compilewatch.sources.libraries.reading import read_cached
from compilewatch.sources.popularity import Figure, read_library_popularity

if TYPE_CHECKING:
    from compilewatch.sources import Source


class LibraryModel(Record, frozen=True, kw_only=True):
    """A model as its library names it.

    `family` groups the variants of one design. `published` says that the library knows weights of
    it. A model that is not `selected` is left out without `heads="all"`. `parts` are the
    names of the models that a pipeline consists of, which is itself no model.
    """

    name: str
    family: str
    task: str = "vision"
    published: bool = True
    selected: bool = True
    checkpoint: str | None = None
    parts: tuple[str, ...] = ()


class PackageSource(ABC):
    """The models of one library; see `ModelLibrary`. A subclass reads the files of its package."""

    name: str
    library: ClassVar[str]
    one_of_each_family: ClassVar[bool] = False
    """Whether `heads="default"` selects one model of each family, the most used or first one."""

    def __init__(
        self,
        *,
        heads: str = "default",
        package: Path | None = None,
        popularity: Path | None = None,
        cache: Path | None = None,
    ) -> None:
        if heads not in ("default", "all"):
            raise UsageError(f"unknown heads {heads!r}: use default or all")
        self.heads = heads
        self._package = package
        self._popularity = popularity
        self._cache = cache

    @abstractmethod
    def files(self, package: Path) -> Iterable[Path]:
        """Return the files that `scan` reads."""

    @abstractmethod
    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        """Read all models, in the order of the library. Raises SourceError."""

    def read(self) -> tuple[LibraryModel, ...]:
        """Return all models and pipelines, from the cache if no file changed."""
        row = LIBRARIES[self.library]
        package = self._package or installed_package(row, self._cache)[0]
        files = sorted(self.files(package))
        if not files:
            raise SourceError(f"{package} is not the package {row.package}: it has no models")
        kind = tuple[LibraryModel, ...]
        own = Path(inspect.getfile(type(self)))
        return read_cached(
            row.module, files, kind, lambda: self.scan(package), cache=self._cache, readers=(own,)
        )

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the most used model first, and then those of the library in its order."""
        own = self._popularity or inputs_folder() / "library_popularity.csv"
        figures = read_library_popularity(self.library, LIBRARY_POPULARITY, own)
        models = [model for model in self.read() if not model.parts]
        # Stable: models without downloads keep the order of the library.
        models.sort(key=lambda model: -_downloads(figures, model.name))
        if self.heads == "default":
            models = [model for model in models if model.selected]
            models = _first_of_each_family(models, figures) if self.one_of_each_family else models
        return tuple(self._spec(model, figures) for model in models)

    def pipelines(self) -> dict[str, tuple[str, ...]]:
        """Return the names of pipelines with those of their models."""
        return {model.name: model.parts for model in self.read() if model.parts}

    def _spec(self, model: LibraryModel, figures: Mapping[str, Figure]) -> ModelSpec:
        return ModelSpec(
            source=self.name,
            name=f"{self.library}/{model.name}",
            build=LibraryBuild(library=self.library, name=model.name),
            architecture=model.name,
            family=model.family,
            task=model.task,
            downloads=_downloads(figures, model.name) or None,
            checkpoint=model.checkpoint,
        )


class AllLibraries:
    """The models of every library that is installed somewhere, the most used ones first."""

    name = ALL

    def __init__(self, makers: Sequence[Callable[[], Source]] | None = None) -> None:
        if makers is None:
            makers = [plugins.load(row.implementation) for row in LIBRARIES.values()]
        self._makers = makers

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the models of all. Libraries that are missing here are left out."""
        specs: list[ModelSpec] = []
        for make in self._makers:
            with contextlib.suppress(SourceError):
                specs += make().models()
        return tuple(sorted(specs, key=lambda spec: -(spec.downloads or 0)))


def installed_package(row: LibraryRow, cache: Path | None = None) -> tuple[Path, str]:
    """Return the folder of a library's package and the environment that has it.

    The default environment comes first, then those whose recipes have the package. Raises
    SourceError with the line to type if it is nowhere.
    """
    spec = importlib.util.find_spec(row.module)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]), DEFAULT_ENVIRONMENT
    environments = Environments(cache)
    for name in row.environments:
        try:
            chosen = environments.interpreter(name)
        except InterpreterError:
            continue
        folder = _package_in(package_folder(chosen), row)
        if chosen.executable is not None and folder is not None:
            return folder, name
    environment = row.environments[0]
    how = (
        extras.install(row.package)
        if environment == DEFAULT_ENVIRONMENT
        else create_command(environment)
    )
    raise SourceError(f"the package {row.package} is in no environment here: {how}")


def package_in(folder: Path, row: LibraryRow, environment: str) -> Path:
    """Return a library's package in a folder of packages. Raises SourceError."""
    package = _package_in(folder, row)
    if package is None:
        raise SourceError(
            f"the environment {environment!r} has no {row.package}: create one with "
            f"`compilewatch env create NAME --torch VERSION --with {row.package}`"
        )
    return package


def library_version(package: Path, row: LibraryRow) -> str:
    """Return the version of the distribution beside a package's folder, "" if it is not stated."""
    stem = re.sub(r"[-_.]+", "_", row.package)
    names = (path.name for path in package.parent.glob(f"{stem}-*.dist-info"))
    return next((name.removesuffix(".dist-info").rpartition("-")[2] for name in names), "")


def _package_in(folder: Path, row: LibraryRow) -> Path | None:
    spec = PathFinder.find_spec(row.module, [str(folder)])
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _downloads(figures: Mapping[str, Figure], name: str) -> int:
    return figures[name].downloads if name in figures else 0


def _first_of_each_family(
    models: Sequence[LibraryModel], figures: Mapping[str, Figure]
) -> list[LibraryModel]:
    """Return the most used model of each family, otherwise the first one that has weights."""
    chosen: dict[str, LibraryModel] = {}
    for model in sorted(models, key=lambda m: (-_downloads(figures, m.name), not m.published)):
        chosen.setdefault(model.family, model)
    kept = {model.name for model in chosen.values()}
    return [model for model in models if model.name in kept]
