"""Watching a child: what it and those it forks hold of the memory."""

from __future__ import annotations

import subprocess
import sys

from compilewatch.launchers.local.task import resident_bytes

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


def test_what_a_fork_of_a_child_holds_counts_as_the_childs() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert 200 * 2**20 < resident_bytes(child.pid) < 400 * 2**20
        child.stdin.write(b"\n")


def test_a_process_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert resident_bytes(child.pid) == 0
