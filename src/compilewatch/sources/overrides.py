"""What the parent reads of the reviewed overrides: their tables, and classes of other packages."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from compilewatch.data import OVERRIDES
from compilewatch.errors import ConfigError
from compilewatch.records import Record


class PackageClass(Record, frozen=True, kw_only=True):
    """Where a class is that derives from Transformers' own, but is in another package."""

    module: str
    packages: tuple[str, ...]


def package_classes(own: Path) -> dict[str, PackageClass]:
    """Return the classes for which a reviewed line names a module. Raises ConfigError.

    `own` is a project's folder of overrides, which need not exist.
    """
    return {
        name: PackageClass(module=override["module"], packages=tuple(override.get("packages", ())))
        for override in read_overrides(own if own.is_dir() else None)
        if override.get("module")
        for name in override.get("classes", ())
    }


def read_overrides(own: Path | None) -> tuple[dict[str, Any], ...]:
    """Return the `[[override]]` tables, without `reason` and `date`: the shipped ones come first.

    `own` is a project's folder of overrides. `worker/model/overrides.py` validates them; a key only
    depends on which models they select and on their content. Raises ConfigError.
    """
    found: list[dict[str, Any]] = []
    folders = (OVERRIDES,) if own is None else (OVERRIDES, own)
    for path in (path for folder in folders for path in sorted(folder.glob("*.toml"))):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8")).get("override", [])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from None
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise ConfigError(f"{path}: overrides are written as [[override]] tables")
        found += ({k: v for k, v in e.items() if k not in ("reason", "date")} for e in entries)
    return tuple(found)
