"""Reserve memory for Python frames, so that deep recursion does not map memory again and again.

CPython keeps the frames of a thread in chunks of 16 KiB that it maps when a call needs one and
unmaps when that call returns (`push_chunk` in Python/pystate.c, 3.11 and newer). Tracing compilers
recurse deeply and return often, so that one capture of a small model mapped and unmapped 25,000
chunks: with the page faults, this was a tenth of its time. A chunk is never smaller than the frame
it was mapped for, and the calls inside that frame use the rest of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

SLOTS = 2**20 + 2**16
"""Words in the frame of `with_large_frame`: 8.5 MiB. Its chunk has 16 MiB, which leaves 7 MiB.

Only the pages that are used occupy memory.
"""

_Result = TypeVar("_Result")


def with_large_frame(function: Callable[[], _Result]) -> _Result:
    """Call a function, with memory for all frames below it reserved in one chunk."""
    return function()


with_large_frame.__code__ = with_large_frame.__code__.replace(co_stacksize=SLOTS)
