"""The retry policy: exponential waits within limits; `Retry-After` of a server has precedence."""

import time
from collections.abc import Callable

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_any,
    stop_before_delay,
)

LONGEST_WAIT_SECONDS = 10.0


class TransientError(Exception):
    """One attempt failed, but the next may succeed.

    `wait_seconds` is the wait that the server requested (`Retry-After`), or None.
    """

    def __init__(self, message: str, wait_seconds: float | None = None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


def retrying(
    transient: type[BaseException] = TransientError,
    *,
    attempts: int | None = None,
    seconds: float | None = None,
    first_wait_seconds: float = 0.5,
    longest_wait_seconds: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Retrying:
    """Return a callable that repeats a call while it raises `transient`; the last error is raised.

    Args:
        attempts: maximum number of calls; None: no limit.
        seconds: total time; no wait starts that would end later. None: no limit.
        first_wait_seconds: the first wait; each further one is twice as long.
        longest_wait_seconds: upper limit of every wait; None: `LONGEST_WAIT_SECONDS`.
        sleep: waits; may return early.
    """

    longest = LONGEST_WAIT_SECONDS if longest_wait_seconds is None else longest_wait_seconds

    def wait(state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        wished: float | None = getattr(failure, "wait_seconds", None)
        doubled = first_wait_seconds * 2.0 ** min(state.attempt_number - 1, 30)
        return min(doubled if wished is None else wished, longest)

    limits = [
        *([stop_after_attempt(attempts)] if attempts is not None else []),
        *([stop_before_delay(seconds)] if seconds is not None else []),
    ]
    return Retrying(
        retry=retry_if_exception_type(transient),
        stop=stop_any(*limits),
        wait=wait,
        sleep=sleep,
        reraise=True,
    )
