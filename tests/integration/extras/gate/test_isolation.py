"""Isolated tests: whatever happens in one of them is one failure of the session."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

TESTS = """
import os
import pytest

@pytest.fixture(scope="module")
def shared():
    yield "shared"

def test_not_isolated(shared):
    assert shared

def test_passes(compile_check, shared, tmp_path):
    assert shared

def test_fails(compile_check):
    assert 2 == 1

@pytest.mark.skip(reason="said so")
def test_skipped(compile_check): ...

@pytest.mark.xfail(strict=True)
def test_expected(compile_check):
    assert False

def test_crashes(compile_check):
    os.abort()

def test_exits(compile_check):
    os._exit(7)

@pytest.fixture
def broken():
    os.kill(os.getpid(), 9)

def test_is_killed_before_it_begins(compile_check, broken): ...
"""

LIMITED = """
import time

def test_hangs(compile_check):
    kept = bytearray({bytes})
    time.sleep(100)
"""

CHECK = """
import torch

def branch(x):
    return x + 1 if x.sum() > 0 else x

def test_check(compile_check):
    compile_check(lambda x: branch(x), torch.ones(2))
"""


def run(root: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (root / "test_isolated.py").write_text(tests)
    words = ["-rA", "-p", "no:cacheprovider", "--compilewatch-isolate", "--junitxml=junit.xml"]
    command = [sys.executable, "-m", "pytest", *words, *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=110)


@pytest.mark.matrix
def test_a_child_that_ends_early_is_one_failure_and_all_other_tests_run(tmp_path: Path) -> None:
    """Starts a child for each test, since their ends are what is reported."""
    done = run(tmp_path, TESTS)
    assert done.returncode == 1, done.stdout + done.stderr
    for words in (
        "4 failed, 2 passed, 1 skipped, 1 xfailed",
        "assert 2 == 1",
        "compilewatch: crashed: the process of the test was ended by SIGABRT",
        "in test_crashes",
        "ended early, with the exit status 7",
        "compilewatch: crashed: the process of the test was ended by SIGKILL",
    ):
        assert words in done.stdout
    assert "/pluggy/" not in done.stdout
    cases = ET.parse(tmp_path / "junit.xml").findall(".//testcase")
    assert len(cases) == 8
    assert sum(case.find("failure") is not None for case in cases) == 4


@pytest.mark.matrix
def test_a_child_has_a_deadline_and_a_limit_of_memory(tmp_path: Path) -> None:
    """Two sessions, whose only test is ended by one of the limits."""
    late = run(tmp_path, LIMITED.format(bytes=1), "--compilewatch-timeout", "6")
    assert "compilewatch: timeout: the test took longer than 6 seconds" in late.stdout
    assert "in test_hangs" in late.stdout
    greedy = run(tmp_path, LIMITED.format(bytes=3 * 2**30), "--compilewatch-memory", "1")
    assert "compilewatch: memory: the test needed more than 1 GiB" in greedy.stdout


@pytest.mark.matrix
def test_checks_of_children_reach_the_session_and_its_baseline(tmp_path: Path) -> None:
    """Two sessions with torch in their children, which only they show to be collected."""
    known = run(tmp_path, CHECK, "--compilewatch-update", "--compilewatch-sarif=found.sarif")
    assert known.returncode == 0, known.stdout
    assert "+ GB0170 Data-dependent branching in branch, test_isolated.py" in known.stdout
    assert "GB0170" in (tmp_path / "found.sarif").read_text()
    again = run(tmp_path, CHECK, "-n", "1")
    assert "checks: 1  new: 0  known: 1" in again.stdout
    assert again.returncode == 0, again.stdout
