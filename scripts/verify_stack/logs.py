"""Whether Loki returns late lines at once, and large answers at all."""

from __future__ import annotations

import json
import time

import requests

from scripts.verify_stack.report import CheckError
from scripts.verify_stack.services import Stack

HOUR = 3600 * 10**9
AGES_HOURS = (1, 3, 30, 100, 9 * 24)
"""Ages of lines: some are older than what Loki searches in its memory by default."""
LINES, LINE_BYTES, BATCH = 5_000, 1_100, 500
"""More than 4 MB, the default limit of a message between the parts of Loki."""
ANSWER_SECONDS = 20.0
"""It takes a second; an answer that is too large hangs for a minute."""


def late_lines_are_returned(stack: Stack) -> str:
    """Lines of up to nine days ago, without waiting for Loki to write them."""
    now, mark = time.time_ns(), str(time.time_ns())
    for age in AGES_HOURS:
        labels = {"service_name": "verify", "mark": mark, "hour": str(age)}
        _push(stack, labels, [(now - age * HOUR, f"{age} hours old")])
    found = _query(stack, mark, now - 10 * 24 * HOUR)
    if missing := {f"{age} hours old" for age in AGES_HOURS} - {line for line, _ in found}:
        raise CheckError(f"accepted and not returned: {', '.join(sorted(missing))}")
    return f"{len(found)} lines of up to {max(AGES_HOURS) // 24} days ago"


def a_large_answer_arrives(stack: Stack) -> str:
    now, mark = time.time_ns(), str(time.time_ns())
    for start in range(0, LINES, BATCH):
        lines = [
            (now - number * 1000, f"{number} ".ljust(LINE_BYTES, "x"))
            for number in range(start, start + BATCH)
        ]
        # A stream may grow by 3 MB in a second, and all together by 4 MB.
        _push(stack, {"service_name": "verify", "mark": mark, "part": str(start)}, lines)
        time.sleep(0.3)
    began = time.monotonic()
    found = _query(stack, mark, now - HOUR)
    seconds = time.monotonic() - began
    size = sum(len(line) for line, _ in found)
    if len(found) != LINES or seconds > ANSWER_SECONDS:
        raise CheckError(f"{len(found)} of {LINES} lines in {seconds:.1f} s")
    return f"{len(found)} lines, {size / 1e6:.1f} MB in {seconds:.1f} s"


def _push(stack: Stack, labels: dict[str, str], lines: list[tuple[int, str]]) -> None:
    values = [[str(at), line] for at, line in lines]
    answer = requests.post(
        stack.url("loki") + "/loki/api/v1/push",
        data=json.dumps({"streams": [{"stream": labels, "values": values}]}),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    if not answer.ok:
        raise CheckError(f"Loki answers {answer.status_code}: {answer.text[:200].strip()}")


def _query(stack: Stack, mark: str, start: int) -> list[tuple[str, str]]:
    answer = stack.get(
        "loki",
        "/loki/api/v1/query_range",
        query=f'{{service_name="verify", mark="{mark}"}}',
        limit=str(LINES),
        start=str(start),
        end=str(time.time_ns() + 60 * 10**9),
    ).json()
    return [(line, at) for one in answer["data"]["result"] for at, line in one["values"]]
