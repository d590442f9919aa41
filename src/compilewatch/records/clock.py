"""The current time, in the format of the records and of the ids of runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> str:
    """Return the current time as RFC 3339 with nanoseconds, in UTC."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


def new_run_id() -> str:
    """Return `YYYYmmdd-HHMMSS-ffff` in UTC; ffff counts 1/65536 of a second, so that ids sort."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    fraction = nanoseconds * 65536 // 1_000_000_000
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(seconds))}-{fraction:04x}"


def started(run: str) -> datetime:
    """When a run started, from its id: `20260102-030405-0001`."""
    return datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
