"""Traces by `torch.profiler`: the division of a call, operator statistics, files to view."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from compilewatch.extras.profiles.infer.messages import STACKS_FILE, TRACE_FILE, TracedCall
from compilewatch.extras.profiles.infer.records import OpStat
from compilewatch.extras.profiles.worker.segments import Division, Slice, divide

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
    found = sorted(marks, key=lambda e: e.start_ns())[_WARM_UP_CALLS:]
    median = sorted(found, key=lambda e: e.duration_ns())[(len(found) - 1) // 2]
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


def traced(call: Callable[[], object], calls: int, folder: Path) -> TracedCall:
    """Write a Chrome trace and the stacks of some calls, and sum up the operators.

    Stacks need `verbose`, without which torch leaves the file empty; they are taken in a second
    recording, because a slice of a recording with stacks may not nest.
    """
    call()
    with profile(activities=_activities(), profile_memory=True, acc_events=True) as plain:
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
    return TracedCall(
        operators=tuple(map(_operator, plain.key_averages())),
        files=(TRACE_FILE, STACKS_FILE),
        wall_seconds=seconds,
    )


def _activities() -> list[ProfilerActivity]:
    """The CPU, and CUDA if the model is on it: otherwise Kineto would start CUDA for nothing."""
    on_gpu = torch.cuda.is_initialized()
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]


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
