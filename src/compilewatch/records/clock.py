"""The current time, in the format of the records."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> str:
    """Return the current time as RFC 3339 with nanoseconds, in UTC."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


def started(run: str) -> datetime:
    """When a run started, from its id: `20260102-030405-0001`."""
    return datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
