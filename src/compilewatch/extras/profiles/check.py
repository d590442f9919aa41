"""Checks the profiles in a folder, of training and of inference."""

from __future__ import annotations

import csv
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.profiles.infer.records import PROFILE_VERSION
from compilewatch.extras.profiles.infer.store import PREFIX, PROFILES_FILE
from compilewatch.extras.profiles.train import analysis
from compilewatch.extras.profiles.train.records import (
    OPERATORS_FILE,
    FindingCode,
    ProfileFinding,
    TrainingProfile,
)
from compilewatch.extras.profiles.train.store import (
    DamagedProfileError,
    check_trace,
    is_training,
    read_bytes,
    read_training,
)
from compilewatch.files import DamagedError, from_json, write_atomically

REPORT_FILE = "check_report.md"

FOUND, BROKEN = 1, 2
"""Exit statuses of a check besides 0."""

BASELINE_FILE = "baseline_metrics.json"
TABLE_FILE = "detailed_metrics.csv"
TEXT_FILE = "baseline_summary_report.txt"
REQUIRED = (BASELINE_FILE, TABLE_FILE, TEXT_FILE)
PLOTS = ("plots/batch_size_comparison.png", "plots/metrics_heatmap.png")
TRACE = "profiler_traces/trace.json"
STACKS = "profiler_traces/stacks.txt"

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True)
class CheckedProfile:
    """One checked profile. `broken` says why it cannot be used, None if it can."""

    path: Path
    kind: str
    state: str
    findings: tuple[ProfileFinding, ...] = ()
    broken: str | None = None
    training: TrainingProfile | None = None

    @property
    def exit_status(self) -> int:
        if self.broken is not None:
            return BROKEN
        return FOUND if self.findings else 0


def check_profiles(root: Path) -> tuple[CheckedProfile, ...]:
    """Check every profile in and below a folder. Raises UsageError if there is none."""
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}")
    profiles = tuple(_checked(root))
    if not profiles:
        raise UsageError(f"{root} contains no profile: no config.json and no baseline_metrics.json")
    return profiles


def check_outputs(root: Path) -> tuple[CheckedProfile, ...]:
    """Check the profiles in a folder of outputs, not the runs. Raises UsageError without any."""
    folders = [root / "profiles", *sorted(root.glob("profile-*"))]
    profiles = tuple(
        profile for folder in folders if folder.is_dir() for profile in _checked(folder)
    )
    if not profiles:
        raise UsageError(f"{root} contains no profile: `compilewatch profile train` makes one")
    return profiles


def _checked(root: Path) -> Iterator[CheckedProfile]:
    for folder, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        path = Path(folder)
        if is_training(path):
            names.clear()
            yield check_training(path)
        elif is_inference(path):
            names[:] = [name for name in names if name not in ("plots", "profiler_traces")]
            yield check_inference(path)


def check_training(path: Path) -> CheckedProfile:
    """Check one training profile."""
    try:
        profile = read_training(path)
    except StoreError as error:
        return CheckedProfile(path=path, kind="training", state="broken", broken=str(error))
    findings = analysis.findings(profile)
    return CheckedProfile(
        path=path, kind="training", state=profile.state, findings=findings, training=profile
    )


def check_inference(path: Path) -> CheckedProfile:
    """Check one inference profile: read every file, and find what is missing."""
    checks: dict[str, Callable[[Path], None]] = {
        BASELINE_FILE: _check_metrics,
        TABLE_FILE: partial(_check_table, column="batch_size"),
        OPERATORS_FILE: partial(_check_table, column="name"),
        **dict.fromkeys((TEXT_FILE, STACKS), _check_text),
        **dict.fromkeys(PLOTS, _check_png),
    }
    try:
        for name, check in checks.items():
            if (path / name).exists():
                check(path / name)
        check_trace(path / TRACE)
    except StoreError as error:
        return CheckedProfile(path=path, kind="inference", state="broken", broken=str(error))
    findings = tuple(_missing(path))
    incomplete = any(finding.code is FindingCode.INCOMPLETE for finding in findings)
    state = "incomplete" if incomplete else "finished"
    return CheckedProfile(path=path, kind="inference", state=state, findings=findings)


