"""What the monitor page shows: runs, sweeps and profiles in `outputs/`, read as they grow.

Nothing here writes, and nothing is read twice: what has ended is remembered, and files that grow
are read on from where the last reading stopped.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from compilewatch.analysis import summary
from compilewatch.analysis.comparison import compare
from compilewatch.contract.processes import is_alive
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.extras.profiles import analysis, report, training
from compilewatch.extras.profiles.check import (
    find_training,
    read_config,
    read_training,
    state_of,
    tail,
)
from compilewatch.extras.profiles.records import BatchPoint, InferenceProfile, TargetProfile
from compilewatch.extras.profiles.store import PREFIX, PROFILES_FILE, read_profiles
from compilewatch.extras.profiles.training import Step, TrainingConfig, TrainingProfile
from compilewatch.files import DamagedError
from compilewatch.records import Change, ChangeKind, Result, Run, Status, reason_label, spent
from compilewatch.report.charts import PROFILE_TONES, target_tones
from compilewatch.report.wording import milliseconds, plural
from compilewatch.store import StoredRun
from compilewatch.store.journal import decode
from compilewatch.store.outputs import RUN_ID
from compilewatch.store.runs import RESULTS_FILE, result_lines

PROFILES = "profiles"
"""The folder of training profiles."""

STEPS_SHOWN = 300

SLOW_FACTOR = 3.0
SLOW_SECONDS = 1.0
"""The first step is left out of the chart if it takes this many times as long as every other one,
and at least so long."""

FILES_LISTED = 2000
"""The most files of one entry; a run of the library keeps more."""

TEXT_BYTES = 256 * 1024
"""The most of a text file that is shown; it can be downloaded completely."""

ENDED = ("finished", "failed", "incomplete", "interrupted")

EXAMPLES = 5
LARGEST = 15
OPERATORS_SHOWN = 15
BREAKS_SHOWN = 20

BATCH, TARGET = "batch size", "target"
LATENCY, PER_SAMPLE = "latency of a call in ms", "latency per sample in ms"
RATE, SPEEDUP = "samples per second", "speed-up over eager mode"
PEAK, CALL, DEVICE = "peak of the process, MB", "one call alone, MB", "peak on the GPU, MB"

PARTS = {words: PROFILE_TONES[part] for part, words in report.PARTS.items()}
"""The parts of a call with their colours, which are those of the report."""

COSTS = ("Python between graphs", "guards", "eager operators")
"""The parts of a call that are costs of a graph break."""

Row = dict[str, str | float]


@dataclass(frozen=True, kw_only=True)
class MonitorEntry:
    """A run, or a profile of training or inference: one line of the overview.

    `key` is its folder relative to `outputs/`. `done` of `total` requests or steps are there; of
    an inference profile, so many points were measured.
    """

    key: str
    kind: str
    title: str
    state: str
    started_at: str
    done: int | None = None
    total: int | None = None
    passed: int | None = None

    @property
    def label(self) -> str:
        return f"{self.started_at[:16].replace('R', ' ')} {self.kind} {self.title} ({self.state})"


class Alert(NamedTuple):
    """What deserves attention, in the words of the terminal, and what to do."""

    level: str
    text: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Details:
    """All that the tabs show of one entry. A list that does not apply is empty.

    `changes` are the differences of a run from its baseline, the worst first. `left_out` names the
    step that is too slow to be drawn with the others. `batch_rows` have a row for each target and
    batch size, `tones` the colour of each target, `call_rows` the parts of a call and `break_rows`
    those of each graph break, in milliseconds.
    """

    entry: MonitorEntry
    figures: tuple[tuple[str, str], ...] = ()
    alerts: tuple[Alert, ...] = ()
    statuses: dict[str, int] = field(default_factory=dict)
    changes: tuple[Row, ...] = ()
    left_out: str = ""
    stage_rows: tuple[dict[str, float], ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    slowest: tuple[tuple[str, float], ...] = ()
    memory_rows: tuple[dict[str, float], ...] = ()
    largest: tuple[tuple[str, float], ...] = ()
    operators: tuple[Row, ...] = ()
    explanation: tuple[str, ...] = ()
    tones: dict[str, str] = field(default_factory=dict)
    batch_rows: tuple[Row, ...] = ()
    call_rows: tuple[Row, ...] = ()
    break_rows: tuple[Row, ...] = ()


class ShownFile(NamedTuple):
    """One file to look at or download, by its path below the entry's folder."""

    name: str
    bytes: int


