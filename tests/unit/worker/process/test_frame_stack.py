import resource
import sys

import pytest

from compilewatch.worker.process.child import with_large_frame


def descend(depth: int) -> int:
    return depth if depth == 0 else descend(depth - 1)


def faults_of_recursion() -> int:
    """Page faults of going down to the same depth, again and again, from wherever this is."""
    descend(900)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        descend(900)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_deep_calls_need_no_new_memory_each_time() -> None:
    assert faults_of_recursion() > 2000  # else there is nothing to mend
    assert with_large_frame(faults_of_recursion) < 100
    with pytest.raises(RecursionError):  # the limit stays
        with_large_frame(lambda: descend(2 * sys.getrecursionlimit()))
