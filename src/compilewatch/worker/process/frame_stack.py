"""Room for Python frames, so that deep recursion does not ask the kernel for memory at each turn.

CPython keeps the frames of a thread in chunks of 16 KiB that it maps when a call needs one and
unmaps when that call returns (`push_chunk` in Python/pystate.c, 3.11 and newer). Tracing compilers
recurse deeply and return often, so that one capture of a small model mapped and unmapped 25,000
chunks: with the page faults, a tenth of its time. A chunk is never smaller than the frame it was
mapped for, and the calls inside of that frame use what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

SLOTS = 2**20 + 2**16
"""Words in the frame of `with_frame_space`: 8.5 MiB, so a chunk of 16 MiB with 7 left for others.

Only what is used of it becomes memory.
"""

_Result = TypeVar("_Result")


def with_frame_space(function: Callable[[], _Result]) -> _Result:
    """Call a function with room for all the frames below it."""
    return function()


with_frame_space.__code__ = with_frame_space.__code__.replace(co_stacksize=SLOTS)
