"""Writing the files of one training profile. `steps.jsonl` grows, all others appear complete."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import msgspec

from compilewatch.extras.profiles.train.records import (
    CONFIG_FILE,
    STEPS_FILE,
    SUMMARY_FILE,
    Step,
    TrainingConfig,
    TrainingSummary,
    WrittenFile,
)
from compilewatch.files import append_all, lock, replace, sync, sync_folder
from compilewatch.records import Record
from compilewatch.records.clock import new_run_id

SYNC_SECONDS = 1.0
"""How often `steps.jsonl` is synced: a killed process loses no step, a power failure this much."""


class TrainingFolder:
    """The folder of one profile. Raises OSError.

    The lock of `steps.jsonl` is held until `close`, or until the process ends, so that readers know
    whether the profile is still being written.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            self.path = root.absolute() / new_run_id()
            try:
                self.path.mkdir()
                break
            except FileExistsError:
                time.sleep(0.001)
        self._steps = -1
        self._synced = time.monotonic()

    @property
    def id(self) -> str:
        return self.path.name

    def begin(self, config: TrainingConfig) -> None:
        """Write `config.json`, and lock the empty `steps.jsonl`."""
        self.write(CONFIG_FILE, config)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._steps = os.open(self.path / STEPS_FILE, flags, 0o644)
        lock(self._steps, seconds=0.0)
        sync_folder(self.path)

    def append(self, step: Step) -> None:
        """Append one line, which other processes can read when this returns."""
        if self._steps < 0:
            raise OSError(f"{STEPS_FILE} is not open")
        append_all(self._steps, msgspec.json.encode(step) + b"\n")
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            sync(self._steps)
            self._synced = time.monotonic()

    def steps(self) -> bytes:
        """Return the lines so far."""
        return (self.path / STEPS_FILE).read_bytes()

    def write(self, name: str, record: Record) -> None:
        """Write a file of JSON atomically."""
        self.write_bytes(name, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")

    def write_bytes(self, name: str, data: bytes) -> None:
        replace(self.path / name, data, durable=True)

    def finish(self, summary: TrainingSummary) -> None:
        """Write the summary, which makes the profile complete."""
        if self._steps >= 0:
            sync(self._steps)
        written = {
            path.name: _measured(path)
            for path in sorted(self.path.iterdir())
            if path.is_file() and not path.name.startswith(".") and path.name != SUMMARY_FILE
        }
        self.write(SUMMARY_FILE, msgspec.structs.replace(summary, files=written))
        sync_folder(self.path)

    def close(self) -> None:
        """Release the lock. May be called twice."""
        descriptor, self._steps = self._steps, -1
        if descriptor >= 0:
            os.close(descriptor)


def _measured(path: Path) -> WrittenFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return WrittenFile(bytes=path.stat().st_size, sha256=digest)
