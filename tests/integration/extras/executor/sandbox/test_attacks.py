"""Each hostile script does its harm without the sandbox, and none inside: both are run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox import SandboxEnding, SandboxLimits, SandboxResult
from tests.integration.extras.executor.sandbox.attacks import ATTACKS, PRELUDE
from tests.integration.extras.executor.sandbox.conftest import remove_segment

LIMITS = SandboxLimits(
    deadline_seconds=20.0,
    memory_bytes=128 * 2**20,
    disk_bytes=16 * 2**20,
    disk_files=1000,
    output_bytes=2**20,
)

ENDED = {
    "take 300 MB of shared memory": SandboxEnding.MEMORY,
    "make 5000 files": SandboxEnding.DISK_FILES,
}
"""The scripts that a limit ends; the others are refused and go on."""

METADATA = """
import ctypes, fcntl, os, socket, struct, subprocess, sys, threading
if ctypes.CDLL(None).unshare(0x40000000 | (0 if os.geteuid() == 0 else 0x10000000)):
    sys.exit("no namespace for the double")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 0x49))
    fcntl.ioctl(
        control, 0x8916,
        struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton("169.254.169.254")),
    )
listening = socket.create_server(("169.254.169.254", 80))
def answer():
    connection, _ = listening.accept()
    connection.sendall(b"hi")
threading.Thread(target=answer, daemon=True).start()
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], timeout=10).returncode)
"""
"""Runs a script in a network of its own, in which the metadata service answers."""


def openly(script: str, world: dict[str, Any], folder: Path) -> str:
    """Run a script without the sandbox, for at most 20 s."""
    path = folder / "attack.py"
    path.write_text(PRELUDE + script)
    command = [sys.executable, str(path), json.dumps(world)]
    if "169.254" in script:
        command[1:1] = ["-c", METADATA]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


def confined(script: str, world: dict[str, Any]) -> SandboxResult:
    return sandbox.run(
        ["python", "attack.py", json.dumps(world)],
        files={"attack.py": PRELUDE + script},
        limits=LIMITS,
    )


def marked(name: str) -> list[int]:
    """The processes whose arguments hold this name."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in path.read_bytes():
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in pids if pid != os.getpid()]


def left_outside(world: dict[str, Any]) -> list[str]:
    """What a script left outside, and removes it."""
    left = []
    for pid in marked(world["shm"]):
        os.kill(pid, signal.SIGKILL)
        left.append("a process")
    for folder in ("/dev/shm", "/tmp", "/", "/etc", "/usr", "/dev", sys.prefix, world["folder"]):
        for path in Path(folder).glob(f"{world['shm']}*"):
            if not path.is_socket():
                path.unlink()
                left.append(f"a file in {folder}")
    if remove_segment(world["sysv"]):
        left.append("a segment")
    return left


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_script_harms_without_the_sandbox_and_not_inside(
    name: str, world: dict[str, Any], tmp_path: Path
) -> None:
    """Takes about a second each: the only proof that each layer holds what it is there for."""
    leaves = name.startswith("leave")  # what such a script leaves is the harm
    result = confined(ATTACKS[name], world)
    assert leaves or b"SUCCEEDED" not in result.stdout
    assert result.ending is ENDED.get(name, SandboxEnding.EXITED), result
    assert result.survivors == 0
    assert left_outside(world) == []
    os.kill(world["victim"], 0)

    assert "SUCCEEDED" in openly(ATTACKS[name], world, tmp_path)
    left = left_outside(world)
    assert left or not leaves


def test_endless_output_is_cut_and_results_are_plain_files_within_their_limits() -> None:
    """Takes two seconds: a script that prints until its deadline."""
    script = """
import os
os.symlink("/etc/passwd", "out/link")
with open("out/sparse", "wb") as file:
    file.truncate(10 << 20)
os.makedirs("out/a/b")
for name in ("out/good.txt", "out/.hidden", "out/with space", "out/a/b/deep"):
    with open(name, "w") as file:
        file.write("x")
while True:
    print("x" * 4000)
"""
    limits = SandboxLimits(deadline_seconds=1.5, log_bytes=2**16, output_bytes=2**20)
    result = sandbox.run(["python", "main.py"], files={"main.py": script}, limits=limits)
    assert result.ending is SandboxEnding.DEADLINE
    assert len(result.stdout) == 2**16
    assert result.stdout_truncated
    assert sorted(result.files) == ["a/b/deep", "good.txt"]
    assert result.files_left_out == 4


def test_a_grandchild_of_600_seconds_ends_with_a_deadline_of_2() -> None:
    """Takes two seconds: that nothing outlives a deadline can only be seen after one."""
    script = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    limits = SandboxLimits(deadline_seconds=2.0)
    result = sandbox.run(["python", "main.py"], files={"main.py": script}, limits=limits)
    assert result.ending is SandboxEnding.DEADLINE
    assert result.duration_seconds < 300.0
    assert result.survivors == 0


@pytest.mark.parametrize("target", ["-1", "os.getppid()"])
def test_who_kills_what_is_inside_ends_its_own_job_only(target: str, world: dict[str, Any]) -> None:
    result = confined(f"os.kill({target}, signal.SIGKILL)\ntime.sleep(60)\n", world)
    assert (result.ending, result.exit_code) == (SandboxEnding.EXITED, 137)
    assert result.files == {}
    os.kill(world["victim"], 0)


def test_a_forged_result_stays_the_claim_of_its_own_job(world: dict[str, Any]) -> None:
    script = """
for pid in (1, 2, os.getppid()):
    for descriptor in range(3, 20):
        try:
            with open(f"/proc/{pid}/fd/{descriptor}", "wb", buffering=0) as file:
                file.write((2).to_bytes(4, "big") + b"{}")
                succeeded()
        except OSError:
            pass
sys.exit(5)
"""
    result = confined(script, world)
    assert result.exit_code == 5
    assert b"SUCCEEDED" not in result.stdout
