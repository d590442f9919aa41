"""Inference profiles on the monitor page: those on their own, and those of sweeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from compilewatch.contract.processes import is_alive
from compilewatch.errors import StoreError
from compilewatch.extras.monitor.entries import Alert, Details, MonitorEntry, Row
from compilewatch.extras.profiles.infer import analysis, charts
from compilewatch.extras.profiles.infer import words as words
from compilewatch.extras.profiles.infer.records import (
    BatchPoint,
    InferenceProfile,
    Segments,
    TargetProfile,
)
from compilewatch.extras.profiles.infer.report_files import answers, in_megabytes, operators_of
from compilewatch.extras.profiles.infer.store import (
    PREFIX,
    PROFILES_FILE,
    StoredProfile,
    read_profiles,
)
from compilewatch.report.charts import PROFILE_TONES, target_tones
from compilewatch.report.wording import milliseconds
from compilewatch.store.outputs import RUN_ID

OPERATORS_SHOWN = 15
BREAKS_SHOWN = 20

BATCH, TARGET = "batch size", "target"
LATENCY, PER_SAMPLE = "latency of a call in ms", "latency per sample in ms"
RATE, SPEEDUP = "samples per second", "speed-up over eager mode"
PEAK, CALL, DEVICE = "peak of the process, MB", "one call alone, MB", "peak on the GPU, MB"

PARTS = {said: PROFILE_TONES[part] for part, said in charts.PARTS.items()}
"""The parts of a call with their colours, which are those of the report."""

COSTS = ("Python between graphs", "guards", "eager operators")
"""The parts of a call that are costs of a graph break."""

_Stamp = tuple[int, int]


class InferenceReader:
    """Reads each `profiles.jsonl` once, and again when it has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[Path, tuple[_Stamp, tuple[MonitorEntry, ...]]] = {}
        self._profiles: dict[str, InferenceProfile] = {}

    def entries(self) -> list[MonitorEntry]:
        """Return every profile; one that cannot be read has the state `damaged`."""
        found: list[MonitorEntry] = []
        with contextlib.suppress(OSError):
            for folder in self._root.iterdir():
                own = folder.name.startswith(PREFIX)
                if (own or RUN_ID.fullmatch(folder.name)) and not folder.is_symlink():
                    found += self._of_folder(folder, own=own)
        return found

    def details(self, entry: MonitorEntry) -> Details:
        """Return what the tabs show of a profile. Raises StoreError if it cannot be read."""
        profile = self._profiles.get(entry.key)
        if profile is not None:
            return details_of(profile, entry)
        if entry.state == "damaged":
            _, damaged = read_profiles(self._root / entry.key)
            raise StoreError(damaged[0] if damaged else f"{entry.key} has no profile")
        return Details(entry=entry, alerts=tuple(_unfinished(entry)))

    def _of_folder(self, folder: Path, *, own: bool) -> tuple[MonitorEntry, ...]:
        try:
            status = (folder / PROFILES_FILE).stat()
        except OSError:
            return (self._without_record(folder),) if own and folder.is_dir() else ()
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._read.get(folder)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            stored, damaged = read_profiles(folder)
        except StoreError:
            stored, damaged = (), ("of a newer version",)
        entries = tuple(self._entry(each) for each in stored)
        if own and damaged and not entries:
            entries = (_plain_entry(folder, "damaged"),)
        self._read[folder] = stamp, entries
        return entries

    def _without_record(self, folder: Path) -> MonitorEntry:
        """A profile that is being measured, or whose process has ended before its end."""
        running = any(
            is_alive(scratch.name.rpartition("-")[2])
            for scratch in folder.glob(".scratch-profile-*")
        )
        return _plain_entry(folder, "running" if running else "interrupted")

    def _entry(self, stored: StoredProfile) -> MonitorEntry:
        profile = stored.profile
        key = stored.folder.relative_to(self._root).as_posix()
        points = (point for target in profile.targets for point in target.points)
        self._profiles[key] = profile
        return MonitorEntry(
            key=key,
            kind="inference",
            title=f"{profile.model} on {', '.join(profile.options.targets)}",
            state="finished",
            started_at=profile.started_at,
            done=sum(point.latency is not None for point in points),
        )


