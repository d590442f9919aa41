"""Reading one stored run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from compilewatch.errors import StoreError
from compilewatch.files import failed, lock
from compilewatch.records import Result, Run
from compilewatch.records.plans import Plan
from compilewatch.store.formats import DamagedError, decode

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
RESULTS_FILE = "results.jsonl"


class StoredRun:
    """`outputs/<run>/` as it is now. Reads lazily, and once. Raises StoreError.

    `run.state` is as in `Run`; a running one whose writer is gone without a word (killed, power
    cut) reads as `interrupted`.
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
        if run.state == "running" and not is_locked(self.path / RESULTS_FILE):
            # Read again: it may have been finished between the two looks.
            run = decode(_read(path), Run)
            if run.state == "running":
                return msgspec.structs.replace(run, state="interrupted")
        return run

    @cached_property
    def _lines(self) -> tuple[tuple[Result, ...], tuple[str, ...]]:
        path = self.path / RESULTS_FILE
        results: list[Result] = []
        damaged: list[str] = []
        lines = _read(path).split(b"\n")
        torn = lines.pop()
        for number, line in enumerate(lines, start=1):
            try:
                results.append(decode(line, Result))
            except DamagedError as error:
                damaged.append(f"{path}:{number}: damaged line left out ({error})")
            except StoreError as error:
                raise StoreError(f"{path}:{number}: {error}") from None
        if torn and self.run.state != "running":
            damaged.append(f"{path}:{len(lines) + 1}: the last line is torn and left out")
        newest = {(r.request.model.name, r.request.target): r for r in results}
        return tuple(newest.values()), tuple(damaged)

    def results(self) -> tuple[Result, ...]:
        """All results in order; of two for one model and target, which a resumed run may have
        written, the later one. Damaged lines are left out and stand in `damaged`.
        """
        return self._lines[0]

    @property
    def damaged(self) -> tuple[str, ...]:
        """One line for each line of results.jsonl that cannot be read: file, number and why."""
        return self._lines[1]

    def plan(self) -> Plan:
        """What was to be asked. Only an unfinished run keeps its plan."""
        path = self.path / PLAN_FILE
        try:
            return decode(_read(path), Plan)
        except (DamagedError, StoreError) as error:
            raise StoreError(
                f"{path}: {error}; this run cannot be continued, start a new sweep (what it "
                "answered is reused)"
            ) from None


def answer_spans(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a results file from a byte offset on, each with its offset."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield start, line
            start += len(line)


LOCK_WAIT_SECONDS = 1.0
"""A reader that looks whether a run is being written holds its lock for an instant."""


def hold(descriptor: int, path: Path) -> None:
    """Hold the run at `path` by its open results file until that is closed. Raises StoreError."""
    try:
        held = lock(descriptor, seconds=LOCK_WAIT_SECONDS)
    except OSError as error:
        raise failed("lock", path, error) from None
    if not held:
        raise StoreError(f"{path} is being written by another process: wait for it to end")


def is_locked(path: Path) -> bool:
    """Whether a writer holds this results file. False where there is no such file."""
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
        raise StoreError(f"{path} is missing: this is no complete run") from None
    except OSError as error:
        raise failed("read", path, error) from None
