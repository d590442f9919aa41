"""Stored profiles: `profiles.jsonl` with their records, and the folders with their files.

A profile on its own is `outputs/profile-<id>/`; those of a run are in the folder of the run. The
files of a profile are written first and its line last, so that a folder without a line is a profile
that was interrupted, whatever it contains.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compilewatch.errors import StoreError, UsageError, did_you_mean
from compilewatch.extras.profiles.records import InferenceProfile, Samples
from compilewatch.files import (
    DamagedError,
    explained,
    from_json,
    point_latest,
    read_if_there,
    write_atomically,
)
from compilewatch.store.journal import append_record, read_records

PROFILES_FILE = "profiles.jsonl"
SAMPLES_FILE = "raw_values.json"
PREFIX = "profile-"
LATEST = "latest-profile"


@dataclass(frozen=True, kw_only=True)
class StoredProfile:
    """One profile with the folder of its files."""

    profile: InferenceProfile
    folder: Path

    def measured(self) -> tuple[InferenceProfile, tuple[Samples, ...]]:
        """Return it with its measured values, which are empty if deleted. Raises StoreError."""
        path = self.folder / SAMPLES_FILE
        try:
            data = read_if_there(path) or b"[]"
            return self.profile, from_json(data, tuple[Samples, ...])
        except DamagedError as error:
            raise StoreError(f"{path} is damaged ({error}): profile the model again") from None


class ProfileFolder:
    """The folder of one profile that is being written. Raises StoreError.

    `root` is the folder of `profiles.jsonl`, `place` that of the files relative to it.
    """

    def __init__(self, root: Path, place: str = ".") -> None:
        self.root = root
        self.place = place
        self.path = root / place
        self.scratch = root / f".scratch-profile-{os.getpid()}"
        with explained("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.scratch.mkdir(exist_ok=True)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by relative path, each atomically."""
        for name, data in files.items():
            write_atomically(self.path / name, data, durable=False)

    def adopt(self, source: Path, name: str) -> None:
        """Move a file that a subject made into the folder; nothing happens if there is none."""
        target = self.path / name
        with explained("write", target), suppress(FileNotFoundError):
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)

    def close(self) -> None:
        """Delete what subjects left behind; a folder without any file disappears too."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()

    def finish(self, profile: InferenceProfile) -> None:
        """Append the record, durably: from now on the profile exists."""
        append_record(self.root / PROFILES_FILE, profile)
        if self.root.name.startswith(PREFIX):
            with suppress(OSError):  # a file system without links has none
                point_latest(self.root.parent, self.root.name, LATEST)


def adopt_profiles(source: Path, target: Path) -> None:
    """Copy the profiles of one run into another, with their files."""
    for profile in read_profiles(source)[0]:
        folder = target / profile.profile.place
        if folder.exists():
            continue  # of another shard, or of a part that is merged twice
        with explained("write", folder):
            shutil.copytree(profile.folder, folder)
        append_record(target / PROFILES_FILE, profile.profile)


def read_profiles(root: Path) -> tuple[tuple[StoredProfile, ...], tuple[str, ...]]:
    """Return the profiles of a folder, and one line for each that cannot be read.

    Raises StoreError if a newer compilewatch wrote one.
    """
    profiles, damaged = read_records(root / PROFILES_FILE, InferenceProfile)
    stored = (StoredProfile(profile=profile, folder=root / profile.place) for profile in profiles)
    return tuple(stored), damaged


def profile_folders(root: Path) -> Iterator[Path]:
    """Yield the folders that contain profiles, newest first: their own, and those of runs."""
    folders = [path.parent for path in root.glob(f"*/{PROFILES_FILE}")]
    for folder in sorted(folders, key=lambda path: path.name.removeprefix(PREFIX), reverse=True):
        if not folder.is_symlink():
            yield folder


def open_profile(root: Path, reference: str, model: str | None = None) -> StoredProfile:
    """Open a profile by its id or the beginning of it, the path of its folder, or `latest`.

    A folder with several models needs `model`. Raises UsageError if there is none.
    """
    profiles, damaged = read_profiles(_folder_of(root, reference))
    models = {stored.profile.model: stored for stored in profiles}
    names = ", ".join(sorted(models))
    if model is None and len(models) > 1:
        raise UsageError(f"{reference} has several models, choose one with --model: {names}")
    if models and (model is None or model in models):
        return models[model or next(iter(models))]
    if damaged:
        raise StoreError(damaged[0])
    if models:
        raise UsageError(f"{reference} has no profile of {model}; it has {names}")
    raise UsageError(f"{reference} has no complete profile: it was interrupted, measure again")


def _folder_of(root: Path, reference: str) -> Path:
    if reference == "latest":
        folder = next(profile_folders(root), None)
        if folder is None:
            raise UsageError(f"no profiles in {root}: make one with `compilewatch profile infer`")
        return folder
    if os.sep in reference or reference in (".", ".."):
        if not Path(reference).is_dir():
            raise UsageError(f"{reference} is not a folder of a profile")
        return Path(reference).absolute()
    names = [path.name for path in profile_folders(root)]
    alike = [n for n in names if n.removeprefix(PREFIX).startswith(reference.removeprefix(PREFIX))]
    if len(alike) > 1:
        raise UsageError(f"several profiles begin with {reference!r}: {', '.join(alike[:5])}")
    name = alike[0] if alike else reference
    if not (root / name).is_dir():
        raise UsageError(f"no profile {reference!r} in {root}{did_you_mean(reference, names)}")
    return root / name
