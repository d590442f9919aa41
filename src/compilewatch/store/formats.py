"""Versions of the stored files: old ones are migrated, newer ones are rejected.

Every line of results.jsonl, run.json and plan.json has a `schema_version`. An old record is
migrated in memory by the functions of `MIGRATIONS`, one version at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.records import (
    RESULT_VERSION,
    RUN_VERSION,
    SCHEMA_VERSION,
    AttemptCode,
    Record,
    Result,
    Run,
)
from compilewatch.records.plans import Plan

T = TypeVar("T", bound=Record)

Migration = Callable[[dict[str, Any]], dict[str, Any]]

VERSIONS: dict[type, int] = {
    Run: RUN_VERSION,
    Result: RESULT_VERSION,
    Plan: SCHEMA_VERSION,
}


def _result_2(values: dict[str, Any]) -> dict[str, Any]:
    """Move the details of a target into one field, and the code of an attempt into its own."""
    for name in ("export", "performance", "xla", "neuron"):
        if found := values.pop(name, None):
            values["details"] = {"type": name, **found}
    for attempt in values.get("attempts", ()):
        code, colon, reason = attempt["reason"].partition(": ")
        known = colon and code in set(AttemptCode)
        attempt["code"] = code if known else AttemptCode.TRANSIENT.value
        attempt["reason"] = reason if known else attempt["reason"]
    return values


def _run_2(values: dict[str, Any]) -> dict[str, Any]:
    """Move `missing_shards` out of the settings."""
    settings = values.get("settings", {})
    return {**values, "missing_shards": settings.pop("missing_shards", [])}


MIGRATIONS: dict[tuple[str, int], Migration] = {("Result", 1): _result_2, ("Run", 1): _run_2}
"""(name of the struct, version) -> a function that converts a record to the next version."""


class DamagedError(ValueError):
    """Stored data cannot be decoded as the expected record; the message says why."""


class _Version(msgspec.Struct):
    schema_version: int


_PROBE = msgspec.json.Decoder(_Version)


@cache
def _decoder(kind: type[Record]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(data: bytes, kind: type[T], current: int | None = None) -> T:
    """Decode one stored record of any known version.

    `current` is the version of records that are not in `VERSIONS`.

    Raises StoreError if a newer compilewatch wrote it, and DamagedError if it cannot be decoded.
    Neither message names the file.
    """
    try:
        version = _PROBE.decode(data).schema_version
    except msgspec.DecodeError as error:
        raise DamagedError(str(error)) from None
    except UnicodeDecodeError as error:
        raise DamagedError(str(error)) from None
    current = VERSIONS[kind] if current is None else current
    if version > current:
        raise StoreError(
            f"written by a newer compilewatch (schema {version}, this one knows "
            f"{current}): upgrade compilewatch to read it"
        )
    try:
        if version == current:
            return _decoder(kind).decode(data)  # type: ignore[no-any-return]
        return msgspec.convert(_migrated(data, kind, version, current), kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(str(error)) from None


def _migrated(data: bytes, kind: type[Record], version: int, current: int) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(data)
    for step in range(version, current):
        migration = MIGRATIONS.get((kind.__name__, step))
        if migration is None:
            raise StoreError(
                f"written by an old compilewatch (schema {step}) that this one cannot read: "
                "move the run away or read it with the version that wrote it"
            )
        values = migration(values)
        values["schema_version"] = step + 1
    return values
