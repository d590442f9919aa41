"""The pulled list `inputs/pulled/models.toml`, which `pull` writes and `repositories` reads.

Each model is pinned to a commit; its configuration is stored next to the list, so that a sweep
needs no network. docs/formats.md describes the format.
"""

from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from compilewatch.errors import ConfigError, SourceError
from compilewatch.files import read_toml, write_atomically
from compilewatch.records import SCHEMA_VERSION, Record

SORTS = {"downloads": "downloads", "likes": "likes", "trending": "trending_score"}
"""Values of `pull --sort` -> those of `HfApi.list_models`."""


class PulledQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query that was sent to the Hub."""

    top: int
    sort: str = "downloads"
    task: str | None = None
    family: str | None = None
    library: str | None = None


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

    `kept` counts models of the earlier list that an interrupted pull did not reach.
    """

    path: str
    models: int
    configs: int
    problems: dict[str, int]
    partial: bool = False
    message: str | None = None
    kept: int = 0


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
