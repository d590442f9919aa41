"""The source `sentence-transformers`: published chains of modules, whose configurations are inputs.

The package contains no configurations, and each published model is one. The folder
`data/sentence-transformers` has a folder for each, in the layout of its repository: `modules.json`
and the files that it names. A project's own ones are in `inputs/sentence-transformers`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from compilewatch.config import inputs_folder
from compilewatch.data import SENTENCE_TRANSFORMERS
from compilewatch.errors import SourceError
from compilewatch.records import LibraryBuild, ModelSpec
from compilewatch.sources.libraries.source import LibraryModel, PackageSource
from compilewatch.sources.popularity import Figure

MODULES = "modules.json"


class SentenceTransformersSource(PackageSource):
    """The folders of `sentence-transformers` in the shipped data and in `inputs`."""

    name = "sentence-transformers"
    library = "sentence-transformers"

    def files(self, package: Path) -> Iterable[Path]:
        del package
        return (p for folder in configurations().values() for p in folder.rglob("*.json"))

    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        del package
        return tuple(
            LibraryModel(
                name=name,
                family=_model_type(folder / "config.json"),
                task="sentence-similarity",
            )
            for name, folder in sorted(configurations().items())
        )

    def _spec(self, model: LibraryModel, figures: Mapping[str, Figure]) -> ModelSpec:
        folder = configurations()[model.name]
        build = LibraryBuild(
            library=self.library,
            name=model.name,
            configuration=str(folder),
            configuration_sha256=folder_sha256(folder),
        )
        return msgspec.structs.replace(super()._spec(model, figures), build=build)


def configurations() -> dict[str, Path]:
    """Return the folders of published configurations by name; a project's own replace others."""
    places = (SENTENCE_TRANSFORMERS, inputs_folder() / "sentence-transformers")
    files = (path for place in places for path in place.glob(f"*/{MODULES}"))
    return {path.parent.name: path.parent for path in files}


def folder_sha256(folder: Path) -> str:
    """Return the digest of the configuration files in a folder, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.json")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _model_type(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["model_type"])
    except (OSError, ValueError, KeyError) as error:
        raise SourceError(f"{path}: has no model_type: {error}") from None