def write_report(checked: CheckedProfile) -> Path:
    """Write `check_report.md` into the folder of a profile and return its path."""
    path = checked.path / REPORT_FILE
    write_atomically(path, "\n".join([*_report(checked), ""]).encode(), durable=False)
    return path


def _report(checked: CheckedProfile) -> Iterator[str]:
    yield f"# Check of {checked.path.name}\n"
    yield f"A profile of {checked.kind}, {checked.state}.\n"
    if checked.broken is not None:
        yield f"It cannot be used: {checked.broken}\n"
    yield "## Findings\n"
    if not checked.findings and checked.broken is None:
        yield "None.\n"
    for finding in checked.findings:
        yield f"- `{finding.code}`: {finding.found}. To do: {finding.advice}."
    if checked.training is None:
        return
    yield "\n## What dominates\n"
    yield "\n".join(analysis.explanation(checked.training))
    yield "\n## Stages\n"
    yield "| stage | median ms | share |"
    yield "|---|---|---|"
    times = analysis.times_of(checked.training)
    for stage, spread in times.stages.items():
        yield f"| {stage} | {spread.median * 1e3:.3f} | {times.shares.get(stage, 0.0):.1%} |"
    yield "\n## Operators\n"
    yield "| operator | calls | own CPU time, ms | CPU time, ms |"
    yield "|---|---|---|---|"
    for row in analysis.top_operators(checked.training):
        own, total = row.self_cpu_time_us / 1e3, row.cpu_time_total_us / 1e3
        yield f"| `{row.name}` | {row.calls} | {own:.3f} | {total:.3f} |"


def is_inference(path: Path) -> bool:
    """Whether a folder holds the files of an inference profile, or some of them."""
    return any((path / name).is_file() for name in (*REQUIRED[:2], TRACE))


def _missing(path: Path) -> Iterator[ProfileFinding]:
    missing = [name for name in REQUIRED if not (path / name).exists()]
    if path.name.startswith(PREFIX) and not (path / PROFILES_FILE).exists():
        missing.append(PROFILES_FILE)
    if missing:
        yield ProfileFinding(
            code=FindingCode.INCOMPLETE,
            found=f"without {', '.join(missing)}",
            advice="run `compilewatch profile infer` again",
        )
    plots = [name for name in PLOTS if not (path / name).exists()]
    if plots and not missing:
        yield ProfileFinding(
            code=FindingCode.FILE_MISSING,
            found=f"without {', '.join(plots)}",
            advice="run `compilewatch profile infer` again for the pictures",
        )


def _check_metrics(path: Path) -> None:
    metrics: Any
    try:
        metrics = from_json(read_bytes(path), object)
    except DamagedError as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None
    if not isinstance(metrics, dict):
        raise DamagedProfileError(f"{path}: not an object of metrics")
    version = metrics.get("schema_version", PROFILE_VERSION)
    if not isinstance(version, int):
        raise DamagedProfileError(f"{path}: schema_version {version!r} is not a number")
    if version > PROFILE_VERSION:
        raise StoreError(
            f"{path}: written by a newer compilewatch (schema {version}, this one knows "
            f"{PROFILE_VERSION}): upgrade compilewatch to read it"
        )


def _check_table(path: Path, column: str) -> None:
    try:
        rows = list(csv.reader(io.StringIO(read_bytes(path).decode()), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DamagedProfileError(f"{path}: damaged ({error})") from None
    if not rows or column not in rows[0]:
        raise DamagedProfileError(f"{path}: its first line has no column {column}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise DamagedProfileError(
                f"{path}:{number}: {len(row)} columns instead of {len(rows[0])}"
            )


def _check_text(path: Path) -> None:
    if not read_bytes(path).strip():
        raise DamagedProfileError(f"{path} is empty")


def _check_png(path: Path) -> None:
    """Check the signature and the checksum of every chunk: PNG specification, section 5."""
    data = read_bytes(path)
    at, kind = len(_PNG), b""
    while data.startswith(_PNG) and kind != b"IEND" and len(data) >= at + 12:
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, end = data[at + 4 : at + 8], at + 8 + length
        if data[end : end + 4] != struct.pack(">I", zlib.crc32(data[at + 4 : end])):
            break
        at = end + 4
    if kind != b"IEND" or at != len(data):
        raise DamagedProfileError(f"{path}: not a complete PNG picture")
