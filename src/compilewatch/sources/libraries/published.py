"""Libraries whose models are configurations: those of published models, reviewed and shipped.

A package such as pyannote.audio has classes, and each published model is a class with arguments.
The folder `data/models` has one file for each, and a project's own ones are in `inputs/models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from compilewatch.config.paths import inputs_folder
from compilewatch.data import MODELS
from compilewatch.errors import ConfigError, SourceError
from compilewatch.files import read_json_object
from compilewatch.records import LibraryBuild, ModelSpec
from compilewatch.records.digests import canonical_config, digest
from compilewatch.sources.libraries.source import LibraryModel, PackageSource
from compilewatch.sources.popularity import Figure


class PublishedSource(PackageSource):
    """The reviewed configurations of one library; a subclass names the library and its task."""

    task: ClassVar[str]

    def files(self, package: Path) -> Iterable[Path]:
        del package
        return self._configurations().values()

    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        del package
        return tuple(
            LibraryModel(name=name, family=_class_of(path), task=self.task)
            for name, path in sorted(self._configurations().items())
        )

    def _spec(self, model: LibraryModel, figures: Mapping[str, Figure]) -> ModelSpec:
        path = self._configurations()[model.name]
        build = LibraryBuild(
            library=self.library,
            name=model.name,
            configuration=str(path.resolve()),
            configuration_sha256=digest(canonical_config(read_json_object(path))),
        )
        spec = super()._spec(model, figures)
        return msgspec.structs.replace(spec, build=build, architecture=model.family)

    def _configurations(self) -> dict[str, Path]:
        """Return the files by name; a project's own ones replace others."""
        places = (MODELS / self.library, inputs_folder() / MODELS.name / self.library)
        return {path.stem: path for place in places for path in sorted(place.glob("*.json"))}


class PyannoteSource(PublishedSource):
    name = library = "pyannote-audio"
    task = "audio"


class SpeechBrainSource(PublishedSource):
    name = library = "speechbrain"
    task = "audio"


class VocosSource(PublishedSource):
    name = library = "vocos"
    task = "audio"


class FlairSource(PublishedSource):
    name = library = "flair"
    task = "text"


class GlinerSource(PublishedSource):
    name = library = "gliner"
    task = "text"


class WtpsplitSource(PublishedSource):
    name = library = "wtpsplit"
    task = "text"


class UltralyticsSource(PublishedSource):
    name = library = "ultralytics"
    task = "vision"


def _class_of(path: Path) -> str:
    try:
        return str(read_json_object(path)["class"])
    except (ConfigError, KeyError) as error:
        raise SourceError(f"{path}: has no class: {error}") from None
