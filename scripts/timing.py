"""What the benchmarks share: clocks, calls in turns, and figures beside their limits."""

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Figures = dict[str, Any]
T = TypeVar("T")


def seconds_of(call: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> float:
    """What a call takes by a clock, in seconds of its time on the wall by default."""
    started = clock()
    call()
    return clock() - started


def cpu_of_children() -> float:
    """CPU seconds of the child processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def in_turns(measures: Sequence[Callable[[], T]], rounds: int) -> list[list[T]]:
    """What each returned, by measure; every second round runs them in the opposite order."""
    taken: list[list[T]] = [[] for _ in measures]
    for number in range(rounds):
        pairs = list(zip(measures, taken, strict=True))
        for measure, into in pairs if number % 2 == 0 else reversed(pairs):
            into.append(measure())
    return taken


def limited(figures: Figures, **most: float) -> Figures:
    """The figures, the most that some of them may be, and whether they are."""
    kept = all(figures[name] <= limit for name, limit in most.items())
    return {**figures, "limits": most, "within": kept and figures.get("within", True)}
