"""The server by its protocol alone: real forks, children without torch."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.contract import messages
from compilewatch.contract.messages import Exited, Kill, Ping, Pong, Ready, Report, Start, Started
from compilewatch.launchers.peer import Peer
from compilewatch.records import ClassBuild, ModelSpec, Request, Target, Tier

BARE = Path(__file__).parents[2] / "launchers" / "bare_worker.py"


class Server(Peer):
    """The launcher's end of a server with one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        begin = [sys.executable, str(BARE), "-P", "-m", "compilewatch.worker.process.server"]
        super().__init__([*begin, "--jobs", "1"], {**os.environ, "TMPDIR": str(folder)})
        self._reports: list[Report] = []
        self.ready = self.next(Ready)

    def start(self, number: int, name: str) -> Path:
        folder = self.folder / str(number)
        folder.mkdir()
        model = ModelSpec(source="library", name=name, build=ClassBuild(class_name=name))
        request = Request(model=model, target=Target(), key=str(number))
        self.send(Start(folder=str(folder), tier=Tier.FAKE, request=request))
        return folder

    def next(self, kind: type, number: int | None = None) -> Any:
        while not self._reports:
            lines = self.receive(60.0)
            assert lines, "the server hung up"
            self._reports += [msgspec.json.decode(line, type=Report) for line in lines]
        report = self._reports.pop(0)
        assert isinstance(report, kind)
        assert number is None or Path(report.folder).name == str(number)
        return report


@pytest.fixture(params=[1, 2])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """With one thread, and with two: that one starts a process for each request."""
    monkeypatch.setenv("BARE_WORKER_THREADS", str(request.param - 1))
    made = Server(tmp_path)
    assert made.ready.threads == request.param
    yield made
    made.kill()
    made.close(60.0)


def test_a_child_leaves_its_result_in_its_folder_and_its_end_is_reported(
    server: Server, tmp_path: Path
) -> None:
    folder = server.start(7, "ok")
    pid = server.next(Started, 7).pid
    exited = server.next(Exited, 7)
    assert exited.code == 0
    assert exited.peak_memory_bytes > 2**20
    answer = messages.read_result(folder)
    assert answer is not None
    assert answer.result.request.key == "7"
    assert [p.value for p, _ in messages.read_marks(folder)] == ["setup", "create", "done"]
    assert (folder / "artifacts/pid").read_text() == str(pid)
    inside = next(tmp_path.glob("compilewatch-*"))
    (inside / "cache_of_a_killed_child").mkdir()
    server.close(60.0)
    assert server.process.returncode == 0
    assert list(tmp_path.iterdir()) == [folder]


def test_a_child_is_a_session_of_its_own_and_ends_with_its_server(server: Server) -> None:
    folder = server.start(1, "hang")
    pid = server.next(Started, 1).pid
    while not (folder / "artifacts/pid").exists():
        time.sleep(0.01)
    process = Path(f"/proc/{pid}")
    assert os.getsid(pid) == pid
    is_program = b"compilewatch.worker.process.child" in (process / "cmdline").read_bytes()
    assert is_program is (server.ready.threads == 2)
    assert (process / "cwd").resolve() == folder
    assert (process / "fd/1").resolve() == folder / "stdout"
    assert (process / "fd/2").resolve() == folder / "stderr"
    assert (process / "oom_score_adj").read_text().strip() == "1000"
    limits = [line.split() for line in (process / "limits").read_text().splitlines()]
    assert ["Max", "core", "file", "size", "0"] in [line[:5] for line in limits]
    server.close(60.0)
    assert server.process.returncode == 0
    assert not process.exists()


def test_one_child_runs_at_a_time_until_it_ends_is_killed_or_abandoned(server: Server) -> None:
    for number, behaviour in enumerate(["ok", "ok", "hang", "hang", "ok"]):
        server.start(number, behaviour)
    for number in (0, 1):
        server.next(Started, number)
        server.next(Exited, number)
    server.next(Started, 2)
    server.send(Ping())
    server.next(Pong)  # and not a second child
    kill = Kill(folder=str(server.folder / "2"), signal=signal.SIGKILL)
    server.send(kill)
    assert server.next(Exited, 2).code == -signal.SIGKILL
    server.send(kill)  # too late, and harmless
    server.next(Started, 3)
    server.send(messages.Abandon(folder=str(server.folder / "3")))
    server.next(Started, 4)
    server.next(Exited, 4)
