"""The source `hub`: the models of the pulled list at their commits, read from disk only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from compilewatch.config import inputs_folder
from compilewatch.data import package_classes
from compilewatch.errors import ConfigError
from compilewatch.files import read_toml
from compilewatch.records import SCHEMA_VERSION, ConfigBuild, ModelSpec
from compilewatch.sources.configs import Resolver
from compilewatch.sources.hub.pulled import PulledModel, pulled_path, read_pulled
from compilewatch.sources.hub.repositories import BASE, Kinds, Repository
from compilewatch.sources.hub.reviewed import shipped_and_own
from compilewatch.sources.transformers.scan import read_library

Commit = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]


class Allowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remote code that a person has reviewed: this repository at this commit, and no other."""

    repository: str
    revision: Commit
    reason: str
    date: str


class RemoteCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema_version: int = SCHEMA_VERSION
    allow: list[Allowed] = []


class HubSource:
    """The models of the pulled list. `remote_code` is the reviewed list of code that may run."""

    name = "hub"

    def __init__(
        self,
        *,
        path: Path | None = None,
        remote_code: Path | None = None,
        transformers: Path | None = None,
    ) -> None:
        self.path = path or pulled_path()
        self._remote_code = remote_code or inputs_folder() / "remote_code.toml"
        self._inputs = inputs_folder()
        self._overrides = self._inputs / "overrides"
        self._root = transformers

    def models(self) -> tuple[ModelSpec, ...]:
        pulled = read_pulled(self.path)
        elsewhere = package_classes(self._overrides)
        kinds = Kinds(Resolver(read_library(self._root), elsewhere), shipped_and_own(self._inputs))
        allowed = _read_allowed(self._remote_code)
        specs = [spec for model in pulled.model for spec in self._specs(model, kinds, allowed)]
        return tuple(sorted(specs, key=lambda s: (-(s.downloads or 0), s.checkpoint or "", s.name)))

    def _specs(
        self, model: PulledModel, kinds: Kinds, allowed: frozenset[tuple[str, str]]
    ) -> tuple[ModelSpec, ...]:
        spec = ModelSpec(
            source=self.name,
            name=model.repository,
            build=ConfigBuild(config_file="", config_sha256="", repo=model.repository),
            family=model.model_type or "unknown",
            revision=model.revision,
            downloads=model.downloads,
            license=model.license,
            gated=model.gated,
            checkpoint=model.repository,
            skip_reason=model.problem,
        )
        if model.problem is not None:
            return (spec,)
        if model.config is not None and model.revision is None:
            raise ConfigError(f"{self.path}: {model.repository} has a config, but no revision")
        config_file = self.path.parent / model.config if model.config is not None else None
        if config_file is not None and not config_file.is_file():
            reason = "its configuration file is missing next to the list: pull again"
            return (msgspec.structs.replace(spec, skip_reason=reason),)
        repository = Repository(
            name=model.repository,
            folder=_folder(config_file) if config_file is not None else None,
            library=model.library,
            tags=tuple(model.tags),
            files=tuple(model.files) if model.files is not None else None,
            weights=model.weights,
            trusted=(model.repository, model.revision) in allowed,
        )
        return kinds.models(spec, repository)


def _folder(config_file: Path) -> Path:
    """The folder of a repository; one without a configuration of its own has that of its base."""
    folder = config_file.parent
    return folder.parent if folder.name == BASE else folder


def _read_allowed(path: Path) -> frozenset[tuple[str, str]]:
    """Read (repository, commit) pairs; without the file there are none."""
    if not path.exists():
        return frozenset()
    return frozenset((a.repository, a.revision) for a in read_toml(path, RemoteCode).allow)
