"""Processes that are killed, for real, at a moment that a test chooses."""

import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("write", "fdatasync", "rename", "replace", "mkdir", "symlink", "unlink")


def die_at(number: int) -> None:
    """Kill this process at its n-th change to the disk; a write is then half done."""
    left = number

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if name == "write":
                    real(given[0], given[1][: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        return call

    for name in CALLS:
        setattr(os, name, deadly(name))


def in_child(action: Callable[[], object]) -> int:
    """Fork, act, and return the wait status. No exit handlers: pytest's must not run twice."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]
