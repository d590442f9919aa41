"""Profiles of a training loop, for use in the training process itself.

    from compilewatch.profiling import Profiler

    with Profiler("outputs/profiles") as profiler:
        for batch in profiler.data(loader):
            with profiler.stage("forward"):
                output = model(batch)
            ...
            profiler.step(loss=loss, samples=len(batch))

This package runs in its caller's process, which is neither the parent nor a worker of compilewatch.
It never imports torch by itself: it uses the torch that the caller has imported.
"""

from compilewatch.profiling.profiler import Profiler
from compilewatch.records.training import Stage

__all__ = ["Profiler", "Stage"]
