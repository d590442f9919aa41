"""Reads training profiles, and checks the profiles in a folder, of training and of inference.

A training profile whose process was killed has no `profiler_summary.json`, and the last line of its
`steps.jsonl` may be cut off. Everything else that does not fit is damage and raises.
"""

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.extras.profiles import training as recorded
from compilewatch.extras.profiles.records import PROFILE_VERSION, OperatorStat
from compilewatch.extras.profiles.store import PREFIX, PROFILES_FILE
from compilewatch.extras.profiles.training import STEPS_FILE, SUMMARY_FILE
from compilewatch.files import DamagedError, failed, from_json
from compilewatch.records import Record, Versioned
from compilewatch.store.journal import decode
from compilewatch.store.runs import is_locked

FOUND, BROKEN = 1, 2
"""Exit statuses of a check besides 0."""

BASELINE_FILE = "baseline_metrics.json"
TABLE_FILE = "detailed_metrics.csv"
TEXT_FILE = "baseline_summary_report.txt"
REQUIRED = (BASELINE_FILE, TABLE_FILE, TEXT_FILE)
PLOTS = ("plots/batch_size_comparison.png", "plots/metrics_heatmap.png")
TRACE = "profiler_traces/trace.json"
STACKS = "profiler_traces/stacks.txt"

R = TypeVar("R", bound=Record)

TAIL_BYTES = 1 << 20
"""What `tail` reads of the end of `steps.jsonl`: about the last 1,500 steps."""


class DamagedProfileError(StoreError):
    """A file of a profile contradicts the format; the message names the file."""


# --- training profiles ----------------------------------------------------------------------------


def is_training(path: Path) -> bool:
    """Whether a folder holds a training profile, in whatever state."""
    if (path / STEPS_FILE).is_file():
        return True
    try:
        with (path / recorded.CONFIG_FILE).open("rb") as file:
            return b'"training"' in file.read(4096)
    except OSError:
        return False


def find_training(root: Path) -> tuple[Path, ...]:
    """Return the folders of all training profiles in and below a folder, newest name first."""
    folders = filter(is_training, _folders(root))
    return tuple(sorted(folders, key=lambda path: (path.name, str(path)), reverse=True))


