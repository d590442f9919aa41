"""The end of a run: late resumes, and kills between the last result and the end of the sinks."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch import sinks
from compilewatch.api.sweep import resume
from compilewatch.config import Settings
from compilewatch.errors import UnreachableError, UsageError
from compilewatch.launchers import Observer
from compilewatch.records import Result, RunView
from compilewatch.store import RunFolder, RunWriter, Store, StoredRun
from tests.fake_launcher import FakeLauncher
from tests.integration.api.test_run import Newer
from tests.killing import die_at, in_child
from tests.sweeping import ASKED, MODELS, names, run_sweep, settings, store

LOCAL = {"sinks": ["html", "junit", "metrics_file"]}
SERVICE = {**LOCAL, "s3_url": "s3://x"}
WRITTEN = ("report/index.html", "junit.xml", "metrics.prom", "gate.json")


class Down:
    """A service that no run reaches."""

    name = "down"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFolder) -> str:
        raise UnreachableError("no server answers")


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository whose gate judges runs of a manifest, and a service that is down."""
    monkeypatch.setitem(sinks.SINKS, "down", f"{__name__}:Down")
    monkeypatch.setitem(sinks.ADDRESSES, "down", "s3.url")
    monkeypatch.delitem(sinks.ADDRESSES, "s3")
    (tmp_path / "pyproject.toml").write_text('[tool.compilewatch]\nown = "zoo"\n')
    monkeypatch.chdir(tmp_path)
    # The kernel keeps what a killed process wrote: waiting for the disk only takes time here.
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


class AtLastResult(Observer):
    """Calls `then` when the last result is stored."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then

    def on_result(self, result: Result, done: int, total: int) -> None:
        if result.request.model.name == ASKED[-1]:
            self.then()


def _assert_complete(folder: Path, run_id: str) -> None:
    stored = store(folder).open(run_id)
    assert stored.run.state == "finished"
    assert sorted(names(stored.results())) == sorted(spec.name for spec in MODELS)
    assert stored.damaged == ()
    assert [name for name in WRITTEN if not (stored.path / name).is_file()] == []
    assert store(folder).spool.sinks_of(run_id) == ("down",)
    (log,) = (stored.path / "logs").iterdir()
    assert b'"event":"run_finished"' in log.read_bytes()
    with pytest.raises(UsageError, match="nothing to resume"):
        store(folder).unfinished()


def _swept(folder: Path, **given: Any) -> RunView:
    return run_sweep(folder, source="manifest", settings=SERVICE, **given)


def _kill(folder: Path, at: int) -> bool:
    """Kill a sweep at a change to the disk after its last result; whether it came so far."""
    status = in_child(lambda: _swept(folder, observer=AtLastResult(lambda: die_at(at))))
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.matrix)])
def test_killed_after_the_last_result_a_run_is_completed_by_resume(
    tmp_path: Path, step: int
) -> None:
    """With step 1, each change to the disk between the last result and the end of the sinks."""
    kills = 0
    for at in range(1, 500, step):
        folder = tmp_path / str(at)
        if not _kill(folder, at):
            break
        kills += 1
        (stored,) = store(folder).runs()
        if stored.run.state != "finished":
            launcher = Newer()  # what only lacks its end needs no environment
            resume(store(folder), launcher, settings(folder, **SERVICE), stored)
            assert launcher.seen == []
        _assert_complete(folder, stored.run.id)
    assert kills >= 20 // step


def test_a_late_resume_leaves_a_finished_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the run, and waits for the lock while the sweep ends."""
    take_up = Store.resume_run
    (stored, all_stored), (read, has_read) = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(all_stored, b".")
        os.read(read, 1)

    def tell(self: Store, run: StoredRun) -> RunWriter:
        os.write(has_read, b".")
        return take_up(self, run)

    def late() -> None:
        monkeypatch.setattr(Store, "resume_run", tell)
        os.read(stored, 1)
        (run,) = store(tmp_path).runs()
        given = settings(tmp_path, **SERVICE)
        with pytest.raises(UsageError, match="is finished: there is nothing to resume"):
            resume(store(tmp_path), FakeLauncher(), given, run)

    child = os.fork()
    if child == 0:
        os._exit(in_child(late) != 0)
    view = _swept(tmp_path, observer=AtLastResult(wait))
    assert os.waitpid(child, 0)[1] == 0
    _assert_complete(tmp_path, view.run.id)
