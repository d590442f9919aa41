"""`index.sqlite`: where the result of each key is stored, and status and phase of every result.

A cache that may be deleted at any time.

Nothing writes it during a run. Each lookup first reads what was appended to every results.jsonl
since the last lookup, so it cannot miss a result and does not slow down a sweep. Every location is
checked against the line that it refers to.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from compilewatch.contract.failures import DISK_FAILURE
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.files import failed
from compilewatch.records import HARNESS_VERSION, RESULT_VERSION, Phase, Result, Status
from compilewatch.store.formats import DamagedError, decode
from compilewatch.store.runs import RESULTS_FILE, result_lines

VERSION = RESULT_VERSION * 1000 + HARNESS_VERSION * 10 + 3
"""Stored in `PRAGMA user_version`; an index of another version is rebuilt."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, inode TEXT NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    key TEXT NOT NULL, run TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (key, run)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS results_of_run ON results (run);
CREATE TABLE IF NOT EXISTS outcomes (
    run TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    status TEXT NOT NULL, phase TEXT NOT NULL,
    PRIMARY KEY (run, model, target)
) WITHOUT ROWID;
"""

TRANSIENT_ERRORS = frozenset(
    {"ConnectionError", "FileNotFoundError", "MemoryError", "OSError", "TimeoutError"}
    | {"BlockingIOError", "PermissionError"}
)
"""Exceptions that are about the state of the machine, not about the model."""

ATTEMPTS = 4

ROOM_BYTES = 2**20
"""An index that cannot be used where less is free than this has no room to grow."""

T = TypeVar("T")


def is_reusable(result: Result) -> bool:
    """Whether later runs may reuse a result: a verdict, or a failure that would occur again.

    A timeout, out of memory, a crash, an error in `setup` and an error of the machine (disk,
    network, memory) are evaluated again, and so are skipped requests, which did not run.
    """
    if result.is_verdict or result.status is Status.UNSUPPORTED:
        return True
    if result.status is not Status.ERROR or result.phase is Phase.SETUP:
        return False
    if result.error is None:
        return True
    machine = result.error.code == DISK_FAILURE
    return not machine and result.error.type.rpartition(".")[2] not in TRANSIENT_ERRORS


class StoredResult(NamedTuple):
    """A stored result and the id of the run that contains it."""

    result: Result
    run: str


class StoredLocation(NamedTuple):
    """The position of a line in a run's results.jsonl, in bytes."""

    key: str
    run: str
    start: int
    size: int


class StoredOutcome(NamedTuple):
    """What a run found for one model on one target, which goes by its label."""

    run: str
    model: str
    target: str
    status: str
    phase: str


