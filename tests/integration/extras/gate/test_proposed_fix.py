"""`--compilewatch-fix` through pytest: a fix that is searched and verified within its time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cases

pytestmark = pytest.mark.torch

TESTS = """
def test_net(compile_check):
    compile_check("fixable:announcing")
"""

BUILD = """

def announcing() -> nn.Module:
    return nn.Sequential(Announcing(4))
"""


@pytest.mark.matrix
def test_a_failed_check_names_a_verified_fix_within_its_time(tmp_path: Path) -> None:
    """Half a minute or more: the search and its limit are other processes, which end with it."""
    shutil.copy(Path(next(iter(cases.__path__)), "fixable.py"), tmp_path)
    with (tmp_path / "fixable.py").open("a") as file:
        file.write(BUILD)
    (tmp_path / "test_net.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    assert "fix:" not in run()
    assert "none is verified within 1 s" in run(
        "--compilewatch-fix", "--compilewatch-fix-timeout=1"
    )
    found = run("--compilewatch-fix", "--compilewatch-fix-timeout=400")
    assert "fix:        ignore_logging_functions: info (verified: one graph)" in found
    assert "verify:     compilewatch fix fixable:announcing --python-path" in found
