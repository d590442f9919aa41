"""Versions of the stored files: a file of another version is rejected with one clear line.

Every line of results.jsonl, run.json and plan.json has a `schema_version`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.files import from_json
from compilewatch.records import (
    RESULT_VERSION,
    RUN_VERSION,
    SCHEMA_VERSION,
    Plan,
    Record,
    Result,
    Run,
)

T = TypeVar("T", bound=Record)

VERSIONS: dict[type, int] = {
    Run: RUN_VERSION,
    Result: RESULT_VERSION,
    Plan: SCHEMA_VERSION,
}


class _Version(msgspec.Struct):
    schema_version: int


def decode(data: bytes, kind: type[T], current: int | None = None) -> T:
    """Decode one stored record.

    `current` is the version of records that are not in `VERSIONS`.

    Raises StoreError if it has another version, and DamagedError if it cannot be decoded. Neither
    message names the file.
    """
    current = VERSIONS[kind] if current is None else current
    version = from_json(data, _Version).schema_version
    if version == current:
        return from_json(data, kind)
    if version > current:
        raise StoreError(
            f"written by a newer compilewatch (schema {version}, this one knows "
            f"{current}): upgrade compilewatch to read it"
        )
    raise StoreError(
        f"written by an old compilewatch (schema {version}, this one reads {current}): move the "
        "run away, or read it with the version that wrote it"
    )
