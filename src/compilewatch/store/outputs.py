"""The folder of all stored runs."""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import compilewatch.store.runs as run_files
from compilewatch import files
from compilewatch.errors import StoreError, UsageError, did_you_mean
from compilewatch.records import Plan, Record, Result, Run, new_run_id, now
from compilewatch.store.index import StoredOutcome, StoredResult, index_of
from compilewatch.store.journal import decode
from compilewatch.store.runs import RESULTS_FILE, RUN_FILE

LAST_FILE = "last.json"
NEW_PREFIX, DELETED_PREFIX = ".new-", ".deleted-"
"""Folders of runs that are not complete yet, and of those that are not deleted completely."""
ABANDONED_SECONDS = 60.0
"""A run gets its name within milliseconds after its folder was made."""


class Spooled(Record, frozen=True, kw_only=True):
    """A run that waits. `since` is RFC 3339; `attempts` failed, the last one for `why`."""

    run: str
    since: str
    attempts: int = 0
    why: str = ""


class Delivered(Record, frozen=True, kw_only=True):
    """The last run that a sink accepted; `at` is RFC 3339."""

    run: str
    at: str


class Spool:
    """The spool of one outputs folder. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root / "spool"

    def waiting(self, sink: str) -> tuple[Spooled, ...]:
        """Return the publications that wait for a sink, oldest run first."""
        with files.explained("read", self._root):
            paths = sorted(p for p in (self._root / sink).glob("*.json") if p.name != LAST_FILE)
        # The file name is sufficient: a damaged file is still a waiting publication.
        return tuple(
            files.read_if_whole(p, Spooled) or Spooled(run=p.stem, since=now()) for p in paths
        )

    def sinks_of(self, run: str) -> tuple[str, ...]:
        """Return the sinks for which a publication of the run waits."""
        return tuple(sorted(path.parent.name for path in self._root.glob(f"*/{run}.json")))

    def put(self, sink: str, spooled: Spooled) -> None:
        """Add a publication, in place of an earlier one of the same run."""
        self._write(sink, f"{spooled.run}.json", spooled)

    def drop(self, sink: str, run: str) -> None:
        """Remove a publication, if it exists."""
        path = self._root / sink / f"{run}.json"
        with files.explained("delete", path):
            path.unlink(missing_ok=True)

    def delivered(self, sink: str, run: str) -> None:
        """Remove a publication that the sink has accepted, and record it as the last one."""
        self._write(sink, LAST_FILE, Delivered(run=run, at=now()))
        self.drop(sink, run)

    def last(self, sink: str) -> Delivered | None:
        """Return the last publication that a sink accepted."""
        return files.read_if_whole(self._root / sink / LAST_FILE, Delivered)

    def _write(self, sink: str, name: str, record: Record) -> None:
        files.write_atomically(self._root / sink / name, msgspec.json.encode(record))


RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


class Store:
    """`outputs/`: the only reader and writer of results. Raises StoreError.

    docs/formats.md describes the layout. Nothing is created until there is something to write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    # --- reading ---

    def scan(self) -> tuple[tuple[run_files.StoredRun, ...], tuple[str, ...]]:
        """Return all readable runs, newest first, and one line for each unreadable one."""
        try:
            names = sorted(p.name for p in self.root.iterdir() if RUN_ID.fullmatch(p.name))
        except FileNotFoundError:
            return (), ()
        except OSError as error:
            raise files.failed("read", self.root, error) from None
        runs: list[run_files.StoredRun] = []
        problems: list[str] = []
        for name in reversed(names):
            stored = run_files.StoredRun(self.root / name)
            try:
                _ = stored.run
            except StoreError as error:
                problems.append(str(error))
            else:
                runs.append(stored)
        return tuple(runs), tuple(problems)

    def runs(self) -> tuple[run_files.StoredRun, ...]:
        """Return all readable runs, newest first."""
        return self.scan()[0]

    def open(self, reference: str | Path = "latest") -> run_files.StoredRun:
        """Open a run by its id, the beginning of its id, its path, or `latest`.

        Raises UsageError if there is no such run or more than one.
        """
        text = str(reference)
        if text == "latest":
            stored = self._latest()
        elif os.sep in text or text in (".", ".."):
            stored = run_files.StoredRun(Path(text).absolute())
            if not (stored.path / RUN_FILE).exists():
                raise UsageError(f"{text} is not a run: it has no {RUN_FILE}")
        else:
            stored = run_files.StoredRun(self.root / self._full_id(text))
        _ = stored.run
        return stored

    def latest_id(self) -> str | None:
        """Return the id of the run that the link `latest` points to, None without a link."""
        try:
            return (self.root / "latest").readlink().name
        except OSError:
            return None

    @contextlib.contextmanager
    def latest_kept(self) -> Iterator[None]:
        """Within this context, new runs do not become the latest one, which people look at."""
        before = self.latest_id()
        try:
            yield
        finally:
            if before is not None and (self.root / before).is_dir():
                with files.explained("write", self.root / "latest"):
                    files.point_latest(self.root, before)

    def unfinished(self) -> run_files.StoredRun:
        """Return the newest interrupted run. Raises UsageError if there is none."""
        for stored in self.runs():
            if stored.run.state == "interrupted" and not stored.run.merged_from:
                return stored
        raise UsageError(f"nothing to resume: all runs in {self.root} are finished or running")

    def lookup_many(self, keys: Sequence[str]) -> dict[str, StoredResult]:
        """Return the newest reusable result for each key that has one; see `index.is_reusable`."""
        missing = set(keys)
        results: dict[str, StoredResult] = {}
        for path in sorted(self.root.glob(f"[0-9]*/{RESULTS_FILE}"), reverse=True):  # by time
            if not missing:
                break
            lines = {line.key: line for line in index_of(path).lines if line.key in missing}
            data = (files.read_if_there(path) if lines else None) or b""
            for key, line in lines.items():
                with contextlib.suppress(
                    files.DamagedError, StoreError
                ):  # deleted or replaced just now
                    result = decode(data[slice(*line.place)], Result)
                    if result.request.key == key:
                        results[key] = StoredResult(result, path.parent.name)
            missing -= results.keys()
        return results

    def outcomes(self, runs: Sequence[str]) -> tuple[list[StoredOutcome], list[str]]:
        """What these runs found, in the order of their ids, and one line for each damaged line.

        A resumed run may have two lines for one model and target; the later one counts. Raises
        StoreError.
        """
        outcomes: list[StoredOutcome] = []
        damaged: list[str] = []
        for run in sorted(runs):
            index = index_of(self.root / run / RESULTS_FILE)
            newest = {(o.model, o.target): o for _, _, o in index.lines}
            outcomes += (newest[place] for place in sorted(newest))
            damaged += index.damaged
        return outcomes, damaged

    # --- writing ---

    def create_run(self, run: Run, plan: Plan) -> run_files.RunWriter:
        """Create the folder of a new run, give the run its id, and lock it.

        The folder appears complete or not at all.
        """
        self._clear_new()
        with files.explained("create a run in", self.root):
            if self.root.exists() and not self.root.is_dir():
                raise StoreError(f"{self.root} is a file: choose another folder with --output")
            self.root.mkdir(parents=True, exist_ok=True)
            while True:
                run = msgspec.structs.replace(run, id=new_run_id())
                fresh = self.root / f"{NEW_PREFIX}{run.id}"
                try:
                    fresh.mkdir()
                    return self._filled(fresh, run, plan)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                time.sleep(0.001)  # another process has a run of this instant

    def _filled(self, fresh: Path, run: Run, plan: Plan) -> run_files.RunWriter:
        """Write a new run, and give its folder its name. Raises OSError, if that is taken, too."""
        try:
            files.write_atomically(fresh / run_files.PLAN_FILE, msgspec.json.encode(plan))
            writer = run_files.RunWriter(fresh, run)
            try:
                writer.update()
                fresh.rename(self.root / run.id)
                writer.path = self.root / run.id
                files.sync_folder(writer.path)
                files.sync_folder(self.root)
                files.point_latest(self.root, run.id)
            except BaseException:
                writer.close()
                raise
        except (OSError, StoreError):
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return writer

    def resume_run(self, stored: run_files.StoredRun) -> run_files.RunWriter:
        """Continue an interrupted run under its id.

        Raises UsageError if the run is finished, and StoreError if it is being written.
        """
        if stored.run.merged_from:
            raise UsageError(f"run {stored.run.id} is merged: merge its parts again")
        writer = run_files.RunWriter(stored.path, stored.run)
        try:
            # Only now, since the writer holds the lock: another process may just have finished it.
            run = writer.run = run_files.StoredRun(stored.path).run
            if run.state == "finished":
                raise UsageError(f"run {run.id} is finished: there is nothing to resume")
            earlier = run_files.earlier_seconds(stored.path, run)
            writer.prepare()
            writer.update(state="running", finished_at=None, wall_seconds=earlier)
        except BaseException:
            writer.close()
            raise
        return writer

    def delete_run(self, stored: run_files.StoredRun) -> None:
        """Delete a run that is not being written. Results that only it has are evaluated again."""
        path = stored.path
        hidden = path.with_name(DELETED_PREFIX + path.name)
        with files.explained("delete", path), contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path / RESULTS_FILE, os.O_RDWR)
                stack.callback(os.close, descriptor)
                run_files.hold(descriptor, path)
            path.rename(hidden)
            files.sync_folder(path.parent)
            shutil.rmtree(hidden)

    def clear_deleted(self) -> None:
        """Delete the rest of runs whose deletion was interrupted."""
        for path in self.root.glob(f"{DELETED_PREFIX}*"):
            with files.explained("delete", path):
                shutil.rmtree(path)

    def _clear_new(self) -> None:
        """Delete what killed processes left of runs that they were about to create."""
        with contextlib.suppress(OSError):  # another process may delete them as well
            for path in self.root.glob(f"{NEW_PREFIX}*"):
                age = time.time() - path.stat().st_mtime
                if age > ABANDONED_SECONDS and not run_files.is_locked(path / RESULTS_FILE):
                    shutil.rmtree(path)

    def files(self, run_id: str) -> run_files.RunFolder:
        """Return the files of a run, for sinks."""
        return run_files.RunFolder(self.open(run_id).path)

    @property
    def spool(self) -> Spool:
        """The publications that wait to be sent."""
        return Spool(self.root)

    def _latest(self) -> run_files.StoredRun:
        target = self.root / "latest"
        if (target / RUN_FILE).exists():
            return run_files.StoredRun(target.resolve())
        runs = self.runs()
        if not runs:
            raise UsageError(f"no runs in {self.root}: start one with `compilewatch sweep`")
        return runs[0]

    def _full_id(self, text: str) -> str:
        if (self.root / text / RUN_FILE).exists():
            return text
        runs, problems = self.scan()
        ids = [stored.run.id for stored in runs]
        matching = [run_id for run_id in ids if run_id.startswith(text)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise UsageError(f"several runs begin with {text!r}: {', '.join(matching[:5])}")
        if unreadable := [line for line in problems if f"{os.sep}{text}" in line]:
            raise StoreError(unreadable[0])
        hint = did_you_mean(text, ids, most=3) or "; see `compilewatch runs`"
        raise UsageError(f"no run {text!r} in {self.root}{hint}")
