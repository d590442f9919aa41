"""Buckets: a few sizes to which calls are padded, for compilers that take one shape a graph."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

from compilewatch.extras.shapes.records import Buckets
from compilewatch.extras.shapes.tracing import Served

MOST_BUCKETS = 8


def frequencies(served: Served) -> dict[str, dict[int, int]]:
    """Return how often each size of each dimension is served, in ascending order.

    Without calls, all sizes are served equally often.
    """
    counts = {
        name: Counter(call[name] for call in served.calls)
        or Counter(range(sizes[0], sizes[1] + 1) if is_range else sizes)
        for name, (is_range, sizes) in served.domains.items()
    }
    return {name: dict(sorted(sizes.items())) for name, sizes in counts.items()}


def buckets_of(frequency: Mapping[int, int]) -> tuple[Buckets, ...]:
    """Return the best one bucket, two, and so on, up to `MOST_BUCKETS`: they compute the least.

    `frequency` is how often each size is served, in ascending order. It is exact: the last bucket
    is the largest size, and what is below it is a smaller problem. That end never moves down where
    sizes are added, so that it is searched by halves.
    """
    sizes, counts = list(frequency), [0, *accumulate(frequency.values())]
    served = sum(size * count for size, count in frequency.items())
    cost: list[float] = [0, *(math.inf for _ in sizes)]  # of the first sizes, computed at least
    chosen: list[tuple[int, ...]] = [() for _ in counts]
    results: list[Buckets] = []
    for number in range(1, min(MOST_BUCKETS, len(sizes)) + 1):
        below, buckets = cost, chosen
        cost, chosen = [math.inf] * len(counts), [()] * len(counts)
        spans = [(number, len(sizes), number - 1, len(sizes) - 1)]
        while spans:  # the number of sizes, and of those below the last bucket: from, to
            low, high, least, most = spans.pop()
            middle = (low + high) // 2
            cost[middle], end = min(
                (below[end] + sizes[middle - 1] * (counts[middle] - counts[end]), end)
                for end in range(least, min(most, middle - 1) + 1)
            )
            chosen[middle] = (*buckets[end], sizes[middle - 1])
            sides = ((low, middle - 1, least, end), (middle + 1, high, end, most))
            spans += [span for span in sides if span[0] <= span[1]]
        best = chosen[-1]
        worst = max((1 - size / best[bisect_left(best, size)] for size in sizes if size), default=0)
        padding = 1 - served / max(cost[-1], 1)
        results.append(Buckets(sizes=best, padding=padding, worst=worst))
    return tuple(results)
