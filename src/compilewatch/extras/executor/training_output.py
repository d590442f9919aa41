"""The numbers that training code prints, read as untrusted text.

`METRICS: {"step": 3, "training_loss": 0.5}` lines are read first; where there is none, lines such
as `Epoch 1/5 ... Loss: 0.5` and `Test Accuracy: 91.2%`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from compilewatch.extras.executor.protocol import MetricPoint

MOST_POINTS = 2_000
MOST_NAMES = 50
MOST_LINE_BYTES = 8192
MOST_STEP = 2**53

_PREFIX = "METRICS:"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_EPOCH = re.compile(r"\bEpoch\s{1,4}\[?([0-9]{1,9})/[0-9]{1,9}")
_LOSS = re.compile(rf"\bLoss:\s{{0,4}}{_NUMBER}")
_ACCURACY = re.compile(rf"\b(Test|Training|Validation)\s{{1,4}}Accuracy:\s{{0,4}}{_NUMBER}\s?%")


def read_points(stdout: bytes) -> tuple[tuple[MetricPoint, ...], int]:
    """The points of an output, and how many lines or values were left out.

    A value that is not a finite number loses itself only; a line that is no object loses itself.
    """
    lines = [line for line in stdout.split(b"\n") if line]
    marked = [line for line in lines if line.lstrip().startswith(_PREFIX.encode())]
    parsed = list(_marked(marked) if marked else _described(lines))
    points = [point for point in parsed if isinstance(point, MetricPoint)]
    left_out = sum(left for left in parsed if isinstance(left, int))
    # Of too many, the first and the newest count: the last value of a name is its result.
    kept = points if len(points) <= MOST_POINTS else [points[0], *points[1 - MOST_POINTS :]]
    return tuple(kept), left_out + len(points) - len(kept)


def summary(points: Sequence[MetricPoint]) -> dict[str, float]:
    """The last value of each name."""
    return {name: value for point in points for name, value in point.values.items()}


def _marked(lines: Sequence[bytes]) -> Iterator[MetricPoint | int]:
    """The points of `METRICS:` lines, and the number of lines and values that are left out."""
    names: set[str] = set()
    for line in lines:
        if len(line) > MOST_LINE_BYTES:
            yield 1
            continue
        try:
            numbers = json.loads(line.decode(errors="replace").strip().removeprefix(_PREFIX))
        except (ValueError, RecursionError):
            yield 1
            continue
        if not isinstance(numbers, dict):
            yield 1
            continue
        step = next(
            (s for n in ("step", "epoch") if (s := _step(numbers.get(n))) is not None), None
        )
        values = {}
        for name, value in numbers.items():
            if name in ("step", "epoch"):
                continue
            number = _finite(value)
            known = name in names or len(names) < MOST_NAMES
            if number is None or not known or not _NAME.fullmatch(name):
                yield 1
                continue
            names.add(name)
            values[name] = number
        if values:
            yield MetricPoint(step=step, values=values)


def _described(lines: Sequence[bytes]) -> Iterator[MetricPoint]:
    """The points of lines that were printed for people."""
    epoch: int | None = None
    for line in lines:
        if len(line) > MOST_LINE_BYTES:
            continue
        text = line.decode(errors="replace")
        values: dict[str, float] = {}
        if epoch_match := _EPOCH.search(text):
            epoch = int(epoch_match[1])
            if loss := _LOSS.search(text, epoch_match.end()):
                values["training_loss"] = float(loss[1])
        for kind, number in _ACCURACY.findall(text):
            values[f"{kind.lower()}_accuracy"] = float(number)
        if values and all(map(math.isfinite, values.values())):
            yield MetricPoint(step=epoch, values=values)


def _step(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_STEP else None


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
