"""Hostile scripts do their harm without the sandbox, and none inside: both are run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxLimits, SandboxResult
from tests.integration.extras.executor.sandbox import attacks
from tests.integration.extras.executor.sandbox.conftest import remove_segment

LIMITS = SandboxLimits(
    deadline_seconds=60.0,
    memory_bytes=128 * 2**20,
    disk_bytes=16 * 2**20,
    disk_files=1000,
    output_bytes=2**20,
    log_bytes=2**16,
)
NETWORK = """
import fcntl, struct, subprocess, threading
if libc.unshare(0x40000000 | (0 if os.geteuid() == 0 else 0x10000000)):
    sys.exit("no namespace for the double")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 0x49))
    fcntl.ioctl(
        control, 0x8916,
        struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton("169.254.169.254")),
    )
listening = socket.create_server(("169.254.169.254", 80))
threading.Thread(target=lambda: listening.accept()[0].sendall(b"hi"), daemon=True).start()
"""
"""Makes a network of its own, in which the metadata service answers."""


def openly(source: str, world: dict[str, Any], folder: Path) -> str:
    """What a program printed without the sandbox."""
    (path := folder / "attack.py").write_text(source)
    command = [sys.executable, str(path), json.dumps(world)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def confined(
    source: str, world: dict[str, Any] | None = None, limits: SandboxLimits = LIMITS
) -> SandboxResult:
    command = ["python", "attack.py", json.dumps(world or {"folder": "/none", "shm": "x"})]
    result = sandbox.run(sandbox.planned(command, files={"attack.py": source}, limits=limits))
    assert result.survivors == 0
    return result


def succeeded(printed: str) -> set[str]:
    """The scripts that did harm, by what all of them printed."""
    lines = printed.splitlines()
    return {line.removeprefix("SUCCEEDED ") for line in lines if line.startswith("SUCCEEDED")}


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


def left_outside(world: dict[str, Any]) -> set[str]:
    """What scripts left outside, and removes it."""
    left = set()
    for pid in marked(world["shm"]):
        os.kill(pid, signal.SIGKILL)
        left.add("a process")
    for folder in ("/dev/shm", "/tmp", "/", "/etc", "/usr", "/dev", sys.prefix, world["folder"]):
        for path in Path(folder).glob(f"{world['shm']}*"):
            if not path.is_socket():
                path.unlink()
                left.add(f"a file in {folder}")
    if remove_segment(world["sysv"]):
        left.add("a segment")
    return left


def test_hostile_scripts_harm_without_the_sandbox_and_not_inside(
    world: dict[str, Any], tmp_path: Path
) -> None:
    """Takes some seconds: the only proof that each layer holds what it is there for."""
    leave = {name for name in attacks.ATTACKS if name.startswith("leave")}
    scripts = {**attacks.ATTACKS, **attacks.METADATA, **attacks.INSIDE}
    result = confined(attacks.together(scripts), world)
    assert succeeded(result.stdout.decode()) <= leave, result
    assert result.ending is SandboxEnding.EXITED, result
    assert left_outside(world) == set()
    os.kill(world["victim"], 0)

    printed = openly(attacks.together(attacks.ATTACKS), world, tmp_path)
    assert succeeded(printed) == set(attacks.ATTACKS), printed
    assert left_outside(world) >= {"a process", "a file in /dev/shm", "a segment"}
    (metadata,) = attacks.METADATA.values()
    assert "SUCCEEDED" in openly(attacks.PRELUDE + NETWORK + metadata, world, tmp_path)


@pytest.mark.parametrize(
    ("name", "endings"),
    [
        (attacks.SHARED, "memory"),
        (attacks.FILES, "disk_files"),
        ("a grandchild of 600 seconds", "deadline"),
        *(
            pytest.param(name, endings, marks=pytest.mark.matrix)
            for name, endings in (
                ("a storm of processes", "deadline"),
                ("the first process stopped", "deadline"),
                ("300 MB in the buffers of sockets", "memory deadline"),
                ("300 MB in extended attributes", "disk_files memory deadline"),
            )
        ),
    ],
)
def test_a_script_is_ended_with_everything_it_started(
    name: str, endings: str, world: dict[str, Any], tmp_path: Path
) -> None:
    """Takes about a second each: an ending can only be seen in a sandbox of its own."""
    script = attacks.PRELUDE + attacks.ENDED[name]
    # What is to reach another limit needs its time; what waits for the deadline does not.
    limits = msgspec.structs.replace(LIMITS, deadline_seconds=1.0 if endings == "deadline" else 5.0)
    if name == "a storm of processes":
        limits = msgspec.structs.replace(limits, memory_bytes=2**30)
    result = confined(script, world, limits)
    assert result.ending in endings.split(), result
    assert result.duration_seconds < 30.0
    assert result.files == ({"begun": b"yes"} if "grandchild" in name else {})
    assert b"SUCCEEDED" not in result.stdout
    assert left_outside(world) == set()
    if name in (attacks.SHARED, attacks.FILES):
        assert "SUCCEEDED" in openly(script, world, tmp_path)
        left_outside(world)


def test_who_kills_what_is_inside_ends_its_own_job_only(world: dict[str, Any]) -> None:
    for target in ("-1", "first"):
        script = f"os.kill({target}, signal.SIGKILL)\ntime.sleep(60)\n"
        result = confined(attacks.PRELUDE + script, world)
        assert (result.ending, result.exit_code) == (SandboxEnding.EXITED, 137)
        assert result.files == {}
    os.kill(world["victim"], 0)


def test_output_is_cut_and_results_are_plain_files_within_their_limits() -> None:
    result = confined(attacks.PRELUDE + attacks.STRANGE)
    assert (result.ending, result.exit_code) == (SandboxEnding.EXITED, 0), result
    assert sorted(result.files) == ["-rf", "good.txt", "hard.py"]
    assert result.artifacts_left_out >= 8
    assert (len(result.stdout), result.stdout_truncated) == (2**16, True)
    # A folder of results that is a link returns nothing of where it leads.
    result = confined(attacks.PRELUDE + attacks.SWAPPED)
    assert result.ending is SandboxEnding.EXITED
    assert (result.files, result.artifacts_left_out) == ({}, 1)
