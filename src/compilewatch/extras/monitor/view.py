"""What the monitor page shows: runs, sweeps and profiles in `outputs/`, read as they grow.

Nothing here writes, and nothing is read twice: what has ended is remembered, and files that grow
are read on from where the last reading stopped.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from compilewatch.analysis.comparison import compare
from compilewatch.contract.processes import is_alive
from compilewatch.errors import StoreError
from compilewatch.extras.profiles import check
from compilewatch.extras.profiles.records import InferenceProfile
from compilewatch.extras.profiles.store import PREFIX, PROFILES_FILE, read_profiles
from compilewatch.extras.profiles.training import TrainingProfile
from compilewatch.files import DamagedError
from compilewatch.records import Change, Result, Status
from compilewatch.report.wording import plural
from compilewatch.store import StoredRun
from compilewatch.store.journal import decode
from compilewatch.store.outputs import RUN_ID
from compilewatch.store.runs import RESULTS_FILE, result_lines

FILES_LISTED = 2000
"""The most files of one entry; a run of the library keeps more."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MonitorEntry:
    """A run, or a profile of training or inference: one line of the overview.

    `key` is its folder relative to `outputs/`. `done` of `total` requests or steps are there; of
    an inference profile, so many points were measured. `profile` is the latter, if there is one.
    """

    key: str
    kind: str
    title: str
    state: str
    started_at: str
    done: int | None = None
    total: int | None = None
    passed: int | None = None
    profile: InferenceProfile | None = None

    @property
    def label(self) -> str:
        return f"{self.started_at[:16].replace('T', ' ')} {self.kind} {self.title} ({self.state})"


class ShownFile(NamedTuple):
    """One file to look at or download, by its path below the entry's folder."""

    name: str
    bytes: int


