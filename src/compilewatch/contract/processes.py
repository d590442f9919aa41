"""Peak memory of the processes that a process starts, measured while they run (Linux only).

`getrusage` cannot measure it: the `ru_maxrss` of a child includes the memory that its parent had
when it forked, and a worker with torch uses more memory than most compilers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

SAMPLE_SECONDS = 0.05
"""The kernel records the peak of each process, so only growth after the last sample and processes
that live shorter than this are missed."""


class PeakMemory:
    """Measures the peak memory of processes that are started while the context is entered.

    `bytes` is the peak of the largest one below this process; None if there was none, or if the
    system has no /proc.
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
    """Return the largest peak so far of a process and its descendants; None if it has ended."""
    found = peak_bytes(pid)
    for each in descendants(pid):
        found = larger(found, peak_bytes(each))
    return found


def peak_bytes(pid: int) -> int | None:
    """Return `VmHWM`, proc(5): the peak resident memory of a process since its exec."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def resident_bytes() -> int | None:
    """Return the resident memory of this process now: statm, proc(5)."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process and its descendants started and that still run."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def larger(first: int | None, second: int | None) -> int | None:
    """Return the larger of two measurements, either of which may be missing."""
    return max((each for each in (first, second) if each is not None), default=None)
