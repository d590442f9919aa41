"""Numbers in what a training script prints: `METRICS: {json}` lines, and lines of epochs.

What is read is a claim of the code that ran: it is parsed as untrusted data, within limits.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from compilewatch.records import Record

MAX_POINTS = 1_000
MAX_NAMES = 50
MAX_LINE = 4_000

_EPOCH = re.compile(r"Epoch\s+(\d+)/\d+.*?Loss:\s*([\d.]+(?:[eE][+-]?\d+)?)")
_ACCURACY = re.compile(r"(Test|Training|Validation)\s+Accuracy:\s*([\d.]+)%")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class Point(Record, frozen=True, kw_only=True):
    """The numbers of one line; `step` is its step or epoch, if it has one."""

    step: int | None
    values: dict[str, float]


def points_of(stdout: str) -> tuple[Point, ...]:
    """The points of `METRICS:` lines; where there are none, those of epoch lines."""
    found: list[Point] = []
    epochs: list[Point] = []
    for line in stdout.splitlines():
        if len(line) > MAX_LINE or len(found) >= MAX_POINTS or len(epochs) >= MAX_POINTS:
            continue
        _, marker, text = line.partition("METRICS:")
        if marker:
            if (point := _point(text)) is not None:
                found.append(point)
        elif match := _EPOCH.search(line):
            values = {"training_loss": _number(match[2])}
            epochs.append(Point(step=int(match[1]), values=_finite(values)))
        elif match := _ACCURACY.search(line):
            name = f"{match[1].lower()}_accuracy"
            epochs.append(Point(step=None, values=_finite({name: _number(match[2])})))
    return tuple(point for point in found or epochs if point.values)


def last_values(points: tuple[Point, ...]) -> dict[str, float]:
    """The last value of each name, and the first and last loss."""
    values: dict[str, float] = {}
    losses = [p.values["training_loss"] for p in points if "training_loss" in p.values]
    for point in points:
        for name, value in point.values.items():
            if name in values or len(values) < MAX_NAMES:
                values[name] = value
    if losses:
        values |= {"initial_training_loss": losses[0], "final_training_loss": losses[-1]}
    return values


def _point(text: str) -> Point | None:
    try:
        decoded: Any = msgspec.json.decode(text.strip())
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    step = decoded.get("step", decoded.get("epoch"))
    numbers = {
        name: float(value)
        for name, value in decoded.items()
        if name not in ("step", "epoch")
        and _NAME.fullmatch(name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
    whole = step if isinstance(step, int) and not isinstance(step, bool) else None
    return Point(step=whole, values=_finite(numbers))


def _finite(values: dict[str, float]) -> dict[str, float]:
    """A value that is not a number is left out, and no other with it."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
