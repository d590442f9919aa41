"""`manifest`: a team's own models, `inputs/models.toml`.

Each `[[model]]` names either a local folder with a `config.json` (`path`) or a callable that
returns a module (`factory`). Relative paths are relative to the manifest. See docs/formats.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.config import inputs_folder
from compilewatch.errors import ConfigError, MissingModuleError, SourceError
from compilewatch.files import read_toml
from compilewatch.records import SCHEMA_VERSION, FactoryBuild, ModelSpec
from compilewatch.sources.own import factory_spec, folder_spec

T = TypeVar("T")


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[model]]`. With `trust`, the folder's own Python code runs; users must review it."""

    name: str
    path: str | None = None
    factory: str | None = None
    python_path: str | None = None
    inputs: str | None = None
    inputs_file: str | None = None
    weights: bool = False
    trust: bool = False
    revision: str | None = None
    family: str | None = None
    task: str | None = None
    downloads: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema_version: int = SCHEMA_VERSION
    model: list[ManifestEntry] = []


class ManifestSource:
    """The models of a manifest: the most downloaded first, those without downloads in its order."""

    name = "manifest"

    def __init__(self, *, path: Path | None = None, transformers: Path | None = None) -> None:
        self.path = path or inputs_folder() / "models.toml"
        self._root = transformers

    def models(self) -> tuple[ModelSpec, ...]:
        if not self.path.exists():
            raise SourceError(f"{self.path} does not exist: write it, or choose another --source")
        manifest = read_toml(self.path, Manifest)
        if not manifest.model:
            raise ConfigError(f"{self.path}: there is no [[model]] in it")
        names = [entry.name for entry in manifest.model]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{self.path}: model {name!r} is listed twice")
        return tuple(
            self._spec_or_error(entry)
            for entry in sorted(manifest.model, key=lambda e: -(e.downloads or 0))
        )

    def _spec_or_error(self, entry: ManifestEntry) -> ModelSpec:
        """The model of an entry. An invalid entry is an error of this model, not of the list.

        A model of a package that is not installed is skipped.
        """
        try:
            return self._spec(entry)
        except ConfigError as error:
            missing = isinstance(error, MissingModuleError)
            return ModelSpec(
                source=self.name,
                name=entry.name,
                build=FactoryBuild(factory=entry.factory or ""),
                family=entry.family or "unknown",
                task=entry.task or "unknown",
                downloads=entry.downloads,
                skip_reason=str(error) if missing else None,
                error=None if missing else str(error),
            )

    def _spec(self, entry: ManifestEntry) -> ModelSpec:
        origin = f"{self.path}: model {entry.name!r}"
        if (entry.path is None) == (entry.factory is None):
            raise ConfigError(f"{origin} needs either path or factory, and not both")
        base = self.path.resolve().parent
        inputs_file = None
        if entry.inputs_file is not None:
            inputs_file = base / entry.inputs_file
            if inputs_file.suffix not in (".toml", ".safetensors") or not inputs_file.is_file():
                raise ConfigError(f"{origin}: inputs_file must be a .toml or .safetensors file")
        if entry.path is not None:
            spec = self._folder(entry, base / entry.path, origin)
        else:
            spec = _factory(entry, base, origin, self._root)
        return msgspec.structs.replace(spec, inputs_file=str(inputs_file) if inputs_file else None)

    def _folder(self, entry: ManifestEntry, folder: Path, origin: str) -> ModelSpec:
        for field in ("inputs", "python_path"):
            if getattr(entry, field) is not None:
                raise ConfigError(f"{origin}: {field} can be used with factory, not with path")
        if not folder.is_dir():
            raise ConfigError(f"{origin}: the folder {folder} does not exist")
        spec = folder_spec(
            folder, entry.name, weights=entry.weights, trust=entry.trust, root=self._root
        )
        return msgspec.structs.replace(
            spec,
            revision=entry.revision,
            family=entry.family or spec.family,
            task=entry.task or spec.task,
            downloads=entry.downloads,
        )


def _factory(entry: ManifestEntry, base: Path, origin: str, root: Path | None) -> ModelSpec:
    for field in ("weights", "trust"):
        if getattr(entry, field):
            raise ConfigError(f"{origin}: {field} can be used with path, not with factory")
    assert entry.factory is not None
    try:
        spec = factory_spec(
            entry.factory,
            entry.name,
            python_path=(base / entry.python_path,) if entry.python_path else (),
            inputs=entry.inputs,
            root=root,
        )
    except MissingModuleError:
        raise
    except ConfigError as exc:
        raise ConfigError(f"{origin}: {exc}") from exc
    return msgspec.structs.replace(
        spec,
        revision=entry.revision,
        family=entry.family or "unknown",
        task=entry.task or "unknown",
        downloads=entry.downloads,
    )
