"""One stored run: its records, and its folder as sinks read and write it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import msgspec

from compilewatch import files as disk
from compilewatch.errors import StoreError
from compilewatch.events import Event
from compilewatch.files import lock
from compilewatch.records import Plan, Result, Run, now
from compilewatch.store.artifacts import keep_artifacts, link_artifacts
from compilewatch.store.journal import decode, decode_lines

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
        except disk.DamagedError as error:
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
        except (disk.DamagedError, StoreError) as error:
            raise StoreError(
                f"{path}: {error}; this run cannot be continued, start a new sweep (it reuses the "
                "results of this run)"
            ) from None


class RunFolder:
    """`outputs/<run>/`, accessed by relative paths. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        # `report` can write its thousand pages again, so they need not wait for the disk.
        disk.write_atomically(self.path(name), data, durable=False)

    def names(self) -> tuple[str, ...]:
        """Return the relative paths (with slashes) of all complete files, sorted."""
        with disk.explained("read", self.root):
            paths = [path.relative_to(self.root) for path in self.root.rglob("*")]
            files = [path for path in paths if (self.root / path).is_file()]
        # Scratch folders and temporary files are hidden.
        return tuple(
            sorted(f.as_posix() for f in files if not any(p.startswith(".") for p in f.parts))
        )

    def path(self, name: str) -> Path:
        """Return the path of a file, whether it exists or not."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise StoreError(f"a sink may not write {name!r}: it is outside of the run's folder")
        return self.root / path


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
    with disk.explained("lock", path):
        is_ours = lock(descriptor, seconds=LOCK_WAIT_SECONDS)
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
    data = disk.read_if_there(path)
    if data is None:
        raise StoreError(f"{path} is missing: the run is incomplete")
    return data


class RunWriter:
    """Appends to one run; a context manager that holds the run's lock.

    When `append` returns, the results are synced to disk, so that neither a killed process nor a
    power failure loses them. Without `finish`, the run reads as interrupted. Every method raises
    StoreError and leaves the files readable.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.run = run
        self._started = time.monotonic()
        self._results = _open(path / RESULTS_FILE)
        self._log = -1
        try:
            hold(self._results, path)
            self._log = _open(path / "logs" / f"{run.id}.jsonl")
        except BaseException:
            self.close()
            raise

    @property
    def scratch(self) -> Path:
        """The folder of the launcher, if it was made."""
        return self.path / f".scratch-{os.getpid()}"

    def prepare(self) -> None:
        """Prepare an existing run: cut off incomplete lines, delete old scratch folders."""
        with disk.explained("continue", self.path):
            for descriptor in (self._results, self._log):
                os.ftruncate(descriptor, _complete_size(descriptor))
            for old in self.path.glob(".scratch-*"):
                shutil.rmtree(old, ignore_errors=True)

    def make_scratch(self) -> Path:
        """Create a folder for the launcher, on the run's file system; `close` deletes it."""
        with disk.explained("create", self.scratch):
            self.scratch.mkdir(exist_ok=True)
        return self.scratch

    def append(self, results: Sequence[Result], artifacts: Path | None = None) -> list[Result]:
        """Store results in one write; return them as stored.

        `artifacts` is a folder of files to keep, which the first request made; all results then
        name these files. Without it, the artifacts that the results already name are kept.
        """
        if not results:
            return []
        with disk.explained("write", self.path / RESULTS_FILE):
            if artifacts is not None:
                names = keep_artifacts(artifacts, self.path, results[0].request)
                results = [msgspec.structs.replace(r, artifacts=names) for r in results]
            disk.append_all(
                self._results, b"".join(msgspec.json.encode(r) + b"\n" for r in results)
            )
            disk.sync(self._results)
        return list(results)

    def adopt(self, results: Sequence[tuple[Result, Path]]) -> list[Result]:
        """Store results of other runs, given with the runs' folders, with their artifacts."""
        with disk.explained("write", self.path / "artifacts"):
            adopted = [
                msgspec.structs.replace(
                    result, artifacts=link_artifacts(result.artifacts, folder, self.path)
                )
                if result.artifacts
                else result
                for result, folder in results
            ]
        return self.append(adopted)

    def events(self, events: Sequence[Event]) -> None:
        """Append events to the log."""
        with disk.explained("write", self.path / "logs"):
            disk.append_all(self._log, b"".join(msgspec.json.encode(e) + b"\n" for e in events))

    def update(self, **changes: object) -> Run:
        """Change fields of run.json and return the new run."""
        return self.record(msgspec.structs.replace(self.run, **changes))

    def wall_seconds(self) -> float:
        """Return the wall-clock time of this run, including earlier parts."""
        return (self.run.wall_seconds or 0.0) + time.monotonic() - self._started

    def ended(self, state: str, wall_seconds: float | None = None) -> Run:
        """Return the run as it ends now: `finished`, `interrupted` or `incomplete`.

        `wall_seconds` is measured unless given.
        """
        wall = self.wall_seconds() if wall_seconds is None else wall_seconds
        return msgspec.structs.replace(self.run, state=state, finished_at=now(), wall_seconds=wall)

    def finish(self, state: str) -> Run:
        """Record that the run ends now."""
        return self.record(self.ended(state))

    def record(self, run: Run) -> Run:
        """Write run.json. A finished run deletes its plan: nothing can be resumed."""
        self.run = run
        disk.write_atomically(self.path / RUN_FILE, msgspec.json.format(msgspec.json.encode(run)))
        if run.state == "finished":
            with contextlib.suppress(OSError):
                (self.path / PLAN_FILE).unlink()
        return run

    def discard(self) -> None:
        """Delete the run, which holds nothing that anybody would miss."""
        shutil.rmtree(self.path, ignore_errors=True)
        latest = self.path.parent / "latest"
        if not latest.exists():  # it named this run: the newest that is left counts instead
            latest.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the run. Further calls do nothing."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for descriptor in (self._results, self._log):
            if descriptor >= 0:
                os.close(descriptor)
        self._results = self._log = -1

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def earlier_seconds(path: Path, run: Run) -> float:
    """Return the wall-clock time of a run before its interruption; an estimate if it was killed.

    run.json is written at the start and at an orderly end, results.jsonl with each result.
    """
    try:
        last = (path / RESULTS_FILE).stat().st_mtime - (path / RUN_FILE).stat().st_mtime
    except OSError:
        last = 0.0
    return (run.wall_seconds or 0.0) + max(0.0, last)


def _open(path: Path) -> int:
    with disk.explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)


def _complete_size(descriptor: int) -> int:
    """Return the size of a file up to and including its last newline, in bytes."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return data.rfind(b"\n") + 1


def run_bytes(path: Path) -> int:
    """Return the size of a run's files, including those that it shares with other runs."""
    return sum(status.st_size for status in _files(path))


def freed_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that deleting these runs frees; files with further links free nothing."""
    links: Counter[tuple[int, int]] = Counter()
    freed = 0
    for path in paths:
        for status in _files(path):
            file = (status.st_dev, status.st_ino)
            links[file] += 1
            if links[file] == status.st_nlink:
                freed += status.st_size
    return freed


def _files(path: Path) -> Iterable[os.stat_result]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name))  # noqa: PTH118  (of a hundred thousand)
            except FileNotFoundError:
                continue  # it is being deleted right now
            except OSError as error:
                raise disk.failed("read", Path(folder) / name, error) from None
