"""Writing one run: nothing else writes to outputs/<run>/."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from compilewatch.events import Event
from compilewatch.files import (
    append_all,
    failed,
    sync,
    write_atomically,
)
from compilewatch.records import Result, Run, now
from compilewatch.store.artifacts import keep_artifacts, link_artifacts
from compilewatch.store.runs import PLAN_FILE, RESULTS_FILE, RUN_FILE, hold


class RunWriter:
    """Appends to one run; a context manager that holds the run's lock.

    When `append` returns, the results are synced to disk, so that neither a killed process nor a
    power failure loses them. Without `finish`, the run reads as interrupted. Every method raises
    StoreError and leaves the files readable.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.run = run
        self.scratch = path / f".scratch-{os.getpid()}"
        self._started = time.monotonic()
        self._results = _open(path / RESULTS_FILE)
        self._log = -1
        try:
            hold(self._results, path)
            self._log = _open(path / "logs" / f"{run.id}.jsonl")
        except BaseException:
            self.close()
            raise

    def moved_to(self, path: Path) -> None:
        """Follow a rename of the run's folder; open files and the lock stay valid."""
        self.path = path
        self.scratch = path / self.scratch.name

    def prepare(self) -> None:
        """Prepare an existing run: cut off incomplete lines, delete old scratch folders."""
        try:
            for descriptor in (self._results, self._log):
                os.ftruncate(descriptor, _complete_size(descriptor))
            for old in self.path.glob(".scratch-*"):
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise failed("continue", self.path, error) from None

    def make_scratch(self) -> Path:
        """Create a folder for the launcher, on the run's file system; `close` deletes it."""
        try:
            self.scratch.mkdir(exist_ok=True)
        except OSError as error:
            raise failed("create", self.scratch, error) from None
        return self.scratch

    def append(self, results: Sequence[Result], artifacts: Path | None = None) -> list[Result]:
        """Store results in one write; return them as stored.

        `artifacts` is a folder of files to keep, which the first request made; all results then
        name these files. Without it, the artifacts that the results already name are kept.
        """
        if not results:
            return []
        try:
            if artifacts is not None:
                names = keep_artifacts(artifacts, self.path, results[0].request)
                results = [msgspec.structs.replace(r, artifacts=names) for r in results]
            append_all(self._results, _lines(results))
            sync(self._results)
        except OSError as error:
            raise failed("write", self.path / RESULTS_FILE, error) from None
        return list(results)

    def adopt(self, results: Sequence[tuple[Result, Path]]) -> list[Result]:
        """Store results of other runs, given with the runs' folders, with their artifacts."""
        try:
            adopted = [
                msgspec.structs.replace(
                    result, artifacts=link_artifacts(result.artifacts, folder, self.path)
                )
                if result.artifacts
                else result
                for result, folder in results
            ]
        except OSError as error:
            raise failed("write", self.path / "artifacts", error) from None
        return self.append(adopted)

    def events(self, events: Sequence[Event]) -> None:
        """Append events to the log."""
        if not events:
            return
        lines = (msgspec.json.encode(event) + b"\n" for event in events)
        try:
            append_all(self._log, b"".join(lines))
        except OSError as error:
            raise failed("write", self.path / "logs", error) from None

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
        write_atomically(self.path / RUN_FILE, msgspec.json.format(msgspec.json.encode(run)))
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise failed("write", path, error) from None


def _complete_size(descriptor: int) -> int:
    """Return the size of a file up to and including its last newline, in bytes."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        block = os.pread(descriptor, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _lines(records: Sequence[Result]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)
