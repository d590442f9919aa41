"""Reviewed knowledge about single models: `data/overrides/*.toml`, and a project's own files.

What no rule can derive is a line of data with a reason, a date and a version scope. Each file
contains `[[override]]` tables; the files of a folder are read in the order of their names.
"""

import datetime
import importlib.metadata
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from compilewatch.data import OVERRIDES
from compilewatch.errors import ConfigError
from compilewatch.files import read_toml
from compilewatch.records import Depth, Mode, Request, Tier


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reviewed line: the models that it applies to, why, and what it sets.

    `model_types` and `classes` select models; if both are given, both must match. `transformers` is
    a PEP 440 specifier; `tiers`, `depths` and `modes` restrict it further. `defaults` are arguments
    of the configuration class for models built from defaults (a partial `config.json`); `config`
    maps dotted paths of the configuration (`text_config.num_hidden_layers`) to values that are set
    after reduction; `inputs` is for `example_inputs`. `packages` are distributions that the classes
    need: the parent reads them, and plans the classes for an environment that has them. `module` is
    the module of a class that one of these packages defines, and that derives from a class of
    Transformers: the parent reads it too.
    """

    reason: str
    date: datetime.date
    model_types: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    transformers: str | None = None
    tiers: tuple[Tier, ...] = (Tier.FAKE, Tier.REAL)
    depths: tuple[Depth, ...] = (Depth.FULL, Depth.REDUCED)
    modes: tuple[Mode, ...] = (Mode.EVAL, Mode.TRAIN)
    defaults: dict[str, Any] = {}
    config: dict[str, Any] = {}
    inputs: dict[str, Any] = {}
    packages: tuple[str, ...] = ()
    module: str | None = None

    def __post_init__(self) -> None:
        if not self.model_types and not self.classes:
            raise ValueError("an override needs `model_types` or `classes`")
        if self.packages and not self.classes:
            raise ValueError("`packages` need `classes`: a model type is not known before it runs")
        if self.module is not None and not self.packages:
            raise ValueError("a `module` needs `packages`: it is none of Transformers")
        if not self.reason.strip():
            raise ValueError("an override needs a `reason`")
        if self.transformers is not None:
            try:
                SpecifierSet(self.transformers)
            except InvalidSpecifier as error:
                raise ValueError(f"`transformers` is not a version specifier: {error}") from None


class Overrides(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file.

    `checked_with` states the versions that it was last reviewed for; nothing reads it but
    `scripts/check_inputs.py`.
    """

    checked_with: str | None = None
    override: tuple[Override, ...] = ()


def matching(
    request: Request, class_name: str, model_type: str, tier: Tier, depth: Depth
) -> list[Override]:
    """Return the overrides for a class; the last one that sets a key takes precedence."""

    def applies(line: Override) -> bool:
        if line.model_types and model_type not in line.model_types:
            return False
        if line.classes and class_name not in line.classes:
            return False
        in_scope = tier in line.tiers and depth in line.depths
        if not in_scope or request.target.mode not in line.modes:
            return False
        if line.transformers is None:
            return True
        version = _transformers_version()
        releases = SpecifierSet(line.transformers)
        return version is not None and releases.contains(version, prereleases=True)

    return list(filter(applies, overrides_of(request)))


def overrides_of(request: Request) -> tuple[Override, ...]:
    """Read the overrides that a request may use: the shipped ones, then those of the project.

    Files are read again when they change. Raises ConfigError that names the file and the key for
    anything that violates the schema.
    """
    paths = sorted(OVERRIDES.glob("*.toml"))
    if request.overrides_dir is not None:
        folder = Path(request.overrides_dir)
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder of input overrides")
        paths += sorted(folder.glob("*.toml"))
    return _read(tuple((path, _version(path)) for path in paths))


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1)
def _read(versions: tuple[tuple[Path, tuple[int, int]], ...]) -> tuple[Override, ...]:
    return tuple(line for path, _ in versions for line in read_toml(path, Overrides).override)


@cache
def _transformers_version() -> str | None:
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None
