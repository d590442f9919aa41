"""What a sandbox holds for an ordinary user, and that killing its parts early leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.errors import SandboxError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox import (
    MemoryGuard,
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
    Supervised,
    policy,
)
from tests.integration.extras.executor.sandbox.test_attacks import marked

ORDINARY_USER = 65_432

SHARED = """
import mmap, time
held = mmap.mmap(-1, 300 << 20)
for place in range(0, 300 << 20, 4096):
    held[place] = 1
time.sleep(5)
"""

FORKS = """
import os, sys, time
for number in range(200):
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
"""

FILES = """
for number in range(5000):
    open(f"/tmp/{number}", "w").close()
"""

WAITS = "import time; time.sleep(60)"

RUN = """
import json, sys
from compilewatch.extras.executor import sandbox
source = sys.stdin.read()
limits = sandbox.SandboxLimits(deadline_seconds=10, memory_bytes=128 << 20, disk_files=1000)
result = sandbox.run(["python", "main.py"], files={"main.py": source}, limits=limits)
print(json.dumps([result.ending, result.memory_guard, result.exit_code, result.survivors]))
"""


def as_ordinary_user(code: str, source: str = "") -> list[Any]:
    """Run code of ours as a user without privileges; what it printed."""
    user = ORDINARY_USER if os.geteuid() == 0 else None
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=source,
        capture_output=True,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fields = json.loads(done.stdout)
    assert isinstance(fields, list)
    return fields


@pytest.mark.parametrize(
    ("source", "ending"),
    [
        (SHARED, SandboxEnding.MEMORY),
        (FILES, SandboxEnding.DISK_FILES),
        (FORKS, SandboxEnding.EXITED),
    ],
    ids=["memory", "files", "processes"],
)
def test_an_ordinary_user_is_held_to_the_same_limits(source: str, ending: SandboxEnding) -> None:
    """Takes about a second each: without a cgroup, other code holds the limits."""
    result, guard, exit_code, survivors = as_ordinary_user(RUN, source)
    assert (result, survivors) == (ending, 0)
    assert guard != "cgroup_v1"
    if ending is SandboxEnding.EXITED:
        assert exit_code == 1  # BlockingIOError of fork


@pytest.fixture
def shown() -> Iterator[Path]:
    """A folder that every user can read."""
    with tempfile.TemporaryDirectory(prefix="compilewatch-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.matrix
def test_whenever_the_supervisor_is_killed_nothing_is_left(shown: Path) -> None:
    """Takes about five seconds: 20 kills at moments spread over the start of a sandbox."""
    run = sandbox.planned(["python", "-c", WAITS, str(shown)], visible=[shown])
    killed = set()
    for number in range(20):
        supervised = Supervised(run)
        time.sleep(0.08 + 0.012 * number)
        supervised._process.kill()
        killed.add(str(supervised._process.pid))
        with pytest.raises(SandboxError, match="ended early"):
            supervised.wait()
    guard = sandbox.run(["python", "-c", "pass"]).memory_guard

    def left_over() -> list[int]:
        """Without a cgroup, a bubblewrap may stay that was killed before it did anything."""
        return [
            pid
            for pid in marked(str(shown))
            if guard is not MemoryGuard.WATCHER
            or Path(f"/proc/{pid}/comm").read_text() != "bwrap\n"
        ]

    until = time.monotonic() + 10
    while left_over() and time.monotonic() < until:
        time.sleep(0.05)
    assert left_over() == []
    left = {path.name.split("-")[1] for path in Path("/sys/fs/cgroup").glob("**/compilewatch-*")}
    assert left & killed == set()


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_run_says_so_and_leaves_nothing(begun: bool, tmp_path: Path) -> None:
    limits = SandboxLimits(deadline_seconds=20.0)
    command = ["python", "-c", f"print('began'); {WAITS}"]
    supervised = Supervised(sandbox.planned(command, limits=limits, folder=tmp_path))
    log = tmp_path / "stdout.log"
    while begun and not (log.exists() and log.stat().st_size):
        time.sleep(0.02)
    supervised.cancel()
    result = supervised.wait()
    assert (result.ending, result.survivors) == (SandboxEnding.CANCELLED, 0)
    assert result.stdout == (b"began\n" if begun else b"")


@pytest.mark.parametrize(
    ("script", "mode", "message"),
    [
        (None, 0, "bubblewrap is missing: sudo apt install bubblewrap"),
        ("echo bubblewrap 0.4.0", 0o755, "bubblewrap is 0.4, and 0.8 is needed: sudo apt install"),
        ("echo bubblewrap 0.8.0", 0o4755, "is setuid: sudo chmod u-s"),
    ],
)
def test_a_bubblewrap_that_does_not_isolate_is_rejected_with_the_command_that_helps(
    script: str | None,
    mode: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if script is not None:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(mode)
    monkeypatch.setattr(policy, "SEARCHED", str(tmp_path))
    with pytest.raises(SandboxError, match=message):
        sandbox.prove.__wrapped__(sys.executable)


def test_where_namespaces_are_denied_nothing_runs() -> None:
    """Within a bubblewrap of its own, no second one can be started."""
    code = """
import json, subprocess, sys
inner = '''
from compilewatch.extras.executor import sandbox
from compilewatch.errors import SandboxError
try:
    sandbox.run(["python", "-c", "print(1)"])
except SandboxError as error:
    print(error)
'''
command = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", sys.executable]
done = subprocess.run([*command, "-c", inner], capture_output=True, text=True)
print(json.dumps([done.stdout, done.stderr]))
"""
    stdout, stderr = as_ordinary_user(code)
    assert stderr == ""
    assert "unreviewed code cannot be confined" in stdout
    assert len(stdout.splitlines()) == 1


def test_the_filter_is_a_program_that_is_wider_for_a_device() -> None:
    assert len(policy.filter_program()) % 8 == 0
    assert policy.filter_program(any_ioctl=True) != policy.filter_program()


def test_a_path_that_the_sandbox_could_not_read_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("for an ordinary user, its sandboxes can read what it can read")
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    with pytest.raises(SandboxError, match=r"hidden belongs to root alone: move it .*PYTHON="):
        sandbox.run(["python", "-c", "pass"], visible=[hidden])


SLOW_AFTER_KILLING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from compilewatch.extras.executor.sandbox import supervisor
kill = supervisor.Supervisor._kill
def killed(self):
    kill(self)
    time.sleep(0.5)
supervisor.Supervisor._kill = killed
supervisor.main()
"""


def test_a_caller_that_ends_while_the_sandbox_starts_has_cancelled_it() -> None:
    """Where the sandbox was gone before the supervisor went on, the job counted as failed."""
    data = msgspec.msgpack.encode(sandbox.planned(["python", "-c", "print('ran')"]))
    source = sandbox.__file__.removesuffix("/compilewatch/extras/executor/sandbox/__init__.py")
    done = subprocess.run(
        [sys.executable, "-I", "-c", SLOW_AFTER_KILLING, source],
        input=len(data).to_bytes(4, "big") + data,
        stdout=subprocess.PIPE,
        env={},
        cwd="/",
        check=True,
    )
    result = msgspec.msgpack.decode(done.stdout, type=SandboxResult)
    assert result.ending is SandboxEnding.CANCELLED
    assert result.detail == "its caller ended before it began"
    assert result.stdout == b""
    assert result.survivors == 0