class Monitor:
    """Reads one folder of outputs. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._read: dict[object, Any] = {}
        self._sweeps: dict[str, tuple[int, list[Result]]] = {}

    def _once(self, key: object, read: Callable[[], T]) -> T:
        if key not in self._read:
            self._read[key] = read()
        value: T = self._read[key]
        return value

    # --- the list ---

    def entries(self) -> tuple[MonitorEntry, ...]:
        """Return everything, newest first; what cannot be read is left out.

        An inference profile that cannot be read has the state `damaged`.
        """
        entries: list[MonitorEntry] = []
        with contextlib.suppress(OSError):
            for folder in self.root.iterdir():
                is_run = RUN_ID.fullmatch(folder.name) is not None
                is_profile = folder.name.startswith(PREFIX)
                if is_run:
                    with contextlib.suppress(StoreError):
                        entries.append(self._until_it_ends(folder, self._run_entry))
                if (is_run or is_profile) and not folder.is_symlink():
                    entries += self._inference_entries(folder, is_profile=is_profile)
        for path in check.find_training(self.root / "profiles"):
            with contextlib.suppress(StoreError):
                entries.append(self._until_it_ends(path, self._training_entry))
        return tuple(sorted(entries, key=lambda entry: entry.started_at, reverse=True))

    def _until_it_ends(self, path: Path, read: Callable[[Path], MonitorEntry]) -> MonitorEntry:
        """The entry of a folder, read again until it ends; an interrupted run may go on."""
        entry: MonitorEntry = self._read.get(path) or read(path)
        if entry.state in ("finished", "failed", "incomplete"):
            self._read[path] = entry
        return entry

    def _run_entry(self, path: Path) -> MonitorEntry:
        run = StoredRun(path).run
        entry = MonitorEntry(
            key=path.name,
            kind="sweep",
            title=f"{run.source}, {plural(run.planned, 'request')}",
            state=run.state,
            started_at=run.started_at,
            total=run.planned,
        )
        return self.counted(entry) if run.state == "running" else entry

    def counted(self, entry: MonitorEntry) -> MonitorEntry:
        """The entry of a run with the numbers of its results so far."""
        results = self.results(entry)
        passed = sum(result.status is Status.PASS for result in results)
        return replace(entry, done=len(results), passed=passed)

    def _training_entry(self, path: Path) -> MonitorEntry:
        config, newest = check.read_config(path), check.tail(path)[-1:]
        return MonitorEntry(
            key=path.relative_to(self.root).as_posix(),
            kind="training",
            title=" on ".join(filter(None, (config.model or config.id, config.target))),
            state=check.state_of(path),
            started_at=config.started_at,
            done=newest[0].index + 1 if newest else 0,
        )

    def _inference_entries(self, folder: Path, *, is_profile: bool) -> Sequence[MonitorEntry]:
        try:
            status = (folder / PROFILES_FILE).stat()
        except OSError:
            return (_without_record(folder),) if is_profile and folder.is_dir() else ()

        def read() -> Sequence[MonitorEntry]:
            try:
                stored, damaged = read_profiles(folder)
            except StoreError:
                stored, damaged = (), ("of a newer version",)
            entries = [
                MonitorEntry(
                    key=one.folder.relative_to(self.root).as_posix(),
                    kind="inference",
                    title=f"{one.profile.model} on {', '.join(one.profile.options.targets)}",
                    state="finished",
                    started_at=one.profile.started_at,
                    done=sum(point.latency is not None for _, point in one.profile.points()),
                    profile=one.profile,
                )
                for one in stored
            ]
            damaged_only = is_profile and damaged and not entries
            return [_plain_entry(folder, "damaged")] if damaged_only else entries

        return self._once((folder, status.st_mtime_ns, status.st_size), read)

    # --- one entry ---

    def results(self, entry: MonitorEntry) -> Sequence[Result]:
        """The results of a run so far, without damaged lines; reads on where it stopped."""
        path = self.root / entry.key / RESULTS_FILE
        at, results = self._sweeps.get(entry.key, (0, []))
        try:
            for start, line in result_lines(path, at):
                at = start + len(line)
                with contextlib.suppress(DamagedError):
                    results.append(decode(line, Result))
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from None
        self._sweeps[entry.key] = at, results
        return results

    def changes(self, entry: MonitorEntry) -> Sequence[Change]:
        """What differs from the baseline, of a run that has ended; read once."""

        def read() -> Sequence[Change]:
            stored = StoredRun(self.root / entry.key)
            baseline = self.root / str(stored.run.baseline)
            if not stored.run.baseline or not baseline.is_dir():
                return ()
            other = StoredRun(baseline)
            return compare(other.run, other.results(), stored.run, stored.results()).changes

        return () if entry.state == "running" else self._once(("changes", entry.key), read)

    def training(self, entry: MonitorEntry) -> TrainingProfile:
        """Return a profile: complete if it has ended, its newest steps while it is written."""
        path = self.root / entry.key
        if check.state_of(path) == "running":
            config, steps = check.read_config(path), check.tail(path)
            return TrainingProfile(path=path, state="running", config=config, steps=steps)
        return self._once(("profile", path), lambda: check.read_training(path))

    def inference(self, entry: MonitorEntry) -> InferenceProfile | None:
        """Return a profile of inference, None if its process has not written it yet, or never."""
        if entry.state == "damaged":
            _, damaged = read_profiles(self.root / entry.key)
            raise StoreError(damaged[0] if damaged else f"{entry.key} has no profile")
        return entry.profile

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

    def read(self, entry: MonitorEntry, name: str, most: int = -1) -> bytes:
        """Return a file of an entry, or its beginning of at most `most` bytes.

        Raises StoreError for a file that cannot be read, and for one outside of the entry's folder.
        """
        folder = (self.root / entry.key).resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise StoreError(f"{name} is outside of {folder}")
        try:
            with path.open("rb") as file:
                return file.read(most)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from None


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
        started_at=time if RUN_ID.fullmatch(name) else "",
    )
