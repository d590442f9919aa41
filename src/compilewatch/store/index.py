"""`<run>/.index`: where the result of each key is in results.jsonl, and what became of each.

A cache that may be deleted at any time: it belongs to one state of results.jsonl, and is made again
if that has changed in any way, or if it cannot be decoded. Nothing writes it during a run.
"""

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from compilewatch.contract.failures import DISK_FAILURE
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.files import DamagedError, read_if_there, replace
from compilewatch.records import HARNESS_VERSION, RESULT_VERSION, Earlier, Phase, Result, Status
from compilewatch.store.journal import decode

FILE = ".index"

VERSION = RESULT_VERSION * 1000 + HARNESS_VERSION * 10 + 6
"""An index of another version is made again."""

SETTLED_NANOSECONDS = 10**9
"""Only a file that was not written for this long has an index: clocks of file systems are coarse,
so that a later write could leave its times as they were."""

TRANSIENT_ERRORS = frozenset(
    {"ConnectionError", "FileNotFoundError", "MemoryError", "OSError", "TimeoutError"}
    | {"BlockingIOError", "PermissionError"}
)
"""Exceptions that are about the state of the machine, not about the model."""


def is_reusable(result: Result) -> bool:
    """Whether later runs may reuse a result: a verdict, a forecast, or a lasting failure.

    A timeout, out of memory, a crash, an error in `setup` and an error of the machine (disk,
    network, memory) are evaluated again, and so are skipped requests, which did not run.
    """
    if result.is_conclusive or result.status is Status.UNSUPPORTED:
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

    model: str
    target: str
    earlier: Earlier


class IndexedLine(NamedTuple):
    """A line of results.jsonl: its start and end in bytes, its key ("" if not reusable)."""

    place: tuple[int, int]
    key: str
    outcome: StoredOutcome


class RunIndex(NamedTuple):
    """The index of one run. `stamp` is its version and the state of results.jsonl it belongs to.

    `damaged` has one line of text for each line that cannot be read.
    """

    stamp: tuple[int, int, int, int, int]
    lines: tuple[IndexedLine, ...]
    damaged: tuple[str, ...]


def index_of(path: Path) -> RunIndex:
    """Return the index of a results file, empty if there is none. Raises StoreError."""
    try:
        status = path.stat()
    except OSError:
        return RunIndex((VERSION, 0, 0, 0, 0), (), ())
    # `cp` onto a file keeps its inode and may keep its size, but nothing can keep its ctime.
    times = (status.st_mtime_ns, status.st_ctime_ns)
    stamp = (VERSION, status.st_ino, status.st_size, *times)
    cache = path.with_name(FILE)
    with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
        index = msgspec.msgpack.decode(cache.read_bytes(), type=RunIndex)
        if index.stamp == stamp:
            return index
    index = RunIndex(stamp, *_indexed(path))
    if time.time_ns() - status.st_ctime_ns > SETTLED_NANOSECONDS:
        with contextlib.suppress(OSError):  # a folder that is read-only or full is only slower
            replace(cache, msgspec.msgpack.encode(index))
    return index


def _indexed(path: Path) -> tuple[tuple[IndexedLine, ...], tuple[str, ...]]:
    lines: list[IndexedLine] = []
    damaged: list[str] = []
    start = 0
    data = read_if_there(path) or b""  # none: its run was deleted just now
    *complete, _ = data.split(b"\n")
    for number, line in enumerate(complete, start=1):
        try:
            result = decode(line, Result)
        except DamagedError as error:
            damaged.append(f"{path}:{number}: damaged line left out ({error})")
        except StoreError as error:  # all lines have the same version
            damaged = [f"{path}: left out, because it was {error}"]
        else:
            outcome = StoredOutcome(
                result.request.model.name,
                target_label(result.request.target),
                Earlier(path.parent.name, result.status, result.phase),
            )
            key = result.request.key if is_reusable(result) else ""
            lines.append(IndexedLine((start, start + len(line)), key, outcome))
        start += len(line) + 1
    return tuple(lines), tuple(damaged)
