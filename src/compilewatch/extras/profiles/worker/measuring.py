"""What a subject measures: times, memory, a CUDA device under it, traces, and what breaks cost.

On a CUDA device, kernels run after the call that starts them has returned, so a call is over when
the device has finished. Utilisation is NVML's, by `torch.cuda.utilization`, which needs the package
nvidia-ml-py.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from compilewatch.contract.processes import field_bytes
from compilewatch.errors import UsageError
from compilewatch.extras.profiles.messages import STACKS_FILE, TRACE_FILE, Round
from compilewatch.extras.profiles.records import (
    BreakCost,
    Memory,
    OperatorStat,
    Segments,
    operator_stats,
)
from compilewatch.records import GraphBreak

_RESET_PEAK = "5"
"""Written to `clear_refs`, it sets VmHWM to the current resident set (proc(5))."""


def measure(call: Callable[[], object], runs: int, seconds: float) -> Round:
    """Time up to `runs` calls, fewer if `seconds` are over; wall time and CPU time of all threads.

    Like `timeit`, it keeps the garbage collector out of the measured calls.
    """
    wall: list[float] = []
    cpu: list[float] = []
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while len(wall) < runs:
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            call()
            wall_after, cpu_after = time.perf_counter(), time.process_time()
            wall.append(wall_after - wall_before)
            cpu.append(cpu_after - cpu_before)
            if wall_after > end:
                break
    finally:
        if was_enabled:
            gc.enable()
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
    if peak is None or before is None:
        return Memory()
    return Memory(rss_peak_bytes=peak, call_peak_bytes=max(0, peak - before))


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


def used(call: Callable[[], object], host: Memory) -> tuple[Memory, float | None, str]:
    """Return the memory that one call takes on the device, and how busy calls keep it.

    `call` must end when the device has finished; `host` is what it takes on the host. The share is
    None where a sentence says why it is not known.
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
        return memory, None, "the utilisation of the GPU needs the package nvidia-ml-py"
    except Exception as error:  # noqa: BLE001  (NVML's errors, which only that package defines)
        return memory, None, f"NVML: {type(error).__name__}: {error}"
    return msgspec.structs.replace(memory, device_used_bytes=in_use), fmean(shares) / 100, ""


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
    marks = (event for event in events if event.name() == CALL)
    measured = sorted(marks, key=lambda e: e.start_ns())[_WARM_UP_CALLS:]
    median = sorted(measured, key=lambda e: e.duration_ns())[(len(measured) - 1) // 2]
    own_thread = (e for e in events if e.start_thread_id() == median.start_thread_id())
    return divide(_slice(median), [_slice(e) for e in own_thread if e.name() != CALL])


def traced(call: Callable[[], object], calls: int, folder: Path) -> tuple[OperatorStat, ...]:
    """Write a Chrome trace and the stacks of some calls; return their operators.

    Stacks need `verbose`, without which torch leaves the file empty; they are taken in a second
    recording, because a slice of a recording with stacks may not nest.
    """
    call()
    # Without a model on it, Kineto would start CUDA for nothing.
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []
    activities = [ProfilerActivity.CPU, *gpu]
    with profile(activities=activities, profile_memory=True, acc_events=True) as plain:
        for _ in range(calls):
            with record_function(CALL):
                call()
    plain.export_chrome_trace(str(folder / TRACE_FILE))
    verbose = _ExperimentalConfig(verbose=True)
    with profile(
        activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=verbose
    ) as stacks:
        call()
    stacks.export_stacks(str(folder / STACKS_FILE), "self_cpu_time_total")
    return operator_stats(plain.key_averages())


def _slice(event: Any) -> Slice:
    """A slice of a trace. An annotation that is named like an operator is Python."""
    name, kind = event.name(), str(getattr(event, "activity_type", lambda: "")())
    if "annotation" in kind and not _MARKS.match(name):
        name = ""
    return Slice(event.start_ns(), event.duration_ns(), name)


# --- what a call spends where ---------------------------------------------------------------------
#
# Torch marks in its traces where compiled code runs: `TorchDynamo Cache Lookup` (the guards of a
# frame), `Torch-Compiled Region: F/C` (the compiled code of a frame, by its compile id) and
# `## Call CompiledFxGraph … ##` (a graph). Regions are nested, because the function that resumes
# after a graph break runs inside the one before it. So each slice counts with its exclusive time,
# and what is exclusive to a region is the Python code between its graphs: there a graph break costs
# its time.

GUARD = "guard"
GRAPH = "graph"
EAGER = "eager"
PYTHON = "python"

NO_FRAME = ""
"""Stands for a compile id where no compiled frame runs."""

_GUARDS = "TorchDynamo Cache Lookup"
_GRAPH = "## Call CompiledFxGraph"
_REGION = re.compile(r"Torch-Compiled Region: (?P<id>\S+)")
_MARKS = re.compile(f"{_GUARDS}|{_GRAPH}|{_REGION.pattern}")


class Slice(NamedTuple):
    """One event of a trace, in nanoseconds."""

    start: int
    duration: int
    name: str


@dataclass
class Division:
    """The exclusive nanoseconds of a call by compile id and kind; they sum to `total`."""

    total: int
    nanoseconds: Counter[tuple[str, str]] = field(default_factory=Counter)

    def segments(self, calls: int) -> Segments:
        """Where the call spends its time, by kind; it is one of `calls` traced calls."""
        of_kind = {
            f"{kind}_seconds": sum(n for (_, of), n in self.nanoseconds.items() if of == kind) / 1e9
            for kind in (GRAPH, GUARD, EAGER, PYTHON)
        }
        return Segments(calls=calls, call_seconds=self.total / 1e9, **of_kind)

    def costs(self, breaks: Sequence[GraphBreak], ends: Mapping[str, int]) -> tuple[BreakCost, ...]:
        """The cost of each graph break, the most expensive first.

        `ends` is the index of the break at which the code of a compile id ends. A break costs what
        its frame does outside of graphs: looking up the frame that resumes, Python code and
        operators in between. The last frame of a call has no break, and costs nobody anything that
        compiling without breaks would not.
        """
        costs: list[BreakCost] = []
        for index, graph_break in enumerate(breaks):
            owners = [owner for owner, end in ends.items() if end == index]
            guard, python, eager = (
                sum(self.nanoseconds[owner, kind] for owner in owners)
                for kind in (GUARD, PYTHON, EAGER)
            )
            costs.append(
                BreakCost(
                    **msgspec.structs.asdict(graph_break),
                    compile_ids=tuple(owner for owner in owners if owner != NO_FRAME),
                    guard_seconds=guard / 1e9,
                    python_seconds=python / 1e9,
                    eager_seconds=eager / 1e9,
                    share=(guard + python + eager) / self.total,
                )
            )
        return tuple(sorted(costs, key=lambda cost: -cost.seconds))


def divide(call: Slice, slices: Iterable[Slice]) -> Division:
    """Divide a call among the slices of its thread; those that begin outside of it do not count.

    Every nanosecond of the call counts exactly once: for the innermost slice that covers it.
    """
    division = Division(total=call.duration)
    # The end, the owner and the kind of each open slice.
    stack = [(call.start + call.duration, NO_FRAME, PYTHON)]
    at = call.start

    def advance(to: int) -> None:
        """Count the time up to a moment for the innermost open slice."""
        nonlocal at
        _, owner, kind = stack[-1]
        division.nanoseconds[owner, kind] += to - at
        at = to

    for slice_ in sorted(slices, key=lambda s: (s.start, -s.duration)):
        if slice_.start < call.start:
            continue
        while len(stack) > 1 and slice_.start >= stack[-1][0]:
            advance(stack[-1][0])
            stack.pop()
        end, owner, kind = stack[-1]
        if slice_.start <= end:
            advance(slice_.start)
            # A slice that does not nest (torch rounds) is cut at the end of the slice around it.
            inside = min(slice_.start + slice_.duration, end)
            stack.append((inside, *_belongs(slice_, owner, kind)))
    while stack:
        advance(stack[-1][0])
        stack.pop()
    return division


def _belongs(part: Slice, owner: str, kind: str) -> tuple[str, str]:
    """Return the compile id and the kind of a slice inside of one with these."""
    if kind in (GRAPH, GUARD, EAGER):
        return owner, kind
    if (region := _REGION.match(part.name)) is not None:
        return region["id"], PYTHON
    if part.name.startswith(_GUARDS):
        return owner, GUARD
    if part.name.startswith(_GRAPH):
        return owner, GRAPH
    if "::" in part.name:
        return owner, EAGER
    return owner, PYTHON  # the runtime wrapper of a graph, annotations of the model