def details_of(profile: InferenceProfile, entry: MonitorEntry) -> Details:
    """Return what the tabs show of a profile."""
    points = [(target, point) for target in profile.targets for point in target.points]
    measured = [(target, point) for target, point in points if point.latency is not None]
    calls = [(t, p, p.segments) for t, p in measured if p.segments is not None]
    broken = analysis.broken(profile)
    operators = sorted(operators_of(profile), key=lambda o: -o.self_cpu_seconds)
    return Details(
        entry=entry,
        figures=tuple(_figures(profile)),
        alerts=tuple(_alerts(profile)),
        tones=target_tones(profile.options.targets),
        batch_rows=tuple(_batch_row(target, point) for target, point in measured),
        call_rows=tuple(_call_row(target, point, parts) for target, point, parts in calls),
        break_rows=tuple(_break_rows(broken[1])) if broken is not None else (),
        operators=tuple(
            {
                "operator": each.name,
                "calls": each.calls,
                "own CPU ms": each.self_cpu_seconds * 1e3,
            }
            for each in operators[:OPERATORS_SHOWN]
        ),
        explanation=tuple(f"{name}: {value}" for name, value in answers(profile)),
    )


def _figures(profile: InferenceProfile) -> Iterator[tuple[str, str]]:
    best = analysis.fastest(profile)
    if best is None:
        return
    target, point = best
    assert point.latency is not None
    yield "best batch", f"{point.batch_size} on {target.target}"
    yield "samples per second", words.rate(point.samples_per_second)
    yield "latency per sample", milliseconds(point.latency.median_seconds / point.batch_size)
    if point.speedup is not None:
        yield "speed-up", f"{point.speedup:.2f} ×"


def _alerts(profile: InferenceProfile) -> Iterator[Alert]:
    for target in profile.targets:
        failed = [point for point in target.points if point.latency is None]
        if failed:
            first = failed[0]
            yield Alert(
                level="error",
                found=f"{target.target} was not measured at batch {first.batch_size}: "
                f"{first.status}: {first.detail}",
                advice="the other batch sizes and targets were measured",
            )
    unstable = [
        f"{target.target} at batch {point.batch_size}"
        for target in profile.targets
        for point in target.points
        if point.latency is not None and not point.latency.stable
    ]
    if unstable:
        yield Alert(
            level="warning",
            found=f"the rounds differ by more than 10 %: {', '.join(unstable)}",
            advice="measure again on a calm machine, or trust the ratios only",
        )
    for note in profile.notes:
        yield Alert(level="info", found=note, advice="see the report of the profile")


def _unfinished(entry: MonitorEntry) -> Iterator[Alert]:
    if entry.state == "interrupted":
        yield Alert(
            level="error",
            found="the process ended before the record was written",
            advice="measure the model again with `compilewatch profile infer`",
        )


def _batch_row(target: TargetProfile, point: BatchPoint) -> Row:
    """One row; what was not measured is left out, so that a chart shows a gap and not a zero."""
    assert point.latency is not None
    seconds, memory = point.latency.median_seconds, point.memory
    row: dict[str, str | float | None] = {
        TARGET: target.target,
        BATCH: point.batch_size,
        LATENCY: seconds * 1e3,
        PER_SAMPLE: seconds * 1e3 / point.batch_size,
        RATE: point.samples_per_second,
        SPEEDUP: point.speedup,
        PEAK: in_megabytes(memory.rss_peak_bytes if memory else None),
        CALL: in_megabytes(memory.call_peak_bytes if memory else None),
        DEVICE: in_megabytes(memory.device_peak_bytes if memory else None),
    }
    return {name: value for name, value in row.items() if value is not None}


def _call_row(target: TargetProfile, point: BatchPoint, call: Segments) -> Row:
    values = {charts.PARTS[part]: seconds * 1e3 for part, seconds in call.parts.items()}
    return {"call": f"{target.target}, batch {point.batch_size}", **values}


def _break_rows(point: BatchPoint) -> Iterator[Row]:
    for cost in point.breaks[:BREAKS_SHOWN]:
        yield {
            "line": f"{cost.file.rpartition('/')[2]}:{cost.line}",
            "Python between graphs": cost.python_seconds * 1e3,
            "guards": cost.guard_seconds * 1e3,
            "eager operators": cost.eager_seconds * 1e3,
            "share of the call": f"{cost.share:.1%}",
            "reason": cost.reason,
        }


def _plain_entry(folder: Path, state: str) -> MonitorEntry:
    begun = folder.name.removeprefix(PREFIX)
    return MonitorEntry(
        key=folder.name,
        kind="inference",
        title=begun,
        state=state,
        started_at=time_of(begun),
    )


def time_of(name: str) -> str:
    """Return the time in a folder's name such as 20261122-224405-effd; else an empty string."""
    if RUN_ID.fullmatch(name) is None:
        return ""
    return f"{name[:4]}-{name[4:6]}-{name[6:8]}T{name[9:11]}:{name[11:13]}:{name[13:15]}Z"
