"""Stored records: their versions, and files that only grow, with one JSON record a line.

A file of another version is rejected with one clear line. Every journal has one way to append and
one rule for damaged lines: a line is synced before `append_record` returns, what a killed writer
left of a line stays a line of its own, and a line that cannot be read is left out and named.
"""

import os
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch import files
from compilewatch import records as kinds
from compilewatch.errors import StoreError
from compilewatch.files import DamagedError

T = TypeVar("T", bound=kinds.Record)


class _Version(msgspec.Struct):
    schema_version: int


@cache
def _version_of(kind: type[kinds.Record]) -> int:
    """The version of the records that this compilewatch writes."""
    fields = msgspec.structs.fields(kind)
    return next(int(field.default) for field in fields if field.name == "schema_version")


def decode(data: bytes, kind: type[T]) -> T:
    """Decode one stored record, whose type has its version as the default of `schema_version`.

    Raises StoreError if it has another version, and DamagedError if it cannot be decoded. Neither
    message names the file.
    """
    current = _version_of(kind)
    version = files.from_json(data, _Version).schema_version
    if version == current:
        return files.from_json(data, kind)
    if version > current:
        raise StoreError(
            f"written by a newer compilewatch (schema {version}, this one knows "
            f"{current}): upgrade compilewatch to read it"
        )
    raise StoreError(
        f"written by an old compilewatch (schema {version}, this one reads {current}): move the "
        "run away, or read it with the version that wrote it"
    )


LOCK_SECONDS = 10.0


def append_record(path: Path, record: kinds.Record) -> None:
    """Append one line, synced to disk. Raises StoreError."""
    with files.explained("write", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if not files.lock(descriptor, seconds=LOCK_SECONDS):
                raise StoreError(f"{path} is being written by another process: try again")
            size = os.fstat(descriptor).st_size
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            line = msgspec.json.encode(record) + b"\n"
            files.append_all(descriptor, b"\n" + line if torn else line)
            files.sync(descriptor)
        finally:
            os.close(descriptor)
        if not size:
            files.sync_folder(path.parent)


def read_records(path: Path, kind: type[T]) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """Return the records of a file, and one line for each that cannot be read.

    A file that does not exist has none. Raises StoreError if a newer compilewatch wrote one.
    """
    data = files.read_if_there(path) or b""
    records, damaged, torn = decode_lines(data, path, kind)
    return tuple(records), (*damaged, torn) if torn else tuple(damaged)


def decode_lines(data: bytes, path: Path, kind: type[T]) -> tuple[list[T], list[str], str]:
    """Return the records of a file's content, and one line for each line that cannot be read.

    The third value is such a line about an incomplete last line, or "": it is no damage while the
    file is being written. Raises StoreError if a newer compilewatch wrote one.
    """
    *lines, torn = data.split(b"\n")
    records: list[T] = []
    damaged: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decode(line, kind))
        except DamagedError as error:
            damaged.append(f"{path}:{number}: damaged line left out ({error})")
        except StoreError as error:
            raise StoreError(f"{path}:{number}: {error}") from None
    last = f"{path}:{len(lines) + 1}: incomplete last line left out"
    return records, damaged, last if torn else ""
