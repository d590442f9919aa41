"""The cost of compiled code compared with eager mode."""

from __future__ import annotations

from compilewatch.records.base import Record


class Performance(Record, frozen=True, kw_only=True, tag="performance"):
    """Times of compiled code and of eager mode, in seconds, on one thread.

    Compile times are those of the first call, including one run: `cold` with empty caches, `warm`
    with the on-disk caches that the cold compile filled. Latencies are medians over
    `latency_samples` runs after warm-up; in train mode, of forward and backward. `speedup` is eager
    latency divided by compiled latency. `recompiles` counts the graphs that were recompiled for
    inputs whose batch is larger by one. `compiler_peak_memory_bytes` is the peak memory of the
    largest process of the C++ compiler, None if the system does not report it.
    """

    cold_compile_seconds: float
    warm_compile_seconds: float | None = None
    eager_latency_seconds: float | None = None
    compiled_latency_seconds: float | None = None
    latency_samples: int | None = None
    speedup: float | None = None
    recompiles: int | None = None
    compiler_peak_memory_bytes: int | None = None