class Index:
    """The index of one outputs folder. A damaged index is rebuilt."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / "index.sqlite"

    def find(self, keys: Sequence[str]) -> dict[str, StoredResult]:
        """Return the newest reusable result for each key that has one. Raises StoreError."""

        def look(database: sqlite3.Connection) -> dict[str, StoredResult]:
            self._catch_up(database)
            found, misplaced = self._read(self._locate(database, keys))
            if misplaced:
                # The runs were deleted, or edited in place without a change of size: read them
                # again.
                with database:
                    for run in misplaced:
                        _forget(database, run)
                self._catch_up(database)
                found, _ = self._read(self._locate(database, keys))
            return found

        return self._with_database(look)

    def outcomes(self, runs: Sequence[str]) -> list[StoredOutcome]:
        """What these runs found, in the order of their ids. Raises StoreError."""

        def look(database: sqlite3.Connection) -> list[StoredOutcome]:
            self._catch_up(database)
            rows = database.execute(
                "SELECT run, model, target, status, phase FROM outcomes"
                " WHERE run IN (SELECT value FROM json_each(?)) ORDER BY run",
                (msgspec.json.encode(list(runs)).decode(),),
            )
            return [StoredOutcome(*row) for row in rows]

        return self._with_database(look)

    def forget(self, run: str) -> None:
        """Remove a deleted run from the index. Raises StoreError."""

        def drop(database: sqlite3.Connection) -> None:
            with database:
                _forget(database, run)

        if self.path.exists():
            self._with_database(drop)

    def _with_database(self, action: Callable[[sqlite3.Connection], T]) -> T:
        problem: sqlite3.DatabaseError | None = None
        for attempt in range(ATTEMPTS):
            try:
                with self._connect() as database:
                    return action(database)
            except sqlite3.OperationalError as error:
                # Busy, disk full, or replaced meanwhile by a process that found it damaged.
                problem = error
                time.sleep(0.05 * attempt)
            except sqlite3.DatabaseError as error:
                problem = error
                self._delete()
            except OSError as error:
                raise failed("read", self._root, error) from None
        if (free := shutil.disk_usage(self._root).free) < ROOM_BYTES:
            raise StoreError(
                f"cannot write {self.path}: the disk is full ({free // 1024} KiB are left); free "
                "some space and try again"
            )
        raise StoreError(
            f"cannot use {self.path} ({problem}): it is only a cache, so delete it and try again; "
            "where the folder is read-only, choose another with --output"
        )

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError("another version")
            database.execute("PRAGMA journal_mode=WAL")
            # The index can be rebuilt, so it need not wait for the disk.
            database.execute("PRAGMA synchronous=OFF")
            if version == 0:
                database.executescript(SCHEMA)
                database.execute(f"PRAGMA user_version={VERSION}")
            yield database
        finally:
            database.close()

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).unlink()

    def _catch_up(self, database: sqlite3.Connection) -> None:
        """Index appended lines, and read files again that were replaced or truncated."""
        with database:
            database.execute("BEGIN IMMEDIATE")
            present = {
                path.parent.name: path.stat() for path in self._root.glob(f"[0-9]*/{RESULTS_FILE}")
            }
            known = {
                run: (inode, size)
                for run, inode, size in database.execute("SELECT id, inode, size FROM runs")
            }
            for run, status in present.items():
                inode, size = known.get(run, ("", 0))
                if inode != str(status.st_ino) or size > status.st_size:
                    _forget(database, run)
                    size = 0
                elif size == status.st_size:
                    continue
                self._read_on(database, run, str(status.st_ino), size)

    def _read_on(self, database: sqlite3.Connection, run: str, inode: str, start: int) -> None:
        rows: list[StoredLocation] = []
        found: list[StoredOutcome] = []
        end = start
        for offset, line in result_lines(self._root / run / RESULTS_FILE, start):
            end = offset + len(line)
            with contextlib.suppress(DamagedError, StoreError):
                result = decode(line, Result)
                label = target_label(result.request.target)
                status, phase = result.status.value, result.phase.value
                found.append(StoredOutcome(run, result.request.model.name, label, status, phase))
                if is_reusable(result):
                    rows.append(StoredLocation(result.request.key, run, offset, len(line)))
        database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", rows)
        database.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?)", found)
        database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (run, inode, end))

    def _locate(self, database: sqlite3.Connection, keys: Sequence[str]) -> list[StoredLocation]:
        # SQLite returns the other columns from the row that has the maximum (lang_select.html,
        # "bare columns in an aggregate query"). Run ids sort by time.
        rows = database.execute(
            "SELECT key, max(run), start, size FROM results"
            " WHERE key IN (SELECT value FROM json_each(?)) GROUP BY key",
            (msgspec.json.encode(list(keys)).decode(),),
        )
        return [StoredLocation(*row) for row in rows]

    def _read(
        self, locations: Sequence[StoredLocation]
    ) -> tuple[dict[str, StoredResult], set[str]]:
        """Return the results, and the runs that have another line than the index expects."""
        by_run: dict[str, list[StoredLocation]] = {}
        for location in locations:
            by_run.setdefault(location.run, []).append(location)
        found: dict[str, StoredResult] = {}
        misplaced: set[str] = set()
        for run, lines in by_run.items():
            try:
                data = (self._root / run / RESULTS_FILE).read_bytes()
            except FileNotFoundError:
                misplaced.add(run)
                continue
            for location in lines:
                line = data[location.start : location.start + location.size]
                try:
                    result = decode(line, Result)
                except (DamagedError, StoreError):
                    misplaced.add(run)
                    continue
                if result.request.key == location.key:
                    found[location.key] = StoredResult(result, run)
                else:
                    misplaced.add(run)
        return found, misplaced


def _forget(database: sqlite3.Connection, run: str) -> None:
    database.execute("DELETE FROM results WHERE run = ?", (run,))
    database.execute("DELETE FROM outcomes WHERE run = ?", (run,))
    database.execute("DELETE FROM runs WHERE id = ?", (run,))
