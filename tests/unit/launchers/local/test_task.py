"""Watching a child: what it and those it forks hold of the memory."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from compilewatch.contract.messages import PHASES_FILE
from compilewatch.launchers.local import launcher as watch
from compilewatch.launchers.local.launcher import Task, resident_bytes
from compilewatch.records import Deadlines, Phase, Status, Tier
from tests import factories

PROGRAM = """
import os
reading, writing = os.pipe()
if os.fork() == 0:
    held = bytearray(b"x") * (200 * 2**20)
    os.write(writing, b"x")
    input()
    os._exit(0)
os.read(reading, 1)
print(flush=True)
os.wait()
"""


@pytest.mark.process
def test_what_a_fork_of_a_child_holds_counts_as_the_childs() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert 200 * 2**20 < resident_bytes(child.pid) < 400 * 2**20
        child.stdin.write(b"\n")
    assert resident_bytes(child.pid) == 0  # it has ended


LIMIT = 2**30


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A child in its first phase, which may take 10 s of 100 s in all."""
    deadlines = Deadlines(setup_seconds=10.0, total_seconds=100.0)
    request = factories.request(deadlines=deadlines, memory_limit_bytes=LIMIT)
    made = Task(request=request, tier=Tier.FAKE, folder=tmp_path)
    made.started(4711, time.monotonic())
    return made


@pytest.mark.parametrize(
    ("used", "seconds", "begun", "status"),
    [
        (LIMIT, 0.0, 0.0, None),
        (LIMIT + 1, 0.0, 0.0, Status.OOM),
        (0, 10.0, 0.0, None),
        (0, 10.5, 0.0, Status.TIMEOUT),
        (0, 99.0, 99.0, None),
        (0, 101.0, 101.0, Status.TIMEOUT),  # each phase in time: the last one has only begun
    ],
)
def test_a_child_is_given_its_memory_and_its_time_and_no_more(
    task: Task,
    used: int,
    seconds: float,
    begun: float,
    status: Status | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "resident_bytes", lambda pid: used if pid == 4711 else 0)
    start = task.started_monotonic
    if begun:
        marks = ((Phase.SETUP, start), (Phase.CREATE, start + begun))
        (task.folder / PHASES_FILE).write_bytes(msgspec.json.encode(marks))
    ending = task.over_limit(start + seconds)
    assert (ending[0] if ending else None) is status
    if ending is not None and begun:
        assert ending[2] == "did not finish within 100 s in total; was in create"
