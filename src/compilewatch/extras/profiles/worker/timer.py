"""Times of calls, and the peak memory of one call, with nothing but the standard library."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from compilewatch.contract.processes import field_bytes
from compilewatch.extras.profiles.infer.messages import Measured
from compilewatch.extras.profiles.infer.records import Memory

_RESET_PEAK = "5"
"""Written to `clear_refs`, it sets VmHWM to the current resident set (proc(5))."""


def measure(call: Callable[[], object], runs: int, seconds: float) -> Measured:
    """Time up to `runs` calls, fewer if `seconds` are over; wall time and CPU time of all threads.

    Like `timeit`, it keeps the garbage collector out of the measured calls.
    """
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + seconds
    with _no_collection():
        while len(wall) < runs:
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            call()
            wall_after, cpu_after = time.perf_counter(), time.process_time()
            wall.append(wall_after - wall_before)
            cpu.append(cpu_after - cpu_before)
            if wall_after > end:
                break
    return Measured(wall_seconds=tuple(wall), cpu_seconds=tuple(cpu))


def peak_memory(call: Callable[[], object]) -> Memory:
    """Return the peak memory of one call: every field is None on a system without /proc.

    Memory that earlier calls freed and malloc kept is returned to the system before, so that each
    call has a peak of its own.
    """
    gc.collect()
    _trim()
    before = field_bytes("self", "status", "VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return Memory()
    call()
    peak = field_bytes("self", "status", "VmHWM")
    pss = field_bytes("self", "smaps_rollup", "Pss")
    if peak is None or before is None:
        return Memory()
    return Memory(rss_peak_bytes=peak, call_peak_bytes=max(0, peak - before), pss_bytes=pss)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _trim() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)
