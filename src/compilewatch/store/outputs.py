"""The folder of all runs."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from compilewatch.errors import StoreError, UsageError
from compilewatch.files import failed, point_latest, sync_folder, write_atomically
from compilewatch.records import Run
from compilewatch.records.plans import Plan
from compilewatch.store.deletion import clear_deleted, delete_run
from compilewatch.store.folder import RunFolder
from compilewatch.store.index import Answer, Found, Index
from compilewatch.store.runs import PLAN_FILE, RUN_FILE, StoredRun
from compilewatch.store.spool import Spool
from compilewatch.store.writer import RunWriter, earlier_seconds

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


class Store:
    """`outputs/`: the only reader and writer of results. Raises StoreError.

    Layout: docs/formats.md. Nothing is created before there is something to write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._index = Index(self.root)

    # --- reading ---

    def scan(self) -> tuple[tuple[StoredRun, ...], tuple[str, ...]]:
        """All runs that can be read, newest first, and one line for each that cannot."""
        try:
            names = sorted(p.name for p in self.root.iterdir() if RUN_ID.fullmatch(p.name))
        except FileNotFoundError:
            return (), ()
        except OSError as error:
            raise failed("read", self.root, error) from None
        runs: list[StoredRun] = []
        problems: list[str] = []
        for name in reversed(names):
            stored = StoredRun(self.root / name)
            try:
                _ = stored.run
            except StoreError as error:
                problems.append(str(error))
            else:
                runs.append(stored)
        return tuple(runs), tuple(problems)

    def runs(self) -> tuple[StoredRun, ...]:
        """All runs that can be read, newest first."""
        return self.scan()[0]

    def open(self, reference: str | Path = "latest") -> StoredRun:
        """A run by id, by the beginning of its id, by path, or `latest`.

        Raises UsageError where there is no such run, or several.
        """
        text = str(reference)
        if text == "latest":
            stored = self._latest()
        elif os.sep in text or text in (".", ".."):
            stored = StoredRun(Path(text).absolute())
            if not (stored.path / RUN_FILE).exists():
                raise UsageError(f"{text} is no run: it has no {RUN_FILE}")
        else:
            stored = StoredRun(self.root / self._full_id(text))
        _ = stored.run
        return stored

    def latest_id(self) -> str | None:
        """The run that the link `latest` names; None without one."""
        try:
            return (self.root / "latest").readlink().name
        except OSError:
            return None

    def unfinished(self) -> StoredRun:
        """The newest run that was interrupted. Raises UsageError where there is none."""
        for stored in self.runs():
            if stored.run.state == "interrupted":
                return stored
        raise UsageError(f"nothing to resume: every run in {self.root} is finished or still going")

    def lookup_many(self, keys: Sequence[str]) -> dict[str, Answer]:
        """The newest lasting answer to each key that has one, see `index.is_reusable`."""
        if not keys or not self.root.is_dir():
            return {}
        return self._index.find(keys)

    def outcomes(self, runs: Sequence[str]) -> list[Found]:
        """What these runs found, in the order of their ids. Raises StoreError."""
        return self._index.outcomes(runs) if runs else []

    # --- writing ---

    def create_run(self, run: Run, plan: Plan) -> RunWriter:
        """Make the folder of a new run and hold its lock; the run's id is given here.

        The folder appears complete or not at all.
        """
        while True:
            run = msgspec.structs.replace(run, id=new_run_id())
            fresh = self.root / f".new-{run.id}"
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                fresh.mkdir()
                break
            except FileExistsError:
                if not self.root.is_dir():
                    raise StoreError(
                        f"{self.root} is a file: choose another folder with --output"
                    ) from None
                time.sleep(0.001)
            except OSError as error:
                raise failed("create a run in", self.root, error) from None
        try:
            write_atomically(fresh / PLAN_FILE, msgspec.json.encode(plan))
            writer = RunWriter(fresh, run)
            try:
                writer.update()
                fresh.rename(self.root / run.id)
                writer.moved_to(self.root / run.id)
                sync_folder(writer.path)
                sync_folder(self.root)
                point_latest(self.root, run.id)
            except BaseException:
                writer.close()
                raise
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return self.create_run(run, plan)
            raise failed("create a run in", self.root, error) from None
        except StoreError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return writer

    def resume_run(self, stored: StoredRun) -> RunWriter:
        """Take an interrupted run up again, under its id.

        Raises UsageError for a finished run; StoreError for one that is being written.
        """
        run = stored.run
        if run.state == "incomplete":
            raise UsageError(f"run {run.id} is a merge: merge it again with the missing shards")
        if run.state == "finished":
            raise UsageError(f"run {run.id} is finished: there is nothing to resume")
        earlier = earlier_seconds(stored.path, run)
        writer = RunWriter(stored.path, run)
        try:
            writer.prepare()
            writer.update(state="running", finished_at=None, wall_seconds=earlier)
        except BaseException:
            writer.close()
            raise
        return writer

    def delete_run(self, stored: StoredRun) -> None:
        """Delete a run that is not being written; what only it has answered is asked again."""
        delete_run(stored.path)
        self._index.forget(stored.path.name)

    def clear_deleted(self) -> None:
        """Delete what was left of runs when a deletion was cut short."""
        clear_deleted(self.root)

    def files(self, run_id: str) -> RunFolder:
        """The files of a run, for sinks."""
        return RunFolder(self.open(run_id).path)

    @property
    def spool(self) -> Spool:
        """What waits to be published."""
        return Spool(self.root)

    def _latest(self) -> StoredRun:
        target = self.root / "latest"
        if (target / RUN_FILE).exists():
            return StoredRun(target.resolve())
        runs = self.runs()
        if not runs:
            raise UsageError(f"no runs in {self.root}: start one with `compilewatch sweep`")
        return runs[0]

    def _full_id(self, text: str) -> str:
        if (self.root / text / RUN_FILE).exists():
            return text
        ids = [stored.run.id for stored in self.runs()]
        found = [run_id for run_id in ids if run_id.startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"several runs begin with {text!r}: {', '.join(found[:5])}")
        near = get_close_matches(text, ids, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else "; see `compilewatch runs`"
        raise UsageError(f"no run {text!r} in {self.root}{hint}")


def new_run_id() -> str:
    """`YYYYmmdd-HHMMSS-ffff` in UTC; ffff counts 65536ths of the second, so that ids sort."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    fraction = nanoseconds * 65536 // 1_000_000_000
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(seconds))}-{fraction:04x}"
