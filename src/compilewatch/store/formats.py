"""Versions of the stored files: decoded when known, migrated when old, refused when newer.

Every line of results.jsonl, run.json and plan.json carry `schema_version`. An old one is brought
up to date in memory by the functions of `MIGRATIONS`, one version at a time; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.records import SCHEMA_VERSION, Result, Run
from compilewatch.records.plans import Plan

T = TypeVar("T", Run, Result, Plan)

Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: dict[tuple[str, int], Migration] = {}
"""(struct name, version) -> a function that makes the next version of it."""


class DamagedError(ValueError):
    """What is stored cannot be read as what it should be; the message says why."""


class _Version(msgspec.Struct):
    schema_version: int


_PROBE = msgspec.json.Decoder(_Version)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Run, Result, Plan)
}


def decode(data: bytes, kind: type[T]) -> T:
    """Decode one stored record of any known version.

    Raises StoreError where it was written by a newer compilewatch, DamagedError where it cannot
    be decoded. The message of either does not name the file.
    """
    try:
        version = _PROBE.decode(data).schema_version
    except msgspec.DecodeError as error:
        raise DamagedError(str(error)) from None
    except UnicodeDecodeError as error:
        raise DamagedError(str(error)) from None
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"written by a newer compilewatch (schema {version}, this one knows "
            f"{SCHEMA_VERSION}): upgrade compilewatch to read it"
        )
    try:
        if version == SCHEMA_VERSION:
            return _DECODERS[kind].decode(data)  # type: ignore[no-any-return]
        return msgspec.convert(_migrated(data, kind, version), kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(str(error)) from None


def _migrated(data: bytes, kind: type[T], version: int) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(data)
    for step in range(version, SCHEMA_VERSION):
        migration = MIGRATIONS.get((kind.__name__, step))
        if migration is None:
            raise StoreError(
                f"written by an old compilewatch (schema {step}) that this one cannot read: "
                "move the run away or read it with the version that wrote it"
            )
        values = migration(values)
        values["schema_version"] = step + 1
    return values