def _folders(root: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield Path(folder)


def read_config(path: Path) -> recorded.TrainingConfig:
    """Read `config.json` alone. Raises StoreError."""
    return _record(path / recorded.CONFIG_FILE, recorded.TrainingConfig)


def state_of(path: Path) -> str:
    """Return the state of a profile, `finished` also for one that failed, without reading steps."""
    running = is_locked(path / STEPS_FILE)
    if (path / SUMMARY_FILE).exists():
        return "finished"
    return "running" if running else "incomplete"


def tail(path: Path) -> tuple[recorded.Step, ...]:
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


def read_training(path: Path) -> recorded.TrainingProfile:
    """Read a profile completely.

    Raises StoreError if a newer compilewatch wrote it or a file cannot be read, and
    DamagedProfileError if its files are damaged or contradict each other.
    """
    config, state, summary = read_config(path), state_of(path), None
    lines = _read(path / STEPS_FILE).split(b"\n") if (path / STEPS_FILE).exists() else [b""]
    torn = bool(lines.pop())
    steps = tuple(_steps(lines, path / STEPS_FILE))
    if state == "finished":
        summary = _record(path / SUMMARY_FILE, recorded.TrainingSummary)
        state = summary.state
        if torn:
            raise DamagedProfileError(f"{path / STEPS_FILE}: its last line is cut off")
        if summary.steps != len(steps):
            raise DamagedProfileError(
                f"{path / STEPS_FILE}: {len(steps)} steps, but {SUMMARY_FILE} counts "
                f"{summary.steps}"
            )
        _record(path / recorded.METRICS_FILE, recorded.TrainingMetrics)
        _record(path / recorded.STAGES_FILE, recorded.StageTimes)
    return recorded.TrainingProfile(
        path=path,
        state=state,
        config=config,
        steps=steps,
        torn=torn,
        summary=summary,
        operators=_operators(path / recorded.OPERATORS_FILE),
        has_trace=check_trace(path / recorded.TRACE_FILE),
    )


def _steps(lines: Sequence[bytes], path: Path) -> Iterator[recorded.Step]:
    last = -1
    for number, line in enumerate(lines, start=1):
        step = _decoded(line, recorded.Step, f"{path}:{number}")
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
    rows = _table(path, "name")
    try:
        return tuple(msgspec.convert(row, OperatorStat, strict=False) for row in rows)
    except ValueError as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None


def _record(path: Path, kind: type[R]) -> R:
    return _decoded(_read(path), kind, str(path))


def _decoded(data: bytes, kind: type[R], where: str, version: int = recorded.TRAINING_VERSION) -> R:
    try:
        return decode(data, kind, version)
    except DamagedError as error:
        raise DamagedProfileError(f"{where}: damaged ({error})") from None
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedProfileError(f"{path} is missing") from None
    except OSError as error:
        raise failed("read", path, error) from None


# --- files of both kinds --------------------------------------------------------------------------


def check_trace(path: Path) -> bool:
    """Return whether there is a Chrome trace. Raises DamagedProfileError if it is damaged."""
    if not path.exists():
        return False
    try:
        trace = from_json(_read(path), object)
    except DamagedError as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None
    if not (trace.get("traceEvents") if isinstance(trace, dict) else trace):
        raise DamagedProfileError(f"{path}: a trace without events")
    return True


def _table(path: Path, column: str) -> list[dict[str, str]]:
    """Read a CSV file with a column of this name."""
    try:
        rows = list(csv.reader(io.StringIO(_read(path).decode()), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None
    names = rows[0] if rows else []
    if column not in names:
        raise DamagedProfileError(f"{path}: its first line has no column {column}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise DamagedProfileError(
                f"{path}:{number}: {len(row)} columns instead of {len(names)}"
            )
    return [dict(zip(names, row, strict=True)) for row in rows[1:]]


def _check_metrics(path: Path) -> None:
    _decoded(_read(path), Versioned, str(path), PROFILE_VERSION)


def _check_text(path: Path) -> None:
    if not _read(path).strip():
        raise DamagedProfileError(f"{path} is empty")


def _check_png(path: Path) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(_read(path))) as picture:
            picture.verify()  # the checksums of all chunks
    except (OSError, SyntaxError):
        raise DamagedProfileError(f"{path}: not a complete PNG picture") from None


INFERENCE_FILES: dict[str, Callable[[Path], object]] = {
    BASELINE_FILE: _check_metrics,
    TABLE_FILE: partial(_table, column="batch_size"),
    recorded.OPERATORS_FILE: partial(_table, column="name"),
    **dict.fromkeys((TEXT_FILE, STACKS), _check_text),
    **dict.fromkeys(PLOTS, _check_png),
    TRACE: check_trace,
}
"""How each file of an inference profile is read completely."""


# --- checks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckedProfile:
    """One checked profile. `broken` says why it cannot be used, None if it can.

    `training` is what was read of a profile of training.
    """

    path: Path
    broken: str | None = None
    training: recorded.TrainingProfile | None = None

    @property
    def kind(self) -> str:
        return "training" if is_training(self.path) else "inference"

    @cached_property
    def findings(self) -> tuple[recorded.ProfileFinding, ...]:
        if self.broken is not None:
            return ()
        return recorded.findings(self.training) if self.training else tuple(_missing(self.path))

    @property
    def state(self) -> str:
        if self.broken is not None:
            return "broken"
        if self.training is not None:
            return self.training.state
        return "incomplete" if any(f.code == "incomplete" for f in self.findings) else "finished"

    @property
    def exit_status(self) -> int:
        if self.broken is not None:
            return BROKEN
        return FOUND if self.findings else 0


def check_profiles(*roots: Path) -> tuple[CheckedProfile, ...]:
    """Check every profile in and below folders: read every file, and find what is missing."""
    folders = (path for root in roots for path in _folders(root))
    return tuple(_checked(path) for path in folders if is_training(path) or is_inference(path))


def _checked(path: Path) -> CheckedProfile:
    try:
        if is_training(path):
            return CheckedProfile(path=path, training=read_training(path))
        for name, check in INFERENCE_FILES.items():
            if (path / name).exists():
                check(path / name)
    except StoreError as error:
        return CheckedProfile(path=path, broken=str(error))
    return CheckedProfile(path=path)


def is_inference(path: Path) -> bool:
    """Whether a folder holds the files of an inference profile, or some of them."""
    return any((path / name).is_file() for name in (*REQUIRED[:2], TRACE))


def _missing(path: Path) -> Iterator[recorded.ProfileFinding]:
    record = [PROFILES_FILE] if path.name.startswith(PREFIX) else []
    missing = [name for name in (*REQUIRED, *record) if not (path / name).exists()]
    plots = [name for name in PLOTS if not (path / name).exists()]
    if missing or plots:
        advice = "run `compilewatch profile infer` again"
        yield recorded.ProfileFinding(
            code="incomplete" if missing else "file_missing",
            found=f"without {', '.join(missing or plots)}",
            advice=advice if missing else f"{advice} for the pictures",
        )
