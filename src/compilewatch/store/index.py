"""`index.sqlite`: where the answer to a key is stored, and what each run found in two words.

A cache: it can be deleted at any time.

Nobody writes it while a run goes on. Each lookup first brings it up to date by reading what was
appended to each results.jsonl since the last time, so it cannot miss an answer and cannot slow a
sweep down. What it says is checked against the line it points to.
"""

from __future__ import annotations

import contextlib
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
from compilewatch.store.runs import RESULTS_FILE, answer_spans

VERSION = RESULT_VERSION * 1000 + HARNESS_VERSION * 10 + 2
"""Kept in `PRAGMA user_version`; an index of another version is built anew."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, inode TEXT NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    key TEXT NOT NULL, run TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (key, run)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_of_run ON answers (run);
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
"""Exceptions that speak about the machine of the day rather than about the model."""

ATTEMPTS = 4

T = TypeVar("T")


def is_reusable(result: Result) -> bool:
    """Whether an answer lasts: a verdict, or a failure that would come again.

    A timeout, an out-of-memory, a crash or an error of the set-up is asked again, and so is an
    error of the machine (disk, network, memory). What was skipped was never asked.
    """
    if result.is_verdict or result.status is Status.UNSUPPORTED:
        return True
    if result.status is not Status.ERROR or result.phase is Phase.SETUP:
        return False
    if result.error is None:
        return True
    machine = result.error.code == DISK_FAILURE
    return not machine and result.error.type.rpartition(".")[2] not in TRANSIENT_ERRORS


class Answer(NamedTuple):
    """A stored answer and the id of the run it was found in."""

    result: Result
    run: str


class Location(NamedTuple):
    """A line of a run's results.jsonl, in bytes."""

    key: str
    run: str
    start: int
    size: int


class Found(NamedTuple):
    """What a run found for one model on one target, which goes by its label."""

    run: str
    model: str
    target: str
    status: str
    phase: str


class Index:
    """The index of one outputs folder. Damage is answered by building it anew."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / "index.sqlite"

    def find(self, keys: Sequence[str]) -> dict[str, Answer]:
        """The newest lasting answer to each key that has one. Raises StoreError."""

        def look(database: sqlite3.Connection) -> dict[str, Answer]:
            self._catch_up(database)
            found, misplaced = self._read(self._locate(database, keys))
            if misplaced:
                # Deleted, or edited in place so that its size says nothing: read those again.
                with database:
                    for run in misplaced:
                        _forget(database, run)
                self._catch_up(database)
                found, _ = self._read(self._locate(database, keys))
            return found

        return self._with_database(look)

    def outcomes(self, runs: Sequence[str]) -> list[Found]:
        """What these runs found, in the order of their ids. Raises StoreError."""

        def look(database: sqlite3.Connection) -> list[Found]:
            self._catch_up(database)
            rows = database.execute(
                "SELECT run, model, target, status, phase FROM outcomes"
                " WHERE run IN (SELECT value FROM json_each(?)) ORDER BY run",
                (msgspec.json.encode(list(runs)).decode(),),
            )
            return [Found(*row) for row in rows]

        return self._with_database(look)

    def rebuild(self) -> None:
        """Delete the index and build it from the runs. Raises StoreError."""
        self._delete()
        self._with_database(self._catch_up)

    def forget(self, run: str) -> None:
        """Drop what is known of a run that is deleted. Raises StoreError."""

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
                # Busy, full, or replaced under our feet by a process that found it damaged.
                problem = error
                time.sleep(0.05 * attempt)
            except sqlite3.DatabaseError as error:
                problem = error
                self._delete()
            except OSError as error:
                raise failed("read", self._root, error) from None
        raise StoreError(
            f"cannot use {self.path} ({problem}): it is only a cache, so delete it and try again; "
            "where the disk is full or the folder read-only, mend that first"
        )

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError("another version")
            database.execute("PRAGMA journal_mode=WAL")
            # It can be rebuilt, so it need not wait for the disk.
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
        """Index what was appended since; read files that were replaced or cut again."""
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
        rows: list[Location] = []
        found: list[Found] = []
        end = start
        for offset, line in answer_spans(self._root / run / RESULTS_FILE, start):
            end = offset + len(line)
            with contextlib.suppress(DamagedError, StoreError):
                result = decode(line, Result)
                label = target_label(result.request.target)
                status, phase = result.status.value, result.phase.value
                found.append(Found(run, result.request.model.name, label, status, phase))
                if is_reusable(result):
                    rows.append(Location(result.request.key, run, offset, len(line)))
        database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
        database.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?)", found)
        database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (run, inode, end))

    def _locate(self, database: sqlite3.Connection, keys: Sequence[str]) -> list[Location]:
        # SQLite gives the other columns of the row that has the maximum (lang_select.html, "bare
        # columns in an aggregate query"); run ids sort by time.
        rows = database.execute(
            "SELECT key, max(run), start, size FROM answers"
            " WHERE key IN (SELECT value FROM json_each(?)) GROUP BY key",
            (msgspec.json.encode(list(keys)).decode(),),
        )
        return [Location(*row) for row in rows]

    def _read(self, locations: Sequence[Location]) -> tuple[dict[str, Answer], set[str]]:
        """The answers, and the runs in which a line was not what the index says."""
        by_run: dict[str, list[Location]] = {}
        for location in locations:
            by_run.setdefault(location.run, []).append(location)
        found: dict[str, Answer] = {}
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
                    found[location.key] = Answer(result, run)
                else:
                    misplaced.add(run)
        return found, misplaced


def _forget(database: sqlite3.Connection, run: str) -> None:
    database.execute("DELETE FROM answers WHERE run = ?", (run,))
    database.execute("DELETE FROM outcomes WHERE run = ?", (run,))
    database.execute("DELETE FROM runs WHERE id = ?", (run,))
