"""Reads training profiles, and checks the profiles in a folder, of training and of inference.

A training profile whose process was killed has no `profiler_summary.json`, and the last line of its
`steps.jsonl` may be cut off. Everything else that does not fit is damage and raises StoreError.
"""

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.extras.profiles import training as recorded
from compilewatch.extras.profiles.records import OperatorStat
from compilewatch.extras.profiles.store import PREFIX, PROFILES_FILE
from compilewatch.extras.profiles.training import STEPS_FILE, SUMMARY_FILE
from compilewatch.files import explained, from_json, read_if_there
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


# --- training profiles ----------------------------------------------------------------------------


def is_training(path: Path) -> bool:
    """Whether a folder holds a training profile, in whatever state."""
    return any((path / name).is_file() for name in (STEPS_FILE, SUMMARY_FILE))


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
    with explained("read", file_path), file_path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).split(b"\n")[:-1]
    return _steps(lines[1:] if start else lines, file_path)


def read_training(path: Path) -> recorded.TrainingProfile:
    """Read a profile completely.

    Raises StoreError if a newer compilewatch wrote it, and if a file cannot be read, is damaged or
    contradicts another one.
    """
    config, state, summary = read_config(path), state_of(path), None
    *lines, torn = _read(path / STEPS_FILE).split(b"\n")
    steps = _steps(lines, path / STEPS_FILE)
    if state == "finished":
        summary = _record(path / SUMMARY_FILE, recorded.TrainingSummary)
        state = summary.state
        if torn:
            raise StoreError(f"{path / STEPS_FILE}: its last line is cut off")
        if summary.steps != len(steps):
            raise StoreError(
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
        torn=bool(torn),
        summary=summary,
        operators=_operators(path / recorded.OPERATORS_FILE),
        has_trace=check_trace(path / recorded.TRACE_FILE),
    )


def _steps(lines: Sequence[bytes], path: Path) -> tuple[recorded.Step, ...]:
    numbered = enumerate(lines, start=1)
    return tuple(_decoded(line, recorded.Step, f"{path}:{number}") for number, line in numbered)


def _operators(path: Path) -> tuple[OperatorStat, ...] | None:
    if not path.exists():
        return None
    rows = _table(path, "name")
    with _damage_in(path):
        return tuple(msgspec.convert(row, OperatorStat, strict=False) for row in rows)


# --- files of both kinds --------------------------------------------------------------------------


@contextmanager
def _damage_in(where: object) -> Iterator[None]:
    """Raise StoreError with this place where the body cannot decode what it read."""
    try:
        yield
    except (ValueError, csv.Error) as error:
        raise StoreError(f"{where}: damaged ({error})") from None
    except StoreError as error:  # of another version
        raise StoreError(f"{where}: {error}") from None


def _decoded(data: bytes, kind: type[R], where: str) -> R:
    with _damage_in(where):
        return decode(data, kind)


def _record(path: Path, kind: type[R]) -> R:
    return _decoded(_read(path), kind, str(path))


def _read(path: Path) -> bytes:
    data = read_if_there(path)
    if data is None:
        raise StoreError(f"{path} is missing")
    return data


def check_trace(path: Path) -> bool:
    """Return whether there is a Chrome trace. Raises StoreError if it is damaged."""
    if (data := read_if_there(path)) is None:
        return False
    with _damage_in(path):
        trace = from_json(data, object)
    if not (trace.get("traceEvents") if isinstance(trace, dict) else trace):
        raise StoreError(f"{path}: a trace without events")
    return True


def _table(path: Path, column: str) -> list[dict[str, str]]:
    """Read a CSV file with a column of this name."""
    data = _read(path)
    with _damage_in(path):
        names, *rows = list(csv.reader(io.StringIO(data.decode()), strict=True)) or [[]]
    if column not in names:
        raise StoreError(f"{path}: its first line has no column {column}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise StoreError(f"{path}:{number}: {len(row)} columns instead of {len(names)}")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _check_text(path: Path) -> None:
    if not _read(path).strip():
        raise StoreError(f"{path} is empty")


def _check_png(path: Path) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(_read(path))) as picture:
            picture.verify()  # the checksums of all chunks
    except (OSError, SyntaxError):
        raise StoreError(f"{path}: not a complete PNG picture") from None


INFERENCE_FILES: dict[str, Callable[[Path], object]] = {
    BASELINE_FILE: partial(_record, kind=Versioned),
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
    kind: str
    state: str
    findings: tuple[recorded.ProfileFinding, ...] = ()
    broken: str | None = None
    training: recorded.TrainingProfile | None = None

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
    kind, training = "training" if is_training(path) else "inference", None
    try:
        if kind == "training":
            training = read_training(path)
            state, findings = training.state, recorded.findings(training)
        else:
            for name, check in INFERENCE_FILES.items():
                if (path / name).exists():
                    check(path / name)
            findings = tuple(_missing(path))
            incomplete = any(finding.code == "incomplete" for finding in findings)
            state = "incomplete" if incomplete else "finished"
    except StoreError as error:
        return CheckedProfile(path=path, kind=kind, state="broken", broken=str(error))
    return CheckedProfile(path=path, kind=kind, state=state, findings=findings, training=training)


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
