"""What a sandbox holds for an ordinary user, and that killing its parts early leaves nothing."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.errors import SandboxError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox import policy
from compilewatch.extras.executor.sandbox.policy import MemoryGuard, SandboxEnding
from tests.integration.extras.executor.sandbox import attacks
from tests.integration.extras.executor.sandbox.test_attacks import confined, marked

ORDINARY_USER = 65_432
WAITS = "import time; time.sleep(60)"
RUN = """
import json, sys
from compilewatch.extras.executor import sandbox
limits = sandbox.SandboxLimits(deadline_seconds=30, memory_bytes=128 << 20, disk_files=1000)
command = ["python", "main.py", json.dumps({"folder": "/none", "shm": "x"})]
files = {"main.py": sys.stdin.read()}
result = sandbox.run(sandbox.planned(command, files=files, limits=limits))
print(json.dumps([result.ending, result.memory_guard, result.survivors, result.stdout.decode()]))
"""


def as_ordinary_user(code: str, source: str = "") -> list[Any]:
    """Run code of ours as a user without privileges; what it printed."""
    user = ORDINARY_USER if os.geteuid() == 0 else None
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=source.encode(),
        capture_output=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("name", "ending"),
    [(attacks.SHARED, "memory"), (attacks.FILES, "disk_files"), ("start 200 processes", "exited")],
)
def test_an_ordinary_user_is_held_to_the_same_limits(name: str, ending: str) -> None:
    """Takes about a second each: without a cgroup, other code holds the limits."""
    script = attacks.PRELUDE + {**attacks.ATTACKS, **attacks.ENDED}[name]
    result, guard, survivors, stdout = as_ordinary_user(RUN, script)
    assert (result, survivors, stdout) == (ending, 0, "")
    assert guard != "cgroup_v1"


@pytest.mark.matrix
def test_whenever_the_supervisor_is_killed_nothing_is_left() -> None:
    """Takes about five seconds: 20 kills at moments spread over the start of a sandbox."""
    guard = confined("").memory_guard
    with tempfile.TemporaryDirectory(prefix="compilewatch-test-", dir="/tmp") as shown:
        Path(shown).chmod(0o755)
        run = sandbox.planned(["python", "-c", WAITS, shown], visible=[shown])
        killed = set()
        for number in range(20):
            supervised = sandbox.Supervised(run)
            time.sleep(0.08 + 0.012 * number)
            supervised._process.kill()
            killed.add(str(supervised._process.pid))
            with pytest.raises(SandboxError, match="ended early"):
                supervised.wait()
        until = time.monotonic() + 10
        while left := marked(shown):
            if guard is MemoryGuard.WATCHER:  # without a cgroup, an idle bubblewrap may stay
                left = [p for p in left if Path(f"/proc/{p}/comm").read_text() != "bwrap\n"]
            if not left:
                break
            assert time.monotonic() < until, left
            time.sleep(0.05)
    groups = {path.name.split("-")[1] for path in Path("/sys/fs/cgroup").glob("**/compilewatch-*")}
    assert groups & killed == set()


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_run_says_so_and_leaves_nothing(begun: bool, tmp_path: Path) -> None:
    command = ["python", "-c", f"print('began'); {WAITS}"]
    limits = policy.SandboxLimits(deadline_seconds=20.0)
    spec = sandbox.planned(command, limits=limits)
    supervised = sandbox.Supervised(msgspec.structs.replace(spec, folder=str(tmp_path)))
    log = tmp_path / "stdout.log"
    while begun and not (log.exists() and log.read_bytes().endswith(b"\n")):
        time.sleep(0.02)
    supervised.cancel()
    result = supervised.wait()
    assert (result.ending, result.survivors) == (SandboxEnding.CANCELLED, 0)
    assert result.stdout == (b"began\n" if begun else b"")


def test_a_bubblewrap_that_does_not_isolate_is_rejected_with_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "SEARCHED", str(tmp_path))
    with pytest.raises(SandboxError, match="bubblewrap is missing: sudo apt install bubblewrap"):
        policy.program()
    for version, mode, message in (
        ("0.4.0", 0o755, "bubblewrap is 0.4, and 0.8 is needed: sudo apt install"),
        ("0.8.0", 0o4755, "is setuid: sudo chmod u-s"),
    ):
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
        (tmp_path / "bwrap").chmod(mode)
        with pytest.raises(SandboxError, match=message):
            policy.program()


WITHIN = """
import json, subprocess, sys
inner = '''
from compilewatch.extras.executor import sandbox
from compilewatch.errors import SandboxError
try:
    sandbox.run(sandbox.planned(["python", "-c", "print(1)"]))
except SandboxError as error:
    print(error)
'''
command = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", sys.executable]
done = subprocess.run([*command, "-c", inner], capture_output=True, text=True)
print(json.dumps([done.stdout, done.stderr]))
"""


def test_where_namespaces_are_denied_nothing_runs() -> None:
    """Within a bubblewrap of its own, no second one can be started."""
    stdout, stderr = as_ordinary_user(WITHIN)
    assert stderr == ""
    assert "unreviewed code cannot be confined" in stdout
    assert len(stdout.splitlines()) == 1


def test_a_path_that_the_sandbox_could_not_read_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("for an ordinary user, its sandboxes can read what it can read")
    (hidden := tmp_path / "hidden").mkdir(mode=0o700)
    with pytest.raises(SandboxError, match=r"hidden belongs to root alone: move it .*PYTHON="):
        sandbox.run(sandbox.planned(["python", "-c", "pass"], visible=[hidden]))


SLOW_AFTER_KILLING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from compilewatch.extras.executor.sandbox import supervisor
kill = supervisor.Supervisor._kill
supervisor.Supervisor._kill = lambda self: (kill(self), time.sleep(0.5))
supervisor.main()
"""


def test_a_caller_that_ends_while_the_sandbox_starts_has_cancelled_it() -> None:
    """Where the sandbox was gone before the supervisor went on, the job counted as failed."""
    data = msgspec.msgpack.encode(sandbox.planned(["python", "-c", "print('ran')"]))
    packages = str(Path(sandbox.__file__).parents[4])
    command = [sys.executable, "-I", "-c", SLOW_AFTER_KILLING, packages]
    sent = len(data).to_bytes(4, "big") + data
    done = subprocess.run(command, input=sent, capture_output=True, env={}, cwd="/", check=True)
    result = msgspec.msgpack.decode(done.stdout, type=policy.SandboxResult)
    assert result.ending is SandboxEnding.CANCELLED
    assert result.detail == "its caller ended before it began"
    assert (result.stdout, result.survivors) == (b"", 0)
