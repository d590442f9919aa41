"""Files: atomic writes, locks, TOML with worded errors, safe names."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, get_args

import msgspec

from compilewatch.errors import ConfigError, StoreError, did_you_mean

T = TypeVar("T", bound=msgspec.Struct)

NAME_LENGTH = 120
"""Longest file name made from a model's name; file systems allow 255 bytes."""

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and continue with --resume",
    errno.EDQUOT: "the disk quota is used up; free some space and continue with --resume",
    errno.EFBIG: "the file would exceed the size limit; raise it and continue with --resume",
    errno.EACCES: "permission denied; make the folder writable or choose another with --output",
    errno.EPERM: "permission denied; make the folder writable or choose another with --output",
    errno.EROFS: "the file system is read-only; choose another folder with --output",
    errno.ENOENT: "it cannot be made there; choose another folder with --output",
    errno.ENOTDIR: "a part of the path is a file; choose another folder with --output",
    errno.EIO: "the disk reports an error; choose another folder with --output",
}


def failed(action: str, path: Path, error: OSError) -> StoreError:
    """The StoreError for a failed file operation: what happened, and what to do."""
    advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    return StoreError(f"cannot {action} {path}: {advice}")


def sync(descriptor: int) -> None:
    """Have written data survive a power cut. fdatasync, where there is one, skips the times."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(path: Path) -> None:
    """Have the names in a folder survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, seconds: float, told: Callable[[], None] | None = None) -> bool:
    """Take the exclusive lock (flock) of an open file.

    Args:
        seconds: how long to wait for another process that holds it.
        told: called once where there is another.

    Returns: False where the other still holds it then. Raises OSError.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
        if told is not None:
            told()
            told = None
        time.sleep(0.02)


def write_whole(descriptor: int, data: bytes) -> None:
    """Append `data` in one write, or leave the file as it was and raise OSError.

    A short write happens when the disk fills up; the next one then says so.
    """
    before = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except BaseException:  # Ctrl-C included: half a line is worse than none
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, before)
        raise


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file so that a reader sees the old or the new one. Raises StoreError.

    Not `durable`: a power cut may lose it, and it costs no wait for the disk.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data, durable=durable)
    except OSError as error:
        raise failed("write", path, error) from None


def replace(path: Path, data: bytes, *, durable: bool = False) -> None:
    """As `write_atomically`, into a folder that exists. Raises OSError."""
    # Two threads or processes may write the same file at once: each renames its own.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                sync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_toml(path: Path, kind: type[T], *, version: int = 1) -> T:
    """A TOML file as a struct of msgspec.

    Raises ConfigError that names the file and the line or field, and for a `schema_version` that is
    newer than `version`.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: no valid TOML: {error}") from None
    written = values.get("schema_version", version)
    if isinstance(written, int) and written > version:
        raise ConfigError(
            f"{path}: schema_version {written} is newer than this compilewatch, which reads "
            f"{version}: upgrade compilewatch"
        )
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}{_near_field(str(error), kind)}") from None


def _near_field(message: str, kind: type) -> str:
    """`; did you mean 'factory'?` for a field that neither the file nor a table of it has."""
    unknown = re.search(r"unknown field [`'\"](\w+)", message)
    known = {
        field.name
        for struct in (kind, *_element_types(kind))
        for field in msgspec.structs.fields(struct)
    }
    return did_you_mean(unknown[1], known) if unknown else ""


def _element_types(kind: type) -> Iterator[type]:
    """The structs that the fields of a struct are lists of."""
    for field in msgspec.structs.fields(kind):
        for part in get_args(field.type):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield part


def safe_name(name: str) -> str:
    """A model's name as one file name: `org/model` becomes `org--model`.

    Names that would collide or that a file system could refuse get a short digest appended.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("/", "--"))
    plain = plain.lstrip(".") or "_"
    if plain.replace("--", "/") == name and len(plain) <= NAME_LENGTH:
        return plain
    suffix = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: NAME_LENGTH - 9]}-{suffix}"


def point_latest(root: Path, run_id: str) -> None:
    """Have `latest` name a run, in one step. Raises OSError."""
    # Named after the run, as two threads of one process may start a run at once.
    temporary = root / f".latest.{run_id}.tmp"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(run_id, target_is_directory=True)
    temporary.replace(root / "latest")
