"""What compiled code costs beside eager."""

from __future__ import annotations

from compilewatch.records.base import Record


class Performance(Record, frozen=True, kw_only=True, tag="performance"):
    """Times of compiled code beside eager, in seconds, on one thread.

    Compile times are those of the first call, one run included: `cold` with empty caches, `warm`
    with the caches on disk that the cold one filled. Latencies are medians over `latency_samples`
    runs after warm-up; in train mode of forward and backward. `speedup` is eager over compiled.
    `recompiles` counts the graphs compiled anew for inputs whose batch is one larger.
    `compiler_peak_memory_bytes` is that of the largest process of the C++ compiler, None where
    the system does not tell.
    """

    cold_compile_seconds: float
    warm_compile_seconds: float | None = None
    eager_latency_seconds: float | None = None
    compiled_latency_seconds: float | None = None
    latency_samples: int | None = None
    speedup: float | None = None
    recompiles: int | None = None
    compiler_peak_memory_bytes: int | None = None
