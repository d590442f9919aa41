"""Attacks on the supervisor, the collection of results and the kernel's memory, each inside only.

Each case takes about a second: a sandbox of its own, and a look at what it left.
"""

from __future__ import annotations

import time

import msgspec
import pytest

from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox import SandboxEnding, SandboxLimits, SandboxResult
from tests.integration.extras.executor.sandbox.attacks import PRELUDE
from tests.integration.extras.executor.sandbox.test_attacks import LIMITS

REFUSED = {
    "run a program from a file in memory": """
descriptor = call(319, b"x", 0)
succeeded(descriptor >= 0)
""",
    "run a program that has no name": """
descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o700)
os.write(descriptor, b"#!/bin/sh\\necho SUCCEEDED\\n")
os.fchmod(descriptor, 0o4755)
status = os.stat(descriptor)
os.setuid(0)
succeeded()
""",
    "raise a limit": """
import resource
for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_DATA):
    soft, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
        succeeded()
    except (OSError, ValueError):
        pass
""",
    "get a higher priority": """
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
succeeded()
""",
    "write what the kernel reads of /proc": """
for path in ("sys/kernel/core_pattern", "sysrq-trigger", "sys/vm/overcommit_memory",
             "self/uid_map", "self/setgroups", "1/ns/mnt", "2/mem", "2/oom_score_adj"):
    try:
        with open(f"/proc/{path}", "r+b", buffering=0) as file:
            file.write(b"0")
            succeeded()
    except OSError:
        pass
""",
    "reach a file of the first program": """
for path in ("root/etc", "cwd", "fd", "map_files"):
    try:
        succeeded(os.listdir(f"/proc/{os.getppid()}/{path}"))
    except OSError:
        pass
for path in ("mem", "environ", "maps", "stack"):
    try:
        with open(f"/proc/{os.getppid()}/{path}", "rb") as file:
            succeeded(file.read(4096))
    except OSError:
        pass
""",
    "find a process with rights to take over": """
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.rstrip().split(":", 1) for line in file)
    held = [fields[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    succeeded(any(held_one.strip("0") for held_one in held))
    succeeded(fields["Seccomp"].strip() != "2" or fields["NoNewPrivs"].strip() != "1")
""",
    "take a descriptor of another process": """
for pid in (1, 2):
    descriptor = call(434, pid, 0)
    if descriptor >= 0:
        succeeded(call(438, descriptor, 1, 0) >= 0)
""",
    "use userfaultfd, perf events and BPF": """
for number, arguments in ((323, (0,)), (298, (b"\\0" * 128, 0, -1, -1, 0)), (321, (0, 0, 0))):
    succeeded(call(number, *arguments) >= 0)
""",
}
"""Scripts that would print SUCCEEDED: none does."""


def confined(script: str, limits: SandboxLimits = LIMITS) -> SandboxResult:
    source = PRELUDE.replace("json.loads(sys.argv[1])", "{}") + script
    return sandbox.run(["python", "attack.py"], files={"attack.py": source}, limits=limits)


@pytest.mark.matrix
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_rejected(name: str) -> None:
    result = confined(REFUSED[name])
    assert b"SUCCEEDED" not in result.stdout, result.stdout
    assert (result.ending, result.survivors) == (SandboxEnding.EXITED, 0), result


SHORT = SandboxLimits(
    deadline_seconds=2.0,
    memory_bytes=128 * 2**20,
    disk_bytes=16 * 2**20,
    disk_files=1000,
    output_bytes=2**20,
)
ENDED = {
    "a storm of processes at the deadline": (
        """
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
""",
        {SandboxEnding.DEADLINE},
    ),
    "the first process stopped": (
        """
os.kill(os.getppid(), signal.SIGSTOP)
time.sleep(60)
""",
        {SandboxEnding.DEADLINE},
    ),
    "300 MB in the buffers of sockets": (
        """
held, block = [], bytes(1 << 16)
total = 0
while total < 300 << 20:
    for descriptor in range(200):
        try:
            pair = socket.socketpair()
            held.append(pair)
            pair[0].setblocking(False)
            while True:
                total += pair[0].send(block)
        except OSError:
            continue
    if os.fork():
        time.sleep(30)
    held = []
print("SUCCEEDED", total)
""",
        {SandboxEnding.MEMORY, SandboxEnding.DEADLINE},
    ),
    "300 MB in extended attributes": (
        """
total = 0
try:
    for number in range(900):
        with open(f"/tmp/{number}", "w"):
            pass
        for name in range(60):
            os.setxattr(f"/tmp/{number}", f"user.{name}", bytes(60000))
            total += 60000
            if total > 300 << 20:
                print("SUCCEEDED", flush=True)
except OSError as error:
    print(error, total, flush=True)
time.sleep(30)
""",
        {SandboxEnding.DISK_FILES, SandboxEnding.MEMORY, SandboxEnding.DEADLINE},
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", ENDED)
def test_it_is_ended_with_everything_it_started(name: str) -> None:
    script, endings = ENDED[name]
    begun = time.monotonic()
    memory = 2**30 if "processes" in name else SHORT.memory_bytes
    # What is to reach a limit of memory needs its time; what waits for the deadline does not.
    seconds = 1.0 if endings == {SandboxEnding.DEADLINE} else SHORT.deadline_seconds
    limits = msgspec.structs.replace(SHORT, memory_bytes=memory, deadline_seconds=seconds)
    result = confined(script, limits)
    assert result.ending in endings, result
    assert b"SUCCEEDED" not in result.stdout
    assert result.survivors == 0
    assert time.monotonic() - begun < 30.0


STRANGE = """
import itertools
os.makedirs("out", exist_ok=True)
names = ["\\x1b[2Jcleared", "x" * 255, "a\\nb", "..", "\\udcff", "-rf", "good.txt", "\\u202e.txt"]
for name in names:
    try:
        with open(os.fsencode("out/" + name), "w") as file:
            file.write("x")
    except (OSError, ValueError):
        pass
place = os.open("out", os.O_RDONLY)
for _ in range(600):  # 2,400 bytes of path in 8 levels, and 150,000 in 600
    os.mkdir("d" * 250, dir_fd=place)
    above, place = place, os.open("d" * 250, os.O_RDONLY, dir_fd=place)
    os.close(above)
with open(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=place), "w") as file:
    file.write("x")
os.symlink("/proc/1/environ", "out/environ")
os.link("attack.py", "out/hard.py")
try:
    os.mkfifo("out/pipe")
except OSError:
    pass
print("\\x1b]0;title\\x07\\x1b[31mred", flush=True)
"""


def test_strange_names_and_depths_are_left_out_and_harm_nobody() -> None:
    result = confined(STRANGE)
    assert (result.ending, result.exit_code) == (SandboxEnding.EXITED, 0), result
    assert sorted(result.files) == ["-rf", "good.txt", "hard.py"]
    assert result.files_left_out >= 4
    assert result.survivors == 0


SWAPPED = """
os.makedirs("out/inner", exist_ok=True)
with open("out/inner/file.txt", "w") as file:
    file.write("mine")
os.rename("out", "away")
os.symlink("/usr/share", "out")
"""


def test_an_output_folder_that_is_a_link_returns_nothing_of_where_it_leads() -> None:
    result = confined(SWAPPED)
    assert result.ending is SandboxEnding.EXITED
    assert (result.files, result.files_left_out) == ({}, 1)
