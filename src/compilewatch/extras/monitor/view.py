"""What the monitor page shows: runs, sweeps and profiles in `outputs/`, read as they grow.

Nothing here writes, and nothing is read twice: what has ended is remembered, and files that grow
are read on from where the last reading stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compilewatch.analysis.comparison import compare
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.extras.monitor.entries import Alert, Details, MonitorEntry, Row
from compilewatch.extras.monitor.inference import InferenceReader
from compilewatch.extras.monitor.sweeps import SweepFigures, SweepReader
from compilewatch.extras.profiles.train import analysis
from compilewatch.extras.profiles.train.records import Step, TrainingConfig, TrainingProfile
from compilewatch.extras.profiles.train.store import (
    find_training,
    read_config,
    read_training,
    state_of,
    tail,
)
from compilewatch.records import Change, ChangeKind, Phase, Run, Status
from compilewatch.report.wording import plural
from compilewatch.store import Store, StoredRun
from compilewatch.store.outputs import RUN_ID

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


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """One file to look at or download, by its path below the entry's folder."""

    name: str
    bytes: int


class Monitor:
    """Reads one folder of outputs. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._store = Store(self.root)
        self._runs: dict[str, tuple[Run, MonitorEntry]] = {}
        self._sweeps: dict[str, SweepReader] = {}
        self._configs: dict[Path, TrainingConfig] = {}
        self._ended: dict[Path, MonitorEntry] = {}
        self._profiles: dict[Path, TrainingProfile] = {}
        self._changed: dict[str, tuple[Row, ...]] = {}
        self._inference = InferenceReader(self.root)

    # --- the list ---

    def entries(self) -> tuple[MonitorEntry, ...]:
        """Return everything, newest first; what cannot be read is left out."""
        found = [*self._run_entries(), *self._training_entries(), *self._inference.entries()]
        return tuple(sorted(found, key=lambda entry: entry.started_at, reverse=True))

    def _run_entries(self) -> list[MonitorEntry]:
        entries = []
        with contextlib.suppress(OSError):
            for path in self.root.iterdir():
                if RUN_ID.fullmatch(path.name):
                    with contextlib.suppress(StoreError):
                        entries.append(self._run_entry(path))
        return entries

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
            figures = self._sweep(path).read()
            passed = figures.statuses[Status.PASS.value]
            entry = replace(entry, done=figures.results, passed=passed)
        self._runs[path.name] = run, entry
        return entry

    def _training_entries(self) -> list[MonitorEntry]:
        entries = []
        for path in find_training(self.root / PROFILES):
            if path not in self._ended:
                with contextlib.suppress(StoreError):
                    entry = self._training_entry(path)
                    if entry.state in ENDED:
                        self._ended[path] = entry
                    entries.append(entry)
            else:
                entries.append(self._ended[path])
        return entries

    def _training_entry(self, path: Path) -> MonitorEntry:
        if path not in self._configs:
            self._configs[path] = read_config(path)
        config, state = self._configs[path], state_of(path)
        newest = tail(path)[-1:]
        return MonitorEntry(
            key=path.relative_to(self.root).as_posix(),
            kind="training",
            title=" on ".join(filter(None, (config.model or config.id, config.target))),
            state=state,
            started_at=config.started_at,
            done=newest[0].index + 1 if newest else 0,
        )

    # --- one entry ---

    def details(self, entry: MonitorEntry) -> Details:
        """Return what the tabs show of an entry."""
        if entry.kind == "sweep":
            return self._sweep_details(entry)
        if entry.kind == "training":
            return self._training_details(entry)
        return self._inference.details(entry)

    def _sweep(self, path: Path) -> SweepReader:
        return self._sweeps.setdefault(path.name, SweepReader(path))

    def _sweep_details(self, entry: MonitorEntry) -> Details:
        figures = self._sweep(self.root / entry.key).read()
        passed = figures.statuses[Status.PASS.value]
        entry = replace(entry, done=figures.results, passed=passed)
        return Details(
            entry=entry,
            figures=(
                ("results", f"{figures.results:,} of {entry.total:,}"),
                ("without graph breaks", f"{passed:,}"),
                ("graph breaks", f"{figures.graph_breaks:,}"),
            ),
            alerts=tuple(_sweep_alerts(entry, figures)),
            statuses=dict(figures.statuses),
            changes=self._changes(entry),
            phase_seconds={
                p.value: figures.phase_seconds[p.value]
                for p in Phase
                if figures.phase_seconds[p.value] > 0
            },
            slowest=figures.slowest(),
            largest=figures.largest(),
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

    def _training_details(self, entry: MonitorEntry) -> Details:
        profile = self._profile(self.root / entry.key)
        times, figures = analysis.times_of(profile), analysis.metrics_of(profile)
        step, steps = times.step, profile.steps[-STEPS_SHOWN:]
        rows, left_out = _drawn(steps)
        rate = figures.samples_per_second
        shown = [("steps", f"{profile.steps[-1].index + 1:,}" if profile.steps else "0")]
        if step is not None:
            shown.append(("median step", f"{step.median * 1e3:,.3g} ms"))
        if rate is not None:
            shown.append(("samples per second", f"{rate:,.4g}"))
        if figures.last_loss is not None:
            shown.append(("newest loss", f"{figures.last_loss:.4g}"))
        return Details(
            entry=replace(entry, done=profile.steps[-1].index + 1 if profile.steps else 0),
            figures=tuple(shown),
            alerts=tuple(
                Alert(level="warning", found=each.found, advice=each.advice)
                for each in analysis.findings(profile)
                if each.code != "running"
            ),
            stage_rows=rows,
            left_out=left_out,
            shares={stage.value: share for stage, share in times.shares.items()},
            memory_rows=tuple(
                {"step": each.index, "resident MB": each.resident_bytes / 1e6}
                for each in steps
                if each.resident_bytes is not None
            ),
            operators=tuple(
                {"operator": row.name, "calls": row.calls, "own CPU ms": row.self_cpu_time_us / 1e3}
                for row in analysis.top_operators(profile, 15)
            ),
            explanation=analysis.explanation(profile),
        )

    def _profile(self, path: Path) -> TrainingProfile:
        """Return a profile: complete if it has ended, its newest steps while it is written."""
        if path in self._profiles:
            return self._profiles[path]
        if state_of(path) == "running":
            return TrainingProfile(
                path=path, state="running", config=read_config(path), steps=tail(path)
            )
        profile = read_training(path)
        self._profiles[path] = profile
        return profile

    # --- files ---

    def artifacts(self, entry: MonitorEntry) -> tuple[ShownFile, ...]:
        """Return the files of an entry, by name; at most `FILES_LISTED`."""
        folder = self.root / entry.key
        found: list[ShownFile] = []
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if len(found) == FILES_LISTED:
                break
            if not any(part.startswith(".") for part in name.split("/")) and path.is_file():
                with contextlib.suppress(OSError):
                    found.append(ShownFile(name=name, bytes=path.stat().st_size))
        return tuple(found)

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


def _drawn(steps: Sequence[Step]) -> tuple[tuple[dict[str, float], ...], str]:
    """The rows of the chart of stages, and a sentence about the first step if it is left out.

    The first step compiles and takes many times as long: the others would be a line at zero.
    """
    rows = tuple(_stage_row(each) for each in steps)
    spent = [sum(each.stages.values()) for each in steps]
    if len(spent) > 2 and spent[0] > max(SLOW_FACTOR * max(spent[1:]), SLOW_SECONDS):
        return rows[1:], f"Step {steps[0].index} took {spent[0]:,.3g} s and is not drawn."
    return rows, ""


def _change_row(change: Change) -> Row:
    return {
        "model": change.model,
        "target": target_label(change.target),
        "change": "worse" if change.kind is ChangeKind.REGRESSION else change.kind.value,
        "before": change.before.value if change.before else "",
        "after": change.after.value if change.after else "",
        "why": change.reason,
    }


def _stage_row(step: Step) -> dict[str, float]:
    milliseconds = {stage.value: seconds * 1e3 for stage, seconds in step.stages.items()}
    return {"step": step.index, **milliseconds}


def _sweep_alerts(entry: MonitorEntry, figures: SweepFigures) -> Sequence[Alert]:
    alerts = []
    if entry.state == "interrupted":
        alerts.append(
            Alert(
                level="error",
                found=f"interrupted after {figures.results} of {entry.total} requests",
                advice="continue it with `compilewatch sweep --resume`",
            )
        )
    if entry.state == "finished" and entry.total is not None and figures.results < entry.total:
        missing = entry.total - figures.results
        alerts.append(
            Alert(
                level="error",
                found=f"{missing} planned requests have no result",
                advice="see the notes of `compilewatch report`",
            )
        )
    for status in (Status.CRASHED, Status.TIMEOUT, Status.OOM, Status.MISMATCH, Status.ERROR):
        names = figures.examples.get(status.value, ())
        if names:
            alerts.append(
                Alert(
                    level="warning",
                    found=f"{figures.statuses[status.value]} with the status {status}: "
                    f"{', '.join(names)}",
                    advice=f"run `compilewatch show {names[0]}`",
                )
            )
    for reason, count in figures.reasons.most_common(3):
        alerts.append(
            Alert(
                level="info",
                found=f"graph break in {plural(count, 'result')}: {reason}",
                advice="see the reason's page of the report for models, lines and a fix",
            )
        )
    return alerts
