"""What the monitor page shows: runs, sweeps and profiles in `outputs/`, read as they grow.

Nothing here writes, and nothing is read twice: what has ended is remembered, and files that grow
are read on from where the last reading stopped.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from compilewatch.contract.processes import is_alive
from compilewatch.errors import OsErrorsAs, StoreError
from compilewatch.extras.profiles import check
from compilewatch.extras.profiles.records import InferenceProfile
from compilewatch.extras.profiles.store import PREFIX, PROFILES_FILE, read_profiles
from compilewatch.extras.profiles.training import TrainingConfig, TrainingProfile
from compilewatch.files import DamagedError, explained
from compilewatch.records import Result, Run, started
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

    `key` is its folder relative to `outputs/`. `about` is its record, None for a profile of
    inference that has none that can be read.
    """

    key: str
    state: str
    about: Run | TrainingConfig | InferenceProfile | None

    @property
    def kind(self) -> str:
        if isinstance(self.about, Run):
            return "sweep"
        return "training" if isinstance(self.about, TrainingConfig) else "inference"

    @property
    def title(self) -> str:
        match self.about:
            case Run() as run:
                return f"{run.source}, {plural(run.planned, 'request')}"
            case TrainingConfig() as config:
                return " on ".join(filter(None, (config.model or config.id, config.target)))
            case InferenceProfile() as profile:
                return f"{profile.model} on {', '.join(profile.options.targets)}"
        return self.key.removeprefix(PREFIX)

    @property
    def started_at(self) -> str:
        """RFC 3339; "" where a folder's name does not say it."""
        if self.about is not None:
            return self.about.started_at
        name = self.title
        return f"{started(name):%Y-%m-%dT%H:%M:%SZ}" if RUN_ID.fullmatch(name) else ""

    @property
    def label(self) -> str:
        return f"{self.started_at[:16].replace('T', ' ')} {self.kind} {self.title} ({self.state})"


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
        return MonitorEntry(key=path.name, state=run.state, about=run)

    def _training_entry(self, path: Path) -> MonitorEntry:
        check.tail(path)  # what cannot be read is left out
        key = path.relative_to(self.root).as_posix()
        return MonitorEntry(key=key, state=check.state_of(path), about=check.read_config(path))

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
                    state="finished",
                    about=one.profile,
                )
                for one in stored
            ]
            damaged_only = is_profile and damaged and not entries
            damage = MonitorEntry(key=folder.name, state="damaged", about=None)
            return [damage] if damaged_only else entries

        return self._once((folder, status.st_mtime_ns, status.st_size), read)

    # --- one entry ---

    def results(self, entry: MonitorEntry) -> Sequence[Result]:
        """The results of a run so far, without damaged lines; reads on where it stopped."""
        path = self.root / entry.key / RESULTS_FILE
        at, results = self._sweeps.get(entry.key, (0, []))
        with explained("read", path):
            for start, line in result_lines(path, at):
                at = start + len(line)
                with contextlib.suppress(DamagedError):
                    results.append(decode(line, Result))
        self._sweeps[entry.key] = at, results
        return results

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
        return entry.about if isinstance(entry.about, InferenceProfile) else None

    # --- files ---

    def artifacts(self, entry: MonitorEntry) -> dict[str, int]:
        """Return the files of an entry by path below its folder, at most `FILES_LISTED`: bytes."""
        folder = self.root / entry.key
        sizes: dict[str, int] = {}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if not any(part.startswith(".") for part in name.parts) and path.is_file():
                with contextlib.suppress(OSError):
                    sizes[name.as_posix()] = path.stat().st_size
            if len(sizes) == FILES_LISTED:
                break
        return sizes

    def read(self, entry: MonitorEntry, name: str, most: int = -1) -> bytes:
        """Return a file of an entry, or its beginning of at most `most` bytes.

        Raises StoreError for a file that cannot be read, and for one outside of the entry's folder.
        """
        folder = (self.root / entry.key).resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise StoreError(f"{name} is outside of {folder}")
        with OsErrorsAs(StoreError, f"{path} cannot be read"), path.open("rb") as file:
            return file.read(most)


def _without_record(folder: Path) -> MonitorEntry:
    """A profile that is being measured, or whose process has ended before its end."""
    pids = (path.name.rpartition("-")[2] for path in folder.glob(".scratch-profile-*"))
    state = "running" if any(map(is_alive, pids)) else "interrupted"
    return MonitorEntry(key=folder.name, state=state, about=None)
