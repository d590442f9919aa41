"""The time of a step, divided into exclusive stages."""

from __future__ import annotations

import time

from compilewatch.extras.profiles.train.records import Stage


class StageClock:
    """Adds up the seconds of each stage of the current step.

    Stages may be nested: the time of the inner one does not count for the outer one, so that the
    stages of a step add up to the step. A stage that is open when a step ends continues in the next
    one, with the rest of its time.
    """

    def __init__(self) -> None:
        self._open: list[Stage] = []
        self._seconds: dict[Stage, float] = {}
        self._since = self._began = time.perf_counter()

    def _charge(self, now: float) -> None:
        """Count the time since the last change for the innermost open stage."""
        stage = self._open[-1] if self._open else Stage.OTHER
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def enter(self, stage: Stage) -> None:
        self._charge(time.perf_counter())
        self._open.append(stage)

    def leave(self, stage: Stage) -> None:
        self._charge(time.perf_counter())
        if stage in self._open:
            # Stages that generators left open end with the one around them.
            del self._open[len(self._open) - 1 - self._open[::-1].index(stage) :]

    def end_step(self) -> tuple[float, dict[Stage, float]]:
        """Return the seconds of the step that ends now and those of its stages."""
        now = time.perf_counter()
        self._charge(now)
        wall, seconds = now - self._began, self._seconds
        return wall, {stage: seconds[stage] for stage in Stage if stage in seconds}

    def begin_step(self) -> None:
        """Begin the next step; the time since `end_step` belongs to no step."""
        self._seconds = {}
        self._since = self._began = time.perf_counter()
