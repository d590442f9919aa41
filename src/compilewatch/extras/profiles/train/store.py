"""Reading the files of a training profile: as far as they are there, and never more than that.

A profile whose process was killed has no `profiler_summary.json`, and the last line of its
`steps.jsonl` may be cut off. Everything else that does not fit is damage and raises.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.extras.profiles.train.records import (
    CONFIG_FILE,
    METRICS_FILE,
    OPERATOR_COLUMNS,
    OPERATORS_FILE,
    STAGES_FILE,
    STEPS_FILE,
    SUMMARY_FILE,
    TRACE_FILE,
    TRAINING_VERSION,
    OperatorStat,
    StageTimes,
    Step,
    TrainingConfig,
    TrainingMetrics,
    TrainingProfile,
    TrainingSummary,
)
from compilewatch.files import DamagedError, failed, from_json
from compilewatch.records import Record
from compilewatch.store.journal import decode
from compilewatch.store.runs import is_locked

R = TypeVar("R", bound=Record)

TAIL_BYTES = 1 << 20
"""What `tail` reads of the end of `steps.jsonl`: about the last 1,500 steps."""


class DamagedProfileError(StoreError):
    """A file of a profile contradicts the format; the message names the file."""


def is_training(path: Path) -> bool:
    """Whether a folder holds a training profile, in whatever state."""
    return (path / STEPS_FILE).is_file() or (
        (path / CONFIG_FILE).is_file() and b'"training"' in _head(path / CONFIG_FILE)
    )


def find_training(root: Path) -> tuple[Path, ...]:
    """Return the folders of all training profiles in and below a folder, newest name first."""
    folders: list[Path] = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        path = Path(folder)
        if (STEPS_FILE in files or CONFIG_FILE in files) and is_training(path):
            folders.append(path)
            names.clear()
    return tuple(sorted(folders, key=lambda path: (path.name, str(path)), reverse=True))


def read_config(path: Path) -> TrainingConfig:
    """Read `config.json` alone. Raises StoreError."""
    return _record(path / CONFIG_FILE, TrainingConfig)


def state_of(path: Path) -> str:
    """Return the state of a profile, `finished` also for one that failed, without reading steps."""
    if (path / SUMMARY_FILE).exists():
        return "finished"
    if is_locked(path / STEPS_FILE):
        return "running"
    # It may have ended in between.
    return "finished" if (path / SUMMARY_FILE).exists() else "incomplete"


def tail(path: Path) -> tuple[Step, ...]:
    """Return the newest steps of a profile, running or not, from the end of `steps.jsonl`."""
    file_path = path / STEPS_FILE
    try:
        with file_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise failed("read", file_path, error) from None
    lines = data.split(b"\n")[:-1]
    return tuple(_steps(lines[1:] if start else lines, file_path))


def read_training(path: Path) -> TrainingProfile:
    """Read a profile completely.

    Raises StoreError if a newer compilewatch wrote it or a file cannot be read, and
    DamagedProfileError if its files are damaged or contradict each other.
    """
    config = read_config(path)
    state = state_of(path)
    lines = read_bytes(path / STEPS_FILE).split(b"\n") if (path / STEPS_FILE).exists() else [b""]
    torn = bool(lines.pop())
    steps = tuple(_steps(lines, path / STEPS_FILE))
    summary = None
    if state == "finished":
        summary = _record(path / SUMMARY_FILE, TrainingSummary)
        state = summary.state
        if state not in ("finished", "failed"):
            raise DamagedProfileError(f"{path / SUMMARY_FILE}: unknown state {state!r}")
        if torn:
            raise DamagedProfileError(f"{path / STEPS_FILE}: its last line is cut off")
        _check_written(path, summary, len(steps))
    return TrainingProfile(
        path=path,
        state=state,
        config=config,
        steps=steps,
        torn=torn,
        summary=summary,
        stage_times=_optional(path / STAGES_FILE, StageTimes),
        metrics=_optional(path / METRICS_FILE, TrainingMetrics),
        operators=_operators(path / OPERATORS_FILE),
        has_trace=check_trace(path / TRACE_FILE),
    )


def _check_written(path: Path, summary: TrainingSummary, steps: int) -> None:
    """Compare the files with what the summary says about them."""
    if summary.steps != steps:
        raise DamagedProfileError(
            f"{path / STEPS_FILE}: {steps} steps, but {SUMMARY_FILE} counts {summary.steps}"
        )
    for name, written in summary.files.items():
        if Path(name).name != name:
            raise DamagedProfileError(f"{path / SUMMARY_FILE}: {name!r} is not a name of a file")
        data = read_bytes(path / name)
        if len(data) != written.bytes or hashlib.sha256(data).hexdigest() != written.sha256:
            raise DamagedProfileError(f"{path / name}: changed since the profile ended")


def _steps(lines: Sequence[bytes], path: Path) -> Iterator[Step]:
    last = -1
    for number, line in enumerate(lines, start=1):
        step = _decoded(line, Step, f"{path}:{number}")
        if step.index <= last:
            raise DamagedProfileError(f"{path}:{number}: step {step.index} after step {last}")
        total = sum(step.stages.values())
        if abs(total - step.wall_seconds) > 0.01 * step.wall_seconds + 1e-6:
            raise DamagedProfileError(
                f"{path}:{number}: stages of {total:g} s in a step of {step.wall_seconds:g} s"
            )
        last = step.index
        yield step


def _operators(path: Path) -> tuple[OperatorStat, ...] | None:
    if not path.exists():
        return None
    try:
        rows = list(csv.reader(io.StringIO(read_bytes(path).decode())))
        if not rows or tuple(rows[0]) != OPERATOR_COLUMNS:
            raise DamagedProfileError(f"{path}: its first line is not {','.join(OPERATOR_COLUMNS)}")
        named = (dict(zip(OPERATOR_COLUMNS, row, strict=True)) for row in rows[1:])
        return tuple(msgspec.convert(row, OperatorStat, strict=False) for row in named)
    except (ValueError, csv.Error) as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None


def check_trace(path: Path) -> bool:
    """Return whether there is a Chrome trace. Raises DamagedProfileError for one that is damaged.

    Every complete event (`ph` X) must have a name, a time and a duration that is not negative.
    """
    if not path.exists():
        return False
    try:
        trace = from_json(read_bytes(path), object)
    except DamagedError as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    listed = events if isinstance(events, list) else ()
    complete = [e for e in listed if isinstance(e, dict) and e.get("ph") == "X"]
    if not complete:
        raise DamagedProfileError(f"{path}: a trace without events")
    for event in complete:
        known = isinstance(event.get("ts"), int | float) and event.get("name") is not None
        if not known or not isinstance(event.get("dur"), int | float) or event["dur"] < 0:
            raise DamagedProfileError(f"{path}: an event without name, time or duration")
    return True


def _optional(path: Path, kind: type[R]) -> R | None:
    return _record(path, kind) if path.exists() else None


def _record(path: Path, kind: type[R]) -> R:
    return _decoded(read_bytes(path), kind, str(path))


def _decoded(data: bytes, kind: type[R], where: str) -> R:
    try:
        return decode(data, kind, TRAINING_VERSION)
    except DamagedError as error:
        raise DamagedProfileError(f"{where}: damaged ({error})") from None
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises DamagedProfileError without it, and StoreError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedProfileError(f"{path} is missing") from None
    except OSError as error:
        raise failed("read", path, error) from None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""
