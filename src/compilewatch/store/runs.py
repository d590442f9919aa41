"""One stored run: its records, and its folder as sinks read and write it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

import msgspec

from compilewatch.errors import StoreError
from compilewatch.files import DamagedError, failed, lock, write_atomically
from compilewatch.records import Plan, Result, Run
from compilewatch.store.formats import decode
from compilewatch.store.journal import decode_lines

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
RESULTS_FILE = "results.jsonl"


class StoredRun:
    """`outputs/<run>/` in its current state. Files are read on first use, once. Raises StoreError.

    `run.state` is as in `Run`, but a running run whose writer no longer exists (killed, power
    failure) is `interrupted`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def run(self) -> Run:
        path = self.path / RUN_FILE
        try:
            run = decode(_read(path), Run)
        except DamagedError as error:
            raise StoreError(
                f"{path} is damaged ({error}): restore it from a backup or delete {self.path}"
            ) from None
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        if run.state == "running" and not self.is_being_written:
            # Read again, because the run may have finished in between.
            run = decode(_read(path), Run)
            if run.state == "running":
                return msgspec.structs.replace(run, state="interrupted")
        return run

    @property
    def is_being_written(self) -> bool:
        """Whether its writer is open now; a sweep reports a finished run before it closes it."""
        return is_locked(self.path / RESULTS_FILE)

    @cached_property
    def _lines(self) -> tuple[tuple[Result, ...], tuple[str, ...]]:
        path = self.path / RESULTS_FILE
        results, damaged, torn = decode_lines(_read(path), path, Result)
        if torn and self.run.state != "running":
            damaged.append(torn)
        newest = {(r.request.model.name, r.request.target): r for r in results}
        return tuple(newest.values()), tuple(damaged)

    def results(self) -> tuple[Result, ...]:
        """Return all results in order, without damaged lines (see `damaged`).

        A resumed run may have two results for one model and target; the later one counts.
        """
        return self._lines[0]

    @property
    def damaged(self) -> tuple[str, ...]:
        """One line for each unreadable line of results.jsonl: file, line number and reason."""
        return self._lines[1]

    def plan(self) -> Plan:
        """Return the plan of an unfinished run; finished runs do not keep it."""
        path = self.path / PLAN_FILE
        try:
            return decode(_read(path), Plan)
        except (DamagedError, StoreError) as error:
            raise StoreError(
                f"{path}: {error}; this run cannot be continued, start a new sweep (it reuses the "
                "results of this run)"
            ) from None


class RunFolder:
    """`outputs/<run>/`, accessed by relative paths. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        # `report` can write its thousand pages again, so they need not wait for the disk.
        write_atomically(self.path(name), data, durable=False)

    def names(self) -> tuple[str, ...]:
        """Return the relative paths (with slashes) of all complete files, sorted."""
        try:
            paths = [path.relative_to(self._root) for path in self._root.rglob("*")]
            files = [path for path in paths if (self._root / path).is_file()]
        except OSError as error:
            raise failed("read", self._root, error) from None
        return tuple(sorted(f.as_posix() for f in files if not _is_hidden(f)))

    def path(self, name: str) -> Path:
        """Return the path of a file, whether it exists or not."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise StoreError(f"a sink may not write {name!r}: it is outside of the run's folder")
        return self._root / path


def result_lines(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield each complete line of a results file after a byte offset, with its own offset."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield start, line
            start += len(line)


LOCK_WAIT_SECONDS = 1.0
"""Long enough for a reader that briefly locks the file to check whether it is being written."""


def hold(descriptor: int, path: Path) -> None:
    """Lock the run at `path` until its open results file is closed. Raises StoreError."""
    try:
        is_ours = lock(descriptor, seconds=LOCK_WAIT_SECONDS)
    except OSError as error:
        raise failed("lock", path, error) from None
    if not is_ours:
        raise StoreError(f"{path} is being written by another process: wait for it to end")


def is_locked(path: Path) -> bool:
    """Whether a writer has locked this results file. False if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: the run is incomplete") from None
    except OSError as error:
        raise failed("read", path, error) from None


def _is_hidden(path: Path) -> bool:
    """Whether a path is, or is inside of, a scratch folder or a temporary file."""
    return any(part.startswith(".") for part in path.parts)