class SweepResults:
    """The results of one run so far."""

    def __init__(self, path: Path) -> None:
        self._path = path / RESULTS_FILE
        self._at = 0
        self._results: list[Result] = []

    def read(self) -> Sequence[Result]:
        """Read on from where the last call stopped; damaged lines are left out.

        Raises StoreError.
        """
        try:
            for start, line in result_lines(self._path, self._at):
                self._at = start + len(line)
                with contextlib.suppress(DamagedError):
                    self._results.append(decode(line, Result))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from None
        return self._results


def _on_target(result: Result) -> str:
    return f"{result.request.model.name} on {target_label(result.request.target)}"


class Monitor:
    """Reads one folder of outputs. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._runs: dict[str, tuple[Run, MonitorEntry]] = {}
        self._sweeps: dict[str, SweepResults] = {}
        self._configs: dict[Path, TrainingConfig] = {}
        self._ended: dict[Path, MonitorEntry] = {}
        self._trainings: dict[Path, TrainingProfile] = {}
        self._changed: dict[str, tuple[Row, ...]] = {}
        self._lists: dict[Path, tuple[tuple[int, int], tuple[MonitorEntry, ...]]] = {}
        self._profiles: dict[str, InferenceProfile] = {}

    # --- the list ---

    def entries(self) -> tuple[MonitorEntry, ...]:
        """Return everything, newest first; what cannot be read is left out.

        An inference profile that cannot be read has the state `damaged`.
        """
        entries: list[MonitorEntry] = []
        with contextlib.suppress(OSError):
            for folder in self.root.iterdir():
                is_run, is_profile = _is_run(folder.name), folder.name.startswith(PREFIX)
                if is_run:
                    with contextlib.suppress(StoreError):
                        entries.append(self._run_entry(folder))
                if (is_run or is_profile) and not folder.is_symlink():
                    entries += self._inference_entries(folder, is_profile=is_profile)
        for path in find_training(self.root / PROFILES):
            with contextlib.suppress(StoreError):
                entries.append(self._training_entry(path))
        return tuple(sorted(entries, key=lambda entry: entry.started_at, reverse=True))

    def _run_entry(self, path: Path) -> MonitorEntry:
        known = self._runs.get(path.name)
        if known is not None and known[0].state in ("finished", "incomplete"):
            return known[1]
        run = StoredRun(path).run
        entry = MonitorEntry(
            key=path.name,
            kind="sweep",
            title=f"{run.source}, {plural(run.planned, 'request')}",
            state=run.state,
            started_at=run.started_at,
            total=run.planned,
        )
        if run.state == "running":
            entry = _counted(entry, self._results(path))
        self._runs[path.name] = run, entry
        return entry

    def _results(self, path: Path) -> Sequence[Result]:
        return self._sweeps.setdefault(path.name, SweepResults(path)).read()

    def _training_entry(self, path: Path) -> MonitorEntry:
        if path in self._ended:
            return self._ended[path]
        if path not in self._configs:
            self._configs[path] = read_config(path)
        config, state = self._configs[path], state_of(path)
        newest = tail(path)[-1:]
        entry = MonitorEntry(
            key=path.relative_to(self.root).as_posix(),
            kind="training",
            title=" on ".join(filter(None, (config.model or config.id, config.target))),
            state=state,
            started_at=config.started_at,
            done=newest[0].index + 1 if newest else 0,
        )
        if state in ENDED:
            self._ended[path] = entry
        return entry

    def _inference_entries(self, folder: Path, *, is_profile: bool) -> tuple[MonitorEntry, ...]:
        try:
            status = (folder / PROFILES_FILE).stat()
        except OSError:
            return (_without_record(folder),) if is_profile and folder.is_dir() else ()
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._lists.get(folder)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            stored, damaged = read_profiles(folder)
        except StoreError:
            stored, damaged = (), ("of a newer version",)
        entries = []
        for stored_profile in stored:
            profile, key = (
                stored_profile.profile,
                stored_profile.folder.relative_to(self.root).as_posix(),
            )
            self._profiles[key] = profile
            entries.append(
                MonitorEntry(
                    key=key,
                    kind="inference",
                    title=f"{profile.model} on {', '.join(profile.options.targets)}",
                    state="finished",
                    started_at=profile.started_at,
                    done=sum(point.latency is not None for _, point in profile.points()),
                )
            )
        if is_profile and damaged and not entries:
            entries = [_plain_entry(folder, "damaged")]
        self._lists[folder] = stamp, tuple(entries)
        return tuple(entries)

    # --- one entry ---

    def details(self, entry: MonitorEntry) -> Details:
        """Return what the tabs show of an entry."""
        if entry.kind == "sweep":
            return self._sweep_details(entry)
        if entry.kind == "training":
            return _training_details(self._training(self.root / entry.key), entry)
        if (profile := self._profiles.get(entry.key)) is not None:
            return _inference_details(profile, entry)
        if entry.state == "damaged":
            _, damaged = read_profiles(self.root / entry.key)
            raise StoreError(damaged[0] if damaged else f"{entry.key} has no profile")
        alert = Alert(
            "error",
            "the process ended before the record was written",
            "measure the model again with `compilewatch profile infer`",
        )
        return Details(entry=entry, alerts=(alert,) if entry.state == "interrupted" else ())

    def _sweep_details(self, entry: MonitorEntry) -> Details:
        results = self._results(self.root / entry.key)
        entry = _counted(entry, results)
        largest = sorted(
            ((r.peak_memory_bytes / 1e6, _on_target(r)) for r in results if r.peak_memory_bytes),
            reverse=True,
        )
        seconds = summary.phase_seconds(results)
        return Details(
            entry=entry,
            figures=(
                ("results", f"{len(results):,} of {entry.total:,}"),
                ("without graph breaks", f"{entry.passed:,}"),
                ("graph breaks", f"{sum(r.graph_breaks or 0 for r in results):,}"),
            ),
            alerts=tuple(_sweep_alerts(entry, results)),
            statuses={status.value: n for status, n in summary.status_counts(results).items()},
            changes=self._changes(entry),
            phase_seconds={phase: value for phase, value in seconds.items() if value > 0},
            slowest=tuple((_on_target(r), spent(r)) for r in summary.slowest(results, LARGEST)),
            largest=tuple((name, value) for value, name in largest[:LARGEST]),
        )

    def _changes(self, entry: MonitorEntry) -> tuple[Row, ...]:
        """What differs from the baseline, of a run that has ended; read once."""
        if entry.state not in ENDED:
            return ()
        if entry.key not in self._changed:
            stored = StoredRun(self.root / entry.key)
            baseline = self.root / str(stored.run.baseline)
            rows: tuple[Row, ...] = ()
            if stored.run.baseline and baseline.is_dir():
                other = StoredRun(baseline)
                compared = compare(other.run, other.results(), stored.run, stored.results())
                rows = tuple(map(_change_row, compared.changes))
            self._changed[entry.key] = rows
        return self._changed[entry.key]

    def _training(self, path: Path) -> TrainingProfile:
        """Return a profile: complete if it has ended, its newest steps while it is written."""
        if path not in self._trainings:
            if state_of(path) == "running":
                return TrainingProfile(
                    path=path, state="running", config=read_config(path), steps=tail(path)
                )
            self._trainings[path] = read_training(path)
        return self._trainings[path]

    # --- files ---

    def artifacts(self, entry: MonitorEntry) -> tuple[ShownFile, ...]:
        """Return the files of an entry, by name; at most `FILES_LISTED`."""
        folder = self.root / entry.key
        files: list[ShownFile] = []
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if len(files) == FILES_LISTED:
                break
            if not any(part.startswith(".") for part in name.split("/")) and path.is_file():
                with contextlib.suppress(OSError):
                    files.append(ShownFile(name, path.stat().st_size))
        return tuple(files)

    def read(self, entry: MonitorEntry, name: str, most: int | None = None) -> bytes:
        """Return a file of an entry, or its beginning.

        Raises StoreError for a file that cannot be read, and for one outside of the entry's folder.
        """
        folder = (self.root / entry.key).resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise StoreError(f"{name} is outside of {folder}")
        try:
            with path.open("rb") as file:
                return file.read(-1 if most is None else most)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from None


# --- sweeps --------------------------------------------------------------------------------------


def _change_row(change: Change) -> Row:
    return {
        "model": change.model,
        "target": target_label(change.target),
        "change": "worse" if change.kind is ChangeKind.REGRESSION else change.kind.value,
        "before": change.before.value if change.before else "",
        "after": change.after.value if change.after else "",
        "why": change.reason,
    }


def _counted(entry: MonitorEntry, results: Sequence[Result]) -> MonitorEntry:
    passed = sum(result.status is Status.PASS for result in results)
    return replace(entry, done=len(results), passed=passed)


def _sweep_alerts(entry: MonitorEntry, results: Sequence[Result]) -> Iterator[Alert]:
    if entry.state == "interrupted":
        done = f"interrupted after {len(results)} of {entry.total} requests"
        yield Alert("error", done, "continue it with `compilewatch sweep --resume`")
    if entry.state == "finished" and entry.total is not None and len(results) < entry.total:
        missing = f"{entry.total - len(results)} planned requests have no result"
        yield Alert("error", missing, "see the notes of `compilewatch report`")
    for status in (Status.CRASHED, Status.TIMEOUT, Status.OOM, Status.MISMATCH, Status.ERROR):
        names = [result.request.model.name for result in results if result.status is status]
        if names:
            text = f"{len(names)} with the status {status}: {', '.join(names[:EXAMPLES])}"
            yield Alert("warning", text, f"run `compilewatch show {names[0]}`")
    reasons = Counter(label for r in results for label in set(map(reason_label, r.breaks)))
    for reason, count in reasons.most_common(3):
        yield Alert(
            "info",
            f"graph break in {plural(count, 'result')}: {reason}",
            "see the reason's page of the report for models, lines and a fix",
        )


# --- training ------------------------------------------------------------------------------------


def _training_details(profile: TrainingProfile, entry: MonitorEntry) -> Details:
    times, metrics = training.times_of(profile), training.metrics_of(profile)
    steps = profile.steps[-STEPS_SHOWN:]
    done = profile.steps[-1].index + 1 if profile.steps else 0
    rows, left_out = _drawn(steps)
    figures = [("steps", f"{done:,}")]
    if times.step is not None:
        figures.append(("median step", f"{times.step.median * 1e3:,.3g} ms"))
    if metrics.samples_per_second is not None:
        figures.append(("samples per second", f"{metrics.samples_per_second:,.4g}"))
    if metrics.last_loss is not None:
        figures.append(("newest loss", f"{metrics.last_loss:.4g}"))
    return Details(
        entry=replace(entry, done=done),
        figures=tuple(figures),
        alerts=tuple(
            Alert("warning", finding.found, finding.advice)
            for finding in training.findings(profile)
            if finding.code != "running"
        ),
        stage_rows=rows,
        left_out=left_out,
        shares={stage.value: share for stage, share in times.shares.items()},
        memory_rows=tuple(
            {"step": step.index, "resident MB": step.resident_bytes / 1e6}
            for step in steps
            if step.resident_bytes is not None
        ),
        operators=tuple(
            {"operator": row.name, "calls": row.calls, "own CPU ms": row.self_cpu_time_us / 1e3}
            for row in training.top_operators(profile, OPERATORS_SHOWN)
        ),
        explanation=training.explanation(profile),
    )


def _drawn(steps: Sequence[Step]) -> tuple[tuple[dict[str, float], ...], str]:
    """The rows of the chart of stages, and a sentence about the first step if it is left out.

    The first step compiles and takes many times as long: the others would be a line at zero.
    """
    rows = tuple(
        {"step": step.index, **{name.value: s * 1e3 for name, s in step.stages.items()}}
        for step in steps
    )
    spent = [sum(step.stages.values()) for step in steps]
    if len(spent) > 2 and spent[0] > max(SLOW_FACTOR * max(spent[1:]), SLOW_SECONDS):
        return rows[1:], f"Step {steps[0].index} took {spent[0]:,.3g} s and is not drawn."
    return rows, ""


# --- inference -----------------------------------------------------------------------------------


def _inference_details(profile: InferenceProfile, entry: MonitorEntry) -> Details:
    measured = [(t, p) for t, p in profile.points() if p.latency is not None]
    broken = analysis.broken(profile)
    operators = sorted(report.operators_of(profile), key=lambda o: -o.self_cpu_seconds)
    return Details(
        entry=entry,
        figures=tuple(_inference_figures(profile)),
        alerts=tuple(_inference_alerts(profile)),
        tones=target_tones(profile.options.targets),
        batch_rows=tuple(_batch_row(target, point) for target, point in measured),
        call_rows=tuple(
            {"call": f"{target.target}, batch {point.batch_size}"}
            | {report.PARTS[name]: value * 1e3 for name, value in point.segments.parts.items()}
            for target, point in measured
            if point.segments is not None
        ),
        break_rows=tuple(
            {
                "line": f"{cost.file.rpartition('/')[2]}:{cost.line}",
                "Python between graphs": cost.python_seconds * 1e3,
                "guards": cost.guard_seconds * 1e3,
                "eager operators": cost.eager_seconds * 1e3,
                "share of the call": f"{cost.share:.1%}",
                "reason": cost.reason,
            }
            for cost in (broken[1].breaks[:BREAKS_SHOWN] if broken is not None else ())
        ),
        operators=tuple(
            {"operator": row.name, "calls": row.calls, "own CPU ms": row.self_cpu_seconds * 1e3}
            for row in operators[:OPERATORS_SHOWN]
        ),
        explanation=tuple(f"{name}: {value}" for name, value in report.answers(profile)),
    )


def _inference_figures(profile: InferenceProfile) -> Iterator[tuple[str, str]]:
    best = analysis.fastest(profile)
    if best is None:
        return
    target, point = best
    assert point.latency is not None
    yield "best batch", f"{point.batch_size} on {target.target}"
    yield "samples per second", report.rate(point.samples_per_second)
    yield "latency per sample", milliseconds(point.latency.median_seconds / point.batch_size)
    if point.speedup is not None:
        yield "speed-up", f"{point.speedup:.2f} ×"


def _inference_alerts(profile: InferenceProfile) -> Iterator[Alert]:
    for target in profile.targets:
        failed = next((point for point in target.points if point.latency is None), None)
        if failed is not None:
            where = f"{target.target} was not measured at batch {failed.batch_size}"
            text = f"{where}: {failed.status}: {failed.detail}"
            yield Alert("error", text, "the other batch sizes and targets were measured")
    unstable = [
        f"{target.target} at batch {point.batch_size}"
        for target, point in profile.points()
        if point.latency is not None and not point.latency.stable
    ]
    if unstable:
        text = f"the rounds differ by more than 10 %: {', '.join(unstable)}"
        yield Alert("warning", text, "measure again on a calm machine, or trust the ratios only")
    for note in profile.notes:
        yield Alert("info", note, "see the report of the profile")


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
        PEAK: report.in_megabytes(memory.rss_peak_bytes if memory else None),
        CALL: report.in_megabytes(memory.call_peak_bytes if memory else None),
        DEVICE: report.in_megabytes(memory.device_peak_bytes if memory else None),
    }
    return {name: value for name, value in row.items() if value is not None}


def _without_record(folder: Path) -> MonitorEntry:
    """A profile that is being measured, or whose process has ended before its end."""
    pids = (path.name.rpartition("-")[2] for path in folder.glob(".scratch-profile-*"))
    return _plain_entry(folder, "running" if any(map(is_alive, pids)) else "interrupted")


def _plain_entry(folder: Path, state: str) -> MonitorEntry:
    name = folder.name.removeprefix(PREFIX)
    time = f"{name[:4]}-{name[4:6]}-{name[6:8]}T{name[9:11]}:{name[11:13]}:{name[13:15]}Z"
    return MonitorEntry(
        key=folder.name,
        kind="inference",
        title=name,
        state=state,
        started_at=time if _is_run(name) else "",
    )


def _is_run(name: str) -> bool:
    """Whether it is a name such as 20261122-224405-effd."""
    return RUN_ID.fullmatch(name) is not None
