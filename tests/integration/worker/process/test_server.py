"""The server by its protocol alone: real forks, children without torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from compilewatch.contract.messages import (
    Abandon,
    Exited,
    Kill,
    Ping,
    Pong,
    Ready,
    Report,
    Start,
    Started,
    read_marks,
    read_result,
)
from compilewatch.launchers.peer import Peer
from compilewatch.records import ClassBuild, ModelSpec, Request, Target, Tier

BARE = Path(__file__).parents[2] / "launchers" / "bare_worker.py"


class Server(Peer):
    """The launcher's end of a server."""

    def __init__(self, jobs: int, folder: Path) -> None:
        self.folder = folder
        begin = [sys.executable, str(BARE), "-P", "-m", "compilewatch.worker.process.server"]
        super().__init__([*begin, "--jobs", str(jobs)], {**os.environ, "TMPDIR": str(folder)})
        self._reports: list[Report] = []
        ready = self.next()
        assert isinstance(ready, Ready)
        self.ready = ready

    def start(self, number: int, name: str) -> Path:
        folder = self.folder / str(number)
        folder.mkdir()
        model = ModelSpec(source="library", name=name, build=ClassBuild(class_name=name))
        request = Request(model=model, target=Target(), key=str(number))
        self.send(Start(id=number, folder=str(folder), tier=Tier.FAKE, request=request))
        return folder

    def next(self) -> Report:
        while not self._reports:
            lines = self.receive(60.0)
            assert lines, "the server hung up"
            self._reports += [msgspec.json.decode(line, type=Report) for line in lines]
        return self._reports.pop(0)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[[int], Server]]:
    made: list[Server] = []

    def make(jobs: int) -> Server:
        made.append(Server(jobs, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.kill()
        each.close(60.0)


def expect_started(report: Report, number: int) -> int:
    assert isinstance(report, Started)
    assert report.id == number
    return report.pid


def expect_exited(report: Report, number: int) -> Exited:
    assert isinstance(report, Exited)
    assert report.id == number
    return report


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_leaves_its_result_in_its_folder_and_its_end_is_reported(
    peer: Callable[[int], Server], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """A server with two threads starts a process for each request."""
    monkeypatch.setenv("BARE_WORKER_THREADS", str(threads - 1))
    server = peer(1)
    assert server.ready.threads == threads
    folder = server.start(7, "ok")
    pid = expect_started(server.next(), 7)
    exited = expect_exited(server.next(), 7)
    assert (exited.exit_code, exited.signal) == (0, None)
    assert exited.peak_memory_bytes > 2**20
    answer = read_result(folder)
    assert answer is not None
    assert answer.result.request.key == "7"
    assert [phase.value for phase, _ in read_marks(folder)] == ["setup", "create", "done"]
    assert (folder / "artifacts/pid").read_text() == str(pid)
    hanging = server.start(8, "hang")
    pid = expect_started(server.next(), 8)
    wait_for(lambda: (hanging / "artifacts/pid").exists())
    assert os.getsid(pid) == pid
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert (b"compilewatch.worker.process.child" in command) is (threads == 2)
    server.close(60.0)
    assert server.process.returncode == 0
    assert not Path(f"/proc/{pid}").exists()


def test_children_are_sessions_of_their_own_and_write_into_their_folder(
    peer: Callable[[int], Server],
) -> None:
    server = peer(1)
    folder = server.start(1, "hang")
    pid = expect_started(server.next(), 1)
    wait_for(lambda: (folder / "artifacts/pid").exists())
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").resolve() == folder
    assert Path(f"/proc/{pid}/fd/1").resolve() == folder / "stdout"
    assert Path(f"/proc/{pid}/fd/2").resolve() == folder / "stderr"
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert any(
        line.split()[:5] == ["Max", "core", "file", "size", "0"] for line in limits.splitlines()
    )


def test_no_more_than_its_jobs_run_and_the_next_needs_no_order(
    peer: Callable[[int], Server],
) -> None:
    server = peer(1)
    for number in (1, 2, 3):
        server.start(number, "ok")
    order = [server.next() for _ in range(6)]
    assert [type(report) for report in order] == [Started, Exited] * 3
    assert [report.id for report in order if isinstance(report, Exited)] == [1, 2, 3]


def test_a_kill_reaches_the_child_and_is_reported(peer: Callable[[int], Server]) -> None:
    server = peer(1)
    server.start(1, "hang")
    expect_started(server.next(), 1)
    server.send(Kill(id=1, signal=signal.SIGKILL))
    assert expect_exited(server.next(), 1).signal == signal.SIGKILL
    server.send(Kill(id=1, signal=signal.SIGKILL))  # too late, and harmless
    server.send(Ping())
    assert server.next() == Pong()


def test_an_abandoned_child_gives_its_slot_away(peer: Callable[[int], Server]) -> None:
    server = peer(1)
    server.start(1, "hang")
    server.start(2, "ok")
    expect_started(server.next(), 1)
    server.send(Ping())
    assert server.next() == Pong()  # and not a second child
    server.send(Abandon(id=1))
    expect_started(server.next(), 2)
    expect_exited(server.next(), 2)


def test_a_server_leaves_nothing_in_the_temporary_folder(
    peer: Callable[[int], Server], tmp_path: Path
) -> None:
    server = peer(1)
    inside = next(tmp_path.glob("compilewatch-*"))
    (inside / "cache_of_a_killed_child").mkdir()
    server.close(60.0)
    assert server.process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
