"""Peak memory of the processes that a process starts, as they run (Linux only).

`getrusage` cannot say it: in the `ru_maxrss` of a child stands what its parent held when it was
forked, and a worker that has torch holds more than most compilers do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

SAMPLE_SECONDS = 0.05
"""The kernel keeps the peak of a process: what grows after the last look at one is all that is
missed, and processes that live for less."""


class PeakMemory:
    """`bytes` is the peak of the largest process below this one, while the context is entered.

    Of those only that were started in it. None where none was seen, or the system has no /proc.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None
        self._others: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._others = frozenset(descendants(os.getpid()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for pid in frozenset(descendants(os.getpid())) - self._others:
                self.bytes = larger(self.bytes, peak_bytes(pid))


def tree_peak_bytes(pid: int) -> int | None:
    """The peak so far of the largest among a process and what it started; None where it is gone."""
    found = peak_bytes(pid)
    for each in descendants(pid):
        found = larger(found, peak_bytes(each))
    return found


def peak_bytes(pid: int) -> int | None:
    """`VmHWM`, proc(5): the most resident memory that a process had since it was executed."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process and its own have started and that are there now."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def larger(first: int | None, second: int | None) -> int | None:
    """The larger of two measurements, either of which may be missing."""
    return max((each for each in (first, second) if each is not None), default=None)
