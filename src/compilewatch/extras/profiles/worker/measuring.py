"""What a subject measures: times, memory, a CUDA device under it, and traces.

On a CUDA device, kernels run after the call that starts them has returned, so a call is over when
the device has finished. Utilisation is NVML's, by `torch.cuda.utilization`, which needs the package
nvidia-ml-py.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from compilewatch.contract.processes import field_bytes
from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import STACKS_FILE, TRACE_FILE, MemoryUse, Round
from compilewatch.extras.profiles.infer.records import Memory, OpStat
from compilewatch.extras.profiles.worker.segments import Division, Slice, divide

_RESET_PEAK = "5"
"""Written to `clear_refs`, it sets VmHWM to the current resident set (proc(5))."""


def measure(call: Callable[[], object], runs: int, seconds: float) -> Round:
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
    return Round(wall_seconds=tuple(wall), cpu_seconds=tuple(cpu))


def peak_memory(call: Callable[[], object]) -> Memory:
    """Return the peak memory of one call: every field is None on a system without /proc.

    Memory that earlier calls freed and malloc kept is returned to the system before, so that each
    call has a peak of its own.
    """
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)
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


# --- a CUDA device ------------------------------------------------------------------------------

CUDA = "cuda"

SAMPLE_SECONDS = 1.0
"""NVML reports the share of its newest sample period, which is up to a second long."""

WATCHED_SECONDS = 3.0


def device_of(name: str) -> torch.device:
    """Return the device of a profile. Raises UsageError if there is no such device here."""
    if name != CUDA:
        return torch.device(name)
    if torch.version.cuda is None:
        raise UsageError(
            f"torch {torch.__version__} is no CUDA build: compilewatch env create cuda"
        )
    if not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device: leave out --device cuda")
    return torch.device(CUDA, 0)


def finished(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that ends when the work that it gave to the device has ended."""

    def wait() -> object:
        result = call()
        torch.cuda.synchronize()
        return result

    return wait


def used(call: Callable[[], object], host: Memory) -> MemoryUse:
    """Return the memory that one call takes on the device, and how busy calls keep it.

    `call` must end when the device has finished; `host` is what it takes on the host.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = int(torch.cuda.memory_allocated())
    call()
    peak = int(torch.cuda.max_memory_allocated())
    memory = msgspec.structs.replace(host, call_peak_bytes=peak - before, device_peak_bytes=peak)
    try:
        shares, in_use = _watched(call)
    except ImportError:
        note = "the utilisation of the GPU needs the package nvidia-ml-py"
        return MemoryUse(memory=memory, device_note=note)
    except Exception as error:  # noqa: BLE001  (NVML's errors, which only that package defines)
        return MemoryUse(memory=memory, device_note=f"NVML: {type(error).__name__}: {error}")
    return MemoryUse(
        memory=msgspec.structs.replace(memory, device_used_bytes=in_use),
        device_utilization=fmean(shares) / 100,
    )


def _watched(call: Callable[[], object]) -> tuple[list[int], int]:
    """Call for some seconds, and return NVML's shares in per cent and the memory in use.

    The first sample period is left out, because a part of it was before the first call.
    """
    torch.cuda.utilization()  # raises now if NVML is missing, not after three seconds
    began = time.perf_counter()
    shares: list[int] = []
    while (now := time.perf_counter() - began) < WATCHED_SECONDS or not shares:
        call()
        if now > SAMPLE_SECONDS:
            shares.append(int(torch.cuda.utilization()))
    return shares, int(torch.cuda.device_memory_used())


# --- traces -------------------------------------------------------------------------------------

CALL = "compilewatch::call"
"""The annotation around each traced call."""

_WARM_UP_CALLS = 1
"""The first call under a profiler also pays for its buffers."""


def divided(call: Callable[[], object], calls: int) -> Division:
    """Trace some calls and divide the one of median duration."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(_WARM_UP_CALLS + calls):
            with record_function(CALL):
                call()
    events = profiler.profiler.kineto_results.events()
    marks = [event for event in events if event.name() == CALL]
    measured = sorted(marks, key=lambda e: e.start_ns())[_WARM_UP_CALLS:]
    median = sorted(measured, key=lambda e: e.duration_ns())[(len(measured) - 1) // 2]
    whole = _slice(median)
    end = whole.start + whole.duration
    thread = median.start_thread_id()
    inside = [
        _slice(event)
        for event in events
        if event.start_thread_id() == thread
        and whole.start <= event.start_ns() < end
        and event.name() != CALL
    ]
    return divide(whole, inside)


def traced(
    call: Callable[[], object], calls: int, folder: Path
) -> tuple[tuple[OpStat, ...], float]:
    """Write a Chrome trace and the stacks of some calls; return operators and wall seconds.

    Stacks need `verbose`, without which torch leaves the file empty; they are taken in a second
    recording, because a slice of a recording with stacks may not nest.
    """
    call()
    # Without a model on it, Kineto would start CUDA for nothing.
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []
    activities = [ProfilerActivity.CPU, *gpu]
    with profile(activities=activities, profile_memory=True, acc_events=True) as plain:
        began = time.perf_counter()
        for _ in range(calls):
            with record_function(CALL):
                call()
        seconds = time.perf_counter() - began
    plain.export_chrome_trace(str(folder / TRACE_FILE))
    verbose = _ExperimentalConfig(verbose=True)
    with profile(
        activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=verbose
    ) as stacks:
        call()
    stacks.export_stacks(str(folder / STACKS_FILE), "self_cpu_time_total")
    return tuple(map(_operator, plain.key_averages())), seconds


def _operator(event: Any) -> OpStat:
    """Torch's own sums, in microseconds and bytes."""
    return OpStat(
        name=event.key,
        calls=event.count,
        self_cpu_seconds=event.self_cpu_time_total / 1e6,
        total_cpu_seconds=event.cpu_time_total / 1e6,
        self_memory_bytes=int(event.self_cpu_memory_usage),
        flops=int(event.flops) or None,
        self_device_seconds=event.self_device_time_total / 1e6 or None,
    )


def _slice(event: Any) -> Slice:
    annotation = "annotation" in str(getattr(event, "activity_type", lambda: "")())
    return Slice(event.start_ns(), event.duration_ns(), event.name(), is_operator=not annotation)
