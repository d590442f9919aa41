"""The pulled list `inputs/pulled/models.toml`, which `pull` writes and the source `hub` reads.

Each model is pinned to a commit; its configuration is stored next to the list, so that a sweep
needs no network. docs/formats.md describes the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli_w

from compilewatch.config import PULLED, inputs_folder
from compilewatch.data import package_classes
from compilewatch.errors import ConfigError, SourceError
from compilewatch.files import read_toml, write_atomically
from compilewatch.records import SCHEMA_VERSION, ConfigBuild, ModelSpec, Record
from compilewatch.sources.hub.repositories import BASE, Repository, models_of, shipped_and_own
from compilewatch.sources.transformers import Resolver, read_library

SORTS = {"downloads": "downloads", "likes": "likes", "trending": "trending_score"}
"""Values of `pull --sort` -> those of `HfApi.list_models`."""


class PulledQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query that was sent to the Hub."""

    top: int
    sort: str = "downloads"
    task: str | None = None
    family: str | None = None
    library: str | None = None

    @property
    def is_filtered(self) -> bool:
        return any((self.task, self.family, self.library))


class PulledModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model at a commit. `config` is relative to the list.

    `config` is the first configuration file of the repository; the others are in its folder, under
    the paths that they have on the Hub. `problem` is the reason why they could not be fetched,
    worded as a skip reason; a repository without configuration files has neither. `files` and
    `tags` are those that say what the repository is; a list may leave out `files`.
    `weights` (load real weights) is set by people, and a later pull keeps it.
    """

    repository: str
    revision: str | None = None
    config: str | None = None
    problem: str | None = None
    weights: bool = False
    model_type: str | None = None
    downloads: int | None = None
    likes: int | None = None
    task: str | None = None
    library: str | None = None
    license: str | None = None
    gated: bool = False
    tags: list[str] = []
    files: list[str] | None = None


class PulledList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`partial` with `message`: the pull was interrupted; models of an earlier one are kept."""

    endpoint: str
    pulled_at: str
    query: PulledQuery
    schema_version: int = SCHEMA_VERSION
    partial: bool = False
    message: str | None = None
    model: list[PulledModel] = []


class PullReport(Record, frozen=True, kw_only=True):
    """The outcome of a pull. `problems` counts the models without a configuration, by reason.

    `kept` counts models of the earlier list that an interrupted pull did not reach; `figures` is
    the file of refreshed figures by architecture, which a complete pull of the most-downloaded
    models writes.
    """

    path: str
    models: int
    configs: int
    problems: dict[str, int]
    partial: bool = False
    message: str | None = None
    kept: int = 0
    figures: str | None = None


def pulled_path() -> Path:
    """Return the default path of the pulled list."""
    return inputs_folder() / PULLED


def read_pulled(path: Path) -> PulledList:
    """Read a pulled list. Raises SourceError if it is missing, ConfigError if it is invalid."""
    if not path.exists():
        raise SourceError(f"{path} does not exist: run `compilewatch pull`")
    pulled = read_toml(path, PulledList)
    names = [model.repository for model in pulled.model]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{path}: {twice} is listed twice")
    return pulled


def write_pulled(path: Path, pulled: PulledList) -> None:
    content = (
        "# Written by `compilewatch pull`; `weights = true` on a model is kept by the next one.\n"
        + tomli_w.dumps(_without_none(msgspec.to_builtins(pulled)))
    )
    write_atomically(path, content.encode())


def _without_none(value: Any) -> Any:
    """Remove None values: TOML has no null."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value


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
        self._inputs = inputs_folder()
        self._remote_code = remote_code or self._inputs / "remote_code.toml"
        self._root = transformers

    def models(self) -> tuple[ModelSpec, ...]:
        pulled = read_pulled(self.path)
        resolver = Resolver(read_library(self._root), package_classes(self._inputs / "overrides"))
        reviewed = shipped_and_own(self._inputs)
        allowed: set[tuple[str, str]] = set()
        if self._remote_code.exists():
            rows = read_toml(self._remote_code, RemoteCode).allow
            allowed = {(row.repository, row.revision) for row in rows}
        specs: list[ModelSpec] = []
        for model in pulled.model:
            spec = _listed_spec(model)
            if model.problem is not None:
                specs.append(spec)
                continue
            if model.config is not None and model.revision is None:
                raise ConfigError(f"{self.path}: {model.repository} has a config, but no revision")
            folder = None
            if model.config is not None:
                config_file = self.path.parent / model.config
                if not config_file.is_file():
                    reason = "its configuration file is missing next to the list: pull again"
                    specs.append(msgspec.structs.replace(spec, skip_reason=reason))
                    continue
                # A repository without a configuration of its own has that of its base.
                folder = config_file.parent
                folder = folder.parent if folder.name == BASE else folder
            repository = Repository(
                name=model.repository,
                folder=folder,
                library=model.library,
                tags=tuple(model.tags),
                files=tuple(model.files) if model.files is not None else None,
                weights=model.weights,
                trusted=(model.repository, model.revision or "") in allowed,
            )
            specs += models_of(spec, repository, resolver, reviewed)
        return tuple(sorted(specs, key=lambda s: (-(s.downloads or 0), s.checkpoint or "", s.name)))


def _listed_spec(model: PulledModel) -> ModelSpec:
    """What the list itself says of a repository."""
    return ModelSpec(
        source=HubSource.name,
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
