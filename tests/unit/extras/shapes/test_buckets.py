"""Buckets against all choices of sizes."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.extras.shapes.tracing import (
    MOST_BUCKETS,
    buckets_of,
    frequencies,
    served_by_trace,
    served_by_values,
)


@given(st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=10))
def test_no_other_choice_of_so_many_sizes_pads_less(counts: dict[int, int]) -> None:
    frequency = dict(sorted(counts.items()))
    *others, largest = frequency
    needed = sum(size * count for size, count in frequency.items())

    def bucket(size: int, sizes: tuple[int, ...]) -> int:
        return min(other for other in sizes if other >= size)

    def computed(sizes: tuple[int, ...]) -> int:
        return sum(bucket(size, sizes) * count for size, count in frequency.items())

    best = buckets_of(frequency)
    assert len(best) == min(len(frequency), MOST_BUCKETS)
    for number, buckets in enumerate(best, start=1):
        choices = [(*some, largest) for some in combinations(others, number - 1)]
        least = min(map(computed, choices))
        assert buckets.sizes in choices
        assert computed(buckets.sizes) == least
        assert buckets.padding == pytest.approx(1 - needed / least)
        shares = [1 - size / bucket(size, buckets.sizes) for size in frequency]
        assert buckets.worst == pytest.approx(max(shares))


def test_a_trace_counts_its_calls_and_a_range_each_size_once() -> None:
    trace = '{"batch": 8, "x.0": 3}\n{"batch": 1, "x.0": 3}\n{"batch": 8, "x.0": 2}\n'
    assert frequencies(served_by_trace(trace, "FILE")) == {
        "batch": {1: 1, 8: 2},
        "x.0": {2: 1, 3: 2},
    }
    assert frequencies(served_by_values(["batch=1..3", "x.0=5,4"])) == {
        "batch": {1: 1, 2: 1, 3: 1},
        "x.0": {4: 1, 5: 1},
    }
