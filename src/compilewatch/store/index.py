"""`<run>/.index`: where the result of each key is in results.jsonl, and what became of each.

A cache that may be deleted at any time: it belongs to one state of results.jsonl, and is made again
if that has changed in any way, or if the cache itself is damaged. Nothing writes it during a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from compilewatch.contract.failures import DISK_FAILURE
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.files import DamagedError, failed, replace
from compilewatch.records import HARNESS_VERSION, RESULT_VERSION, Phase, Result, Status
from compilewatch.store.journal import decode
from compilewatch.store.runs import RESULTS_FILE

FILE = ".index"

VERSION = RESULT_VERSION * 1000 + HARNESS_VERSION * 10 + 4
"""An index of another version is made again."""

DIGEST_BYTES = 16

SETTLED_NANOSECONDS = 10**9
"""Only a file that was not written for this long has an index: clocks of file systems are coarse,
so that a later write could leave its times as they were."""

TRANSIENT_ERRORS = frozenset(
    {"ConnectionError", "FileNotFoundError", "MemoryError", "OSError", "TimeoutError"}
    | {"BlockingIOError", "PermissionError"}
)
"""Exceptions that are about the state of the machine, not about the model."""


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


class StoredOutcome(NamedTuple):
    """What a run found for one model on one target, which goes by its label."""

    run: str
    model: str
    target: str
    status: str
    phase: str


class IndexedLine(NamedTuple):
    """A line of results.jsonl: its place in bytes, its key ("" if not reusable), its outcome."""

    start: int
    size: int
    key: str
    outcome: StoredOutcome


class RunIndex(NamedTuple):
    """The index of one run. `stamp` says to which state of results.jsonl it belongs.

    `damaged` has one line of text for each line that cannot be read.
    """

    version: int
    stamp: tuple[int, int, int, int]
    lines: tuple[IndexedLine, ...]
    damaged: tuple[str, ...]


def find(root: Path, keys: Iterable[str]) -> dict[str, StoredResult]:
    """Return the newest reusable result for each key that has one. Raises StoreError."""
    missing = set(keys)
    results: dict[str, StoredResult] = {}
    for path in sorted(root.glob(f"[0-9]*/{RESULTS_FILE}"), reverse=True):  # ids sort by time
        if not missing:
            break
        lines = {line.key: line for line in index_of(path).lines if line.key in missing}
        if not lines:
            continue
        data = _read(path)
        for key, line in lines.items():
            with contextlib.suppress(DamagedError, StoreError):  # deleted or replaced just now
                result = decode(data[line.start : line.start + line.size], Result)
                if result.request.key == key:
                    results[key] = StoredResult(result, path.parent.name)
        missing -= results.keys()
    return results


def outcomes(root: Path, runs: Sequence[str]) -> tuple[list[StoredOutcome], list[str]]:
    """Return what runs found, in the order of their ids, and one line for each damaged line.

    A resumed run may have two lines for one model and target; the later one counts. Raises
    StoreError.
    """
    outcomes_of_runs: list[StoredOutcome] = []
    damaged: list[str] = []
    for run in sorted(runs):
        index = index_of(root / run / RESULTS_FILE)
        newest = {(o.model, o.target): o for _, _, _, o in index.lines}
        outcomes_of_runs += (newest[place] for place in sorted(newest))
        damaged += index.damaged
    return outcomes_of_runs, damaged


def index_of(path: Path) -> RunIndex:
    """Return the index of a results file, empty if there is none. Raises StoreError."""
    try:
        status = path.stat()
    except OSError:
        return RunIndex(VERSION, (0, 0, 0, 0), (), ())
    # `cp` onto a file keeps its inode and may keep its size, but nothing can keep its ctime.
    stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    cache = path.with_name(FILE)
    with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
        data = cache.read_bytes()
        if _digest(data[DIGEST_BYTES:]) == data[:DIGEST_BYTES]:
            index = msgspec.msgpack.decode(data[DIGEST_BYTES:], type=RunIndex)
            if (index.version, index.stamp) == (VERSION, stamp):
                return index
    index = RunIndex(VERSION, stamp, *_indexed(path))
    if time.time_ns() - status.st_ctime_ns > SETTLED_NANOSECONDS:
        body = msgspec.msgpack.encode(index)
        with contextlib.suppress(OSError):  # a folder that is read-only or full is only slower
            replace(cache, _digest(body) + body)
    return index


def _indexed(path: Path) -> tuple[tuple[IndexedLine, ...], tuple[str, ...]]:
    lines: list[IndexedLine] = []
    damaged: list[str] = []
    start = 0
    *complete, _ = _read(path).split(b"\n")
    for number, line in enumerate(complete, start=1):
        try:
            result = decode(line, Result)
        except DamagedError as error:
            damaged.append(f"{path}:{number}: damaged line left out ({error})")
        except StoreError as error:  # all lines have the same version
            damaged = [f"{path}: left out, because it was {error}"]
        else:
            outcome = StoredOutcome(
                path.parent.name,
                result.request.model.name,
                target_label(result.request.target),
                result.status.value,
                result.phase.value,
            )
            key = result.request.key if is_reusable(result) else ""
            lines.append(IndexedLine(start, len(line), key, outcome))
        start += len(line) + 1
    return tuple(lines), tuple(damaged)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # its run was deleted just now
        return b""
    except OSError as error:
        raise failed("read", path, error) from None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
