"""Profiles of a training loop, for use in the training process itself.

    from compilewatch.profiling import Profiler

    with Profiler("outputs/profiles") as profiler:
        for batch in profiler.data(loader):
            with profiler.stage("forward"):
                output = model(batch)
            ...
            profiler.step(loss=loss, samples=len(batch))

This module is the public name of the profiler of the extra profiles. It runs in its caller's
process, which is neither the parent nor a worker of compilewatch, and never imports torch by
itself: it uses the torch that the caller has imported.
"""

from compilewatch.extras.profiles.profiler import Profiler
from compilewatch.extras.profiles.training import Stage

__all__ = ["Profiler", "Stage"]
