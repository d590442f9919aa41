"""Files of outputs/: atomic writes, safe names, and errors in words."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import time
from pathlib import Path

from compilewatch.errors import StoreError

NAME_LENGTH = 120
"""Longest file name made from a model's name; file systems allow 255 bytes."""

LOCK_PATIENCE_SECONDS = 1.0
"""A reader that looks whether a run is being written holds its lock for an instant."""

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


def lock(descriptor: int, path: Path) -> None:
    """Hold the lock of the run at `path`, by its open results file. Raises StoreError."""
    patience = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > patience:
                raise StoreError(
                    f"{path} is being written by another process: wait for it to end"
                ) from None
            time.sleep(0.02)
        except OSError as error:
            raise failed("lock", path, error) from None


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                sync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise failed("write", path, error) from None


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
