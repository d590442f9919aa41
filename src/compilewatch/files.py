"""Files: atomic writes, locks, TOML and JSON with clear errors, safe names."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from compilewatch.errors import ConfigError, OsErrorsAs, StoreError, did_you_mean
from compilewatch.records import SCHEMA_VERSION

T = TypeVar("T", bound=msgspec.Struct)
_Decoded = TypeVar("_Decoded")

_TEMPORARY = "compilewatch-tmp-"
"""A folder has this name when it is locked, so that one without a lock is left over."""

NAME_LENGTH = 120
"""Maximum length of a file name made from a model's name; file systems allow 255 bytes."""

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
    """Return the StoreError for a failed file operation: what happened, and what to do."""
    advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    return StoreError(f"cannot {action} {path}: {advice}")


@contextlib.contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Raise StoreError, with `failed`'s words, where a file operation of the body fails."""
    try:
        yield
    except OSError as error:
        raise failed(action, path, error) from None


def read_if_there(path: Path) -> bytes | None:
    """Return what a file holds, None if there is no file. Raises StoreError."""
    with explained("read", path), contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def sync(descriptor: int) -> None:
    """Sync written data to disk; fdatasync, where it exists, does not sync the timestamps."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk. Raises OSError."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def lock(descriptor: int, *, seconds: float, on_wait: Callable[[], None] | None = None) -> bool:
    """Take the exclusive lock (flock) of an open file.

    Args:
        seconds: how long to wait for another process that holds it.
        on_wait: called once if another process holds the lock.

    Returns: False if the other process still holds it then. Raises OSError.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
        if on_wait is not None:
            on_wait()
            on_wait = None
        time.sleep(0.02)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A temporary folder. If this process is killed, the next call of any process deletes it.

    The kernel releases the lock of a process that ends. Forks that this process leaves behind
    share the lock, and the folder stays until they have ended too.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError), _opened(old) as descriptor:  # of another user, or gone
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old)
    unlocked = Path(tempfile.mkdtemp(prefix="compilewatch-"))
    with _opened(unlocked) as descriptor:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = unlocked.rename(
            unlocked.with_name(f"{_TEMPORARY}{unlocked.name.rpartition('-')[2]}")
        )
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def append_all(descriptor: int, data: bytes) -> None:
    """Append `data` in one write, or leave the file as it was and raise OSError.

    A short write means that the disk is full; the next write then raises the error.
    """
    before = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except BaseException:  # Ctrl-C too: an incomplete line must not stay
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, before)
        raise


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file so that readers see either the old or the new one. Raises StoreError.

    Unless `durable`, a power failure may lose the file, and the call does not wait for the disk.
    """
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data, durable=durable)


def replace(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Like `write_atomically`, for an existing folder. Raises OSError."""
    # Threads and processes may write the same file at once: each uses its own temporary file.
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


def toml_table(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError that names it."""
    try:
        with OsErrorsAs(ConfigError, f"{path}: cannot be read"):
            return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file into a msgspec struct.

    Raises ConfigError that names the file and the line or field, also for a `schema_version` that
    is newer than ours.
    """
    values = toml_table(path)
    written = values.get("schema_version", SCHEMA_VERSION)
    if isinstance(written, int) and written > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: schema_version {written} is newer than this compilewatch, which supports "
            f"{SCHEMA_VERSION}: upgrade compilewatch"
        )
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}{_near_field(str(error), kind)}") from None


class DamagedError(ValueError):
    """Data cannot be decoded as what it should hold; the message says why."""


def from_json(data: bytes | str, kind: type[_Decoded]) -> _Decoded:
    """Decode JSON as a type. Raises DamagedError, also where the text is no UTF-8."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(str(error)) from None


def read_if_whole(path: Path, kind: type[_Decoded]) -> _Decoded | None:
    """Return what a JSON file holds, None if it is missing, unreadable or damaged."""
    with contextlib.suppress(OSError, DamagedError):
        return from_json(path.read_bytes(), kind)
    return None


def read_json_object(path: Path, origin: str = "") -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises ConfigError that names the file, or `origin` in its place.
    """
    with OsErrorsAs(ConfigError, f"{origin or path}: cannot be read"):
        return json_object(path.read_bytes(), origin or str(path))


def json_object(data: bytes | str, origin: str) -> dict[str, Any]:
    """Decode JSON that holds an object. Raises ConfigError that names `origin`."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{origin}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: a configuration is a JSON object")
    return values


def _near_field(message: str, kind: type) -> str:
    """Return `; did you mean 'factory'?` if an unknown field resembles a known one, else ""."""
    unknown = re.search(r"unknown field [`'\"](\w+)", message)
    known = {
        field.name
        for struct in (kind, *_element_types(kind))
        for field in msgspec.structs.fields(struct)
    }
    return did_you_mean(unknown[1], known) if unknown else ""


def _element_types(kind: type) -> Iterator[type]:
    """Yield the structs that the struct's fields are lists of."""
    for field in msgspec.structs.fields(kind):
        for part in get_args(field.type):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield part


def safe_name(name: str) -> str:
    """Convert a model's name to a file name: `org/model` becomes `org--model`.

    A short digest is appended to names that would collide or that a file system could reject.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("/", "--"))
    plain = plain.lstrip(".-") or "_"
    if plain.replace("--", "/") == name and len(plain) <= NAME_LENGTH:
        return plain
    suffix = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: NAME_LENGTH - 9]}-{suffix}"


def point_latest(root: Path, run_id: str, link: str = "latest") -> None:
    """Point the link `latest`, or another one, to a run, atomically. Raises OSError."""
    # The name contains the run's id because two threads of a process may start runs at once.
    temporary = root / f".{link}.{run_id}.tmp"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(run_id, target_is_directory=True)
    temporary.replace(root / link)
